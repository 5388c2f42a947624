// One update on R ranks: the counts and loss sums are anybody's, the means and factors are the service's.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const START = "30:60 10:40";
  const LARGEST_COUNT = 2 ** 53, LARGEST_LOSS = 1e15;
  const LEFT = 8, TOP = 24, BOTTOM = 186;
  const narrow = matchMedia("(max-width: 760px)");
  let last = null;
  const get = (id) => document.getElementById(id);
  const rows = get("rank-rows"), form = get("rank-controls"), error = get("rank-error");
  const most = Number(get("add-rank").dataset.most);
  const FACTOR_WORDS = { "R/T": "sum × R/T", "1/T": "sum × 1/T", "1/n": "sum × 1/n" };
  let call = null;

  const brief = (value) => (value === null || value === undefined ? "none" : String(Number(value.toPrecision(6))));
  const grouped = (count) => count.toLocaleString("en-US");

  function element(name, parent, words, className) {
    const made = document.createElement(name);
    if (words !== undefined) made.textContent = words;
    if (className) made.className = className;
    parent.append(made);
    return made;
  }

  function field(row, what, words, value) {
    const made = document.createElement("input");
    made.type = "text";
    made.inputMode = what === "targets" ? "numeric" : "decimal";
    made.spellcheck = false;
    made.dataset.what = what;
    made.dataset.words = words;
    made.setAttribute("aria-describedby", "rank-error");
    made.value = value;
    element("td", row).append(made);
  }

  function add(targets, loss) {
    const row = element("tr", rows);
    element("th", row).scope = "row";
    field(row, "targets", "valid targets", targets);
    field(row, "loss", "loss sum", loss);
    const remove = element("button", element("td", row), "×");
    remove.type = "button";
    remove.dataset.remove = "";
  }

  function number() {
    [...rows.rows].forEach((row, rank) => {
      row.cells[0].textContent = rank;
      for (const made of row.querySelectorAll("input")) made.setAttribute("aria-label", `Rank ${rank}, ${made.dataset.words}`);
      row.querySelector("button").setAttribute("aria-label", `Remove rank ${rank}`);
      row.querySelector("button").disabled = rows.rows.length === 1;
    });
    get("add-rank").disabled = rows.rows.length >= most;
  }

  function fill(text) {
    rows.replaceChildren();
    for (const pair of text.split(" ")) add(...pair.split(":"));
    number();
    read();
  }

  function valid(made) {
    const text = made.value.trim();
    if (made.dataset.what === "targets") return /^\d+$/.test(text) && Number(text) <= LARGEST_COUNT;
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) && Math.abs(Number(text)) <= LARGEST_LOSS;
  }

  function read() {
    const inputs = [...rows.querySelectorAll("input")];
    for (const made of inputs) {
      if (valid(made)) made.removeAttribute("aria-invalid");
      else made.setAttribute("aria-invalid", "true");
    }
    const wrong = inputs.filter((made) => !valid(made));
    error.textContent = wrong.length ? `${wrong[0].getAttribute("aria-label")}: give a ${wrong[0].dataset.what === "targets" ? "whole number of 0 or more" : "number"}.` : "";
    if (wrong.length) {
      if (call) call.abort();
      return;
    }
    const query = new URLSearchParams();
    for (const made of inputs) query.append(made.dataset.what === "targets" ? "valid_targets" : "loss_sum", made.value.trim());
    query.append("gradient_reducer", form.elements.reducer.value);
    const text = inputs.map((made) => made.value.trim() + (made.dataset.what === "targets" ? ":" : " ")).join("").trim();
    for (const pill of form.querySelectorAll("[data-ranks]")) pill.setAttribute("aria-pressed", String(pill.dataset.ranks === text));
    ask(`/v1/lab/ranks?${query}`);
  }

  async function ask(address) {
    if (call) call.abort();
    call = new AbortController();
    const mine = call;
    try {
      const reply = await fetch(address, { signal: mine.signal, headers: { Accept: "application/json" } });
      if (!reply.ok) throw new Error(String(reply.status));
      show(await reply.json());
      get("ranks-call").href = address;
      get("ranks").dataset.shown = address;
    } catch (failure) {
      if (failure.name !== "AbortError") error.textContent = "The service did not answer; the figures are those before.";
    }
  }

  function show(found) {
    get("token-mean").textContent = brief(found.token_mean);
    get("mean-of-rank-means").textContent = brief(found.mean_of_rank_means);
    get("scale-rule").textContent = found.loss_scale_rule;
    get("loss-scale").textContent = brief(found.loss_scale);
    const over = found.loss_scale_rule === "R/T" ? found.rank_count : 1;
    get("scale-numbers").textContent = `${over} / ${grouped(found.valid_targets)}`;
    get("verdict").textContent = found.statement;
    table(found);
    draw(found);
    last = found;
  }

  function table(found) {
    const head = get("factors").tHead, body = get("factors").tBodies[0];
    head.replaceChildren();
    body.replaceChildren();
    const top = element("tr", head);
    for (const words of ["rank", "rank mean", ...found.scales.map((scale) => FACTOR_WORDS[scale.rule])]) {
      element("th", top, words, words === "rank" ? "" : "figure").scope = "col";
    }
    found.ranks.forEach((rank, place) => {
      const row = element("tr", body);
      element("th", row, rank.rank).scope = "row";
      element("td", row, brief(rank.mean), "figure");
      for (const scale of found.scales) element("td", row, brief(scale.gradient_factors[place]), "figure");
    });
  }

  function shape(name, attributes, parent, words) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (words !== undefined) made.textContent = words;
    parent.append(made);
  }

  // Each rank's weight when it divides by its own count, around the line where it weighs what it should.
  function draw(found) {
    const chart = get("weights");
    const right = (narrow.matches ? 400 : 720) - LEFT;
    chart.setAttribute("viewBox", `0 0 ${right + LEFT} 220`);
    const own = found.scales.find((scale) => scale.rule === "1/n");
    const factors = own ? own.gradient_factors : [];
    const logs = factors.map((factor) => (factor ? Math.log2(factor) : 0));
    const reach = Math.max(1, ...logs.map(Math.abs));
    const middle = (TOP + BOTTOM) / 2, scale = (BOTTOM - TOP) / 2 / reach;
    const wide = (right - LEFT) / Math.max(factors.length, 1);
    const made = document.createDocumentFragment();
    factors.forEach((factor, rank) => {
      const x = LEFT + rank * wide, tall = Math.abs(logs[rank]) * scale;
      const kind = factor === null ? "" : tall < 0.5 ? "even" : logs[rank] > 0 ? "over" : "under";
      const thick = Math.max(tall, 3);
      if (factor !== null) {
        shape("rect", { class: kind, x: x + wide * 0.15, width: wide * 0.7, y: kind === "even" ? middle - 1.5 : logs[rank] > 0 ? middle - thick : middle, height: thick }, made);
      }
      if (factors.length <= (narrow.matches ? 5 : 8)) {
        const up = logs[rank] >= 0;
        shape("text", { x: x + wide / 2, y: up ? middle - thick - 7 : middle + thick + 19, "text-anchor": "middle" }, made,
          factor === null ? "no targets" : `× ${String(Number(factor.toPrecision(3)))}`);
        shape("text", { x: x + wide / 2, y: 214, "text-anchor": "middle" }, made, `rank ${rank}`);
      }
    });
    shape("line", { class: "expected", x1: LEFT, x2: right, y1: middle, y2: middle }, made);
    chart.replaceChildren(made);
    get("weights-words").textContent = factors.length
      ? "What one target weighs when each rank takes its own mean, on a doubling scale: above the dashed line too much, below too little."
      : "No rank has a valid target, so nothing weighs anything.";
  }

  narrow.addEventListener("change", () => last && draw(last));
  form.addEventListener("input", read);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("click", (event) => {
    const pressed = event.target.closest("button");
    if (!pressed) return;
    if (pressed.dataset.ranks) fill(pressed.dataset.ranks);
    if (pressed.id === "reset-ranks") {
      form.elements.reducer.value = "mean";
      fill(START);
    }
    if (pressed.id === "add-rank") {
      add("10", "20");
      number();
      read();
      rows.lastElementChild.querySelector("input").focus();
    }
    if ("remove" in pressed.dataset) {
      const place = Math.min(pressed.closest("tr").rowIndex - 1, rows.rows.length - 2);
      pressed.closest("tr").remove();
      number();
      read();
      // The focus stays near what was removed instead of going back to the page's top.
      rows.rows[place].querySelector("input").focus();
    }
  });
  fill(START);
})();
