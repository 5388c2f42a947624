// Draws the binomial masses that the service computes. Playback points at outcomes that are drawn from them; it never changes one.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 8, TOP = 28, BOTTOM = 226, HEIGHT = 260;
  // On a phone the same height on half the width: bars stay tall enough to compare.
  const narrow = matchMedia("(max-width: 760px)");
  let width = 720, right = 712;
  const SHOWN_SHARE = 1e-7; // Of the highest mass: what is lower could not be seen as a bar.
  const STEP_MS = 350, CALM_STEP_MS = 1000, SETTLED_MS = 600;
  const MOST = Number(document.getElementById("n-slider").max);
  const get = (id) => document.getElementById(id);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const form = get("binomial-controls");
  const error = get("binomial-error");

  let law = null; // What the service said last: p, n, masses, mean, variance.
  let asked = { p: 0.5, n: 20 };
  let call = null, timer = 0, telling = 0;
  let random = null, drawn = [], hit = null;

  // mulberry32: small, and the same in every language with 32-bit integers.
  function mulberry(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  // The outcome at which the masses, added from 0 on, first exceed a number between 0 and 1.
  function outcomeAt(number) {
    let sum = 0, last = 0;
    for (let k = 0; k < law.masses.length; k += 1) {
      if (law.masses[k] > 0) last = k;
      sum += law.masses[k];
      if (number < sum) return k;
    }
    return last;
  }

  function shape(name, attributes, parent, words) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (words !== undefined) made.textContent = words;
    parent.append(made);
    return made;
  }

  const brief = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e-4 ? String(Number(value.toPrecision(6))) : value.toExponential(3));
  const grouped = (count) => count.toLocaleString("en-US");
  const times = (count) => `${grouped(count)} ${count === 1 ? "success" : "successes"}`;

  function range() {
    if (get("whole").checked) return [0, law.n];
    const least = Math.max(...law.masses) * SHOWN_SHARE;
    const first = law.masses.findIndex((mass) => mass >= least);
    const last = law.masses.findLastIndex((mass) => mass >= least);
    // A lone bar would fill the chart: its neighbours show what a width is.
    return [Math.max(0, Math.min(first, last - 4)), Math.min(law.n, Math.max(last, first + 4))];
  }

  function draw() {
    const chart = get("masses");
    width = narrow.matches ? 400 : 720;
    right = width - LEFT;
    chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const [first, last] = range();
    const highest = Math.max(...law.masses);
    const wide = (right - LEFT) / (last - first + 1);
    const at = (k) => LEFT + (k - first + 0.5) * wide;
    const made = document.createDocumentFragment();
    for (let k = first; k <= last; k += 1) {
      const tall = highest > 0 ? (law.masses[k] / highest) * (BOTTOM - TOP) : 0;
      const gap = wide > 4 ? wide * 0.12 : 0;
      shape("rect", {
        class: "mass", "data-k": k, x: at(k) - wide / 2 + gap / 2, width: wide - gap, y: BOTTOM - tall, height: tall,
      }, made);
    }
    shape("line", { class: "axis", x1: LEFT, x2: right, y1: BOTTOM, y2: BOTTOM }, made);
    const middle = LEFT + (law.p * law.n - first + 0.5) * wide;
    shape("line", { class: "expected", x1: middle, x2: middle, y1: TOP - 8, y2: BOTTOM }, made);
    const side = middle > width * 0.75 ? "end" : middle < width * 0.25 ? "start" : "middle";
    shape("text", { x: middle, y: 12, "text-anchor": side }, made, `expected: ${brief(law.p * law.n)}`);
    const marks = last - first < 4 ? [first, last] : [first, Math.round((first + last) / 2), last];
    marks.forEach((k, place) => {
      const end = place === 0 ? "start" : place === marks.length - 1 ? "end" : "middle";
      const x = place === 0 ? LEFT : place === marks.length - 1 ? right : at(k);
      shape("text", { x, y: BOTTOM + 26, "text-anchor": end }, made, place ? grouped(k) : `${times(k)}`);
    });
    shape("path", { class: "pointer", d: "M0 0 L-7 12 L7 12 Z", visibility: "hidden" }, made);
    chart.replaceChildren(made);
    chart.dataset.first = first;
    chart.dataset.last = last;
    const all = first === 0 && last === law.n;
    get("masses-words").textContent =
      `Probability of each number of successes in ${grouped(law.n)} draws; the highest bar is ${brief(highest)}.` +
      (all ? "" : ` Drawn are ${grouped(first)} to ${grouped(last)}; every other bar would be lower than a ten-millionth of the highest.`);
    point();
  }

  function point() {
    const chart = get("masses");
    chart.querySelectorAll(".hit").forEach((bar) => bar.classList.remove("hit"));
    const pointer = chart.querySelector(".pointer");
    pointer.setAttribute("visibility", hit === null ? "hidden" : "visible");
    if (hit === null) return;
    const bar = chart.querySelector(`[data-k="${hit}"]`);
    // An outcome beyond the drawn range is pointed at from the chart's edge.
    const x = bar ? Number(bar.getAttribute("x")) + Number(bar.getAttribute("width")) / 2 : hit < Number(chart.dataset.first) ? LEFT : right;
    if (bar) bar.classList.add("hit");
    pointer.setAttribute("transform", `translate(${x} ${BOTTOM + 1})`);
  }

  function table() {
    if (!get("as-table").open || !law) return;
    const rows = law.masses.map((mass, k) => {
      const row = document.createElement("tr");
      for (const text of [grouped(k), String(k / law.n), String(mass)]) {
        const cell = document.createElement("td");
        cell.className = "figure";
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    });
    get("rows").replaceChildren(...rows);
  }

  function tally() {
    const count = drawn.length;
    const mean = drawn.reduce((sum, k) => sum + k / law.n, 0) / count;
    get("draws").textContent = grouped(count);
    get("last").parentElement.classList.toggle("idle", hit === null);
    get("last").textContent = hit === null ? "none yet" : `${brief(hit / law.n)}`;
    get("last").nextElementSibling.textContent = hit === null ? "successes / n" : `${grouped(hit)} / ${grouped(law.n)}`;
    get("drawn-mean").textContent = count ? `${brief(mean)} (predicted ${brief(law.mean)})` : "–";
    const spread = drawn.reduce((sum, k) => sum + (k / law.n - mean) ** 2, 0) / (count - 1);
    get("drawn-variance").textContent = count > 1 ? `${brief(spread)} (predicted ${brief(law.variance)})` : "–";
  }

  const tell = (words) => {
    get("told").textContent = words;
  };

  function show() {
    get("mean").textContent = brief(law.mean);
    get("variance").textContent = brief(law.variance);
    get("binomial").dataset.shown = `${law.p} ${law.n}`;
    draw();
    table();
    tally();
    clearTimeout(telling);
    telling = setTimeout(() => tell(`Predicted mean ${brief(law.mean)}, variance ${brief(law.variance)}.`), SETTLED_MS);
  }

  async function ask() {
    if (call) call.abort();
    call = new AbortController();
    const mine = call;
    const address = `/v1/lab/binomial?p=${asked.p}&n=${asked.n}`;
    try {
      const reply = await fetch(address, { signal: mine.signal, headers: { Accept: "application/json" } });
      if (!reply.ok) throw new Error(String(reply.status));
      law = await reply.json();
    } catch (failure) {
      if (failure.name !== "AbortError") error.textContent = "The service did not answer; the chart shows the figures before.";
      return;
    }
    error.textContent = "";
    get("binomial-call").href = address;
    show();
  }

  function pause() {
    clearInterval(timer);
    timer = 0;
    get("play").textContent = "Play";
    get("play").setAttribute("aria-pressed", "false");
  }

  function rewind() {
    pause();
    random = mulberry(Number(get("seed").value));
    drawn = [];
    hit = null;
  }

  const NUMBER = /^[+]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const checks = {
    p: (text) => NUMBER.test(text) && Number(text) <= 1,
    n: (text) => /^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= MOST,
    seed: (text) => /^\d+$/.test(text) && Number(text) <= 0xffffffff,
  };
  const rules = {
    p: "p is a number from 0 to 1.",
    n: `n is a whole number from 1 to ${grouped(MOST)}.`,
    seed: "The seed is a whole number from 0 to 4,294,967,295.",
  };

  function read() {
    const wrong = Object.keys(checks).filter((name) => !checks[name](get(name).value.trim()));
    for (const name of Object.keys(checks)) get(name).toggleAttribute("aria-invalid", false);
    for (const name of wrong) get(name).setAttribute("aria-invalid", "true");
    error.textContent = wrong.map((name) => rules[name]).join(" ");
    for (const id of ["play", "step"]) get(id).disabled = wrong.length > 0;
    if (wrong.length) {
      pause();
      // An answer to what was typed before would look like one to this.
      if (call) call.abort();
      return;
    }
    asked = { p: Number(get("p").value), n: Number(get("n").value) };
    get("p-slider").value = asked.p;
    get("n-slider").value = asked.n;
    for (const pill of form.querySelectorAll("[data-p]")) {
      pill.setAttribute("aria-pressed", String(Number(pill.dataset.p) === asked.p && Number(pill.dataset.n) === asked.n));
    }
    rewind();
    ask();
  }

  function step() {
    hit = outcomeAt(random());
    drawn.push(hit);
    point();
    tally();
  }

  const ready = () => law !== null && law.p === asked.p && law.n === asked.n;

  for (const name of ["p", "n"]) {
    get(`${name}-slider`).addEventListener("input", (event) => {
      get(name).value = event.target.value;
      read();
    });
  }
  for (const name of Object.keys(checks)) get(name).addEventListener("input", read);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("click", (event) => {
    const pill = event.target.closest("[data-p]");
    if (!pill) return;
    get("p").value = pill.dataset.p;
    get("n").value = pill.dataset.n;
    read();
  });
  get("step").addEventListener("click", () => {
    pause();
    if (!ready()) return;
    step();
    tell(`Sample ${grouped(drawn.length)}: ${times(hit)} of ${grouped(law.n)}, mean ${brief(hit / law.n)}.`);
  });
  get("play").addEventListener("click", () => {
    if (timer) {
      pause();
      if (drawn.length) tell(`Paused after ${grouped(drawn.length)} samples; ${get("drawn-mean").textContent}.`);
      return;
    }
    get("play").textContent = "Pause";
    get("play").setAttribute("aria-pressed", "true");
    // A listener is told that it plays and when it stops, not every draw of it.
    tell("Playing.");
    if (ready()) step();
    timer = setInterval(() => ready() && step(), calm.matches ? CALM_STEP_MS : STEP_MS);
  });
  get("reset").addEventListener("click", () => {
    get("p").value = "0.5";
    get("n").value = "20";
    get("seed").value = "1";
    get("whole").checked = false;
    read();
    tell("Reset.");
  });
  get("whole").addEventListener("change", () => law && draw());
  get("as-table").addEventListener("toggle", table);
  narrow.addEventListener("change", () => law && draw());
  read();
})();
