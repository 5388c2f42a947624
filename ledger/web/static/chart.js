// Reads a chart out: a line follows the pointer or the arrow keys, and what the table says of that place is written below the charts.
"use strict";
(() => {
  for (const charts of document.querySelectorAll("[data-charts]")) {
    const output = charts.querySelector("output");
    const table = () => document.getElementById(charts.dataset.charts);
    let at = -1;

    const rows = () => [...table().tBodies[0].rows].filter((row) => row.dataset.from).sort((a, b) => a.dataset.from - b.dataset.from);

    function show(place) {
      const all = rows();
      if (!all.length) return;
      at = Math.max(0, Math.min(all.length - 1, place));
      const row = all[at];
      const middle = (Number(row.dataset.from) + Number(row.dataset.to)) / 2;
      for (const line of charts.querySelectorAll(".cursor")) {
        line.setAttribute("x1", middle);
        line.setAttribute("x2", middle);
        line.classList.add("shown");
      }
      const heads = [...table().tHead.rows[0].cells].map((cell) => cell.textContent);
      const words = [...row.cells].map((cell, index) => `${heads[index]} ${cell.textContent.trim()}`).filter((_, index) => row.cells[index].textContent.trim());
      output.textContent = words.join(" · ");
    }

    function nearest(fraction) {
      const all = rows();
      let low = 0;
      let high = all.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (Number(all[middle].dataset.to) < fraction) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    function go() {
      const link = at >= 0 ? rows()[at]?.querySelector("a[data-zoom]") : null;
      if (link) location.assign(link.href);
    }

    charts.addEventListener("pointermove", (event) => {
      const drawing = event.target.closest("svg[tabindex]");
      if (!drawing) return;
      const box = drawing.getBoundingClientRect();
      show(nearest((1000 * (event.clientX - box.left)) / box.width));
    });
    charts.addEventListener("click", (event) => {
      if (event.target.closest("svg[tabindex]")) go();
    });
    charts.addEventListener("keydown", (event) => {
      if (!event.target.closest("svg[tabindex]") || event.ctrlKey || event.metaKey || event.altKey) return;
      const last = rows().length - 1;
      const next = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: last }[event.key];
      if (next !== undefined) show(next);
      else if (event.key === "Enter") go();
      else return;
      event.preventDefault();
    });
    document.addEventListener("ledger:renewed", () => {
      if (at >= 0) show(at);
    });
  }
})();
