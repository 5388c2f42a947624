// Keeps a page current while a job runs: reads it again and changes only what differs, so that scroll, focus and opened parts stay.
"use strict";
(() => {
  const main = document.querySelector("main[data-refresh-seconds]");
  if (!main) return;
  const KEPT = new Set(["open"]);

  const same = (left, right) => left.nodeType === right.nodeType && left.nodeName === right.nodeName && left.id === right.id;

  function become(here, there) {
    if (here.nodeType !== Node.ELEMENT_NODE) {
      if (here.nodeValue !== there.nodeValue) here.nodeValue = there.nodeValue;
      return;
    }
    // What somebody is filling in, or a script is showing, is theirs.
    if (here.nodeName === "FORM" || here.hasAttribute("data-own")) return;
    for (const { name } of [...here.attributes]) {
      if (!there.hasAttribute(name) && !KEPT.has(name)) here.removeAttribute(name);
    }
    for (const { name, value } of there.attributes) {
      if (here.getAttribute(name) !== value && !KEPT.has(name)) here.setAttribute(name, value);
    }
    const news = [...there.childNodes];
    news.forEach((next, place) => {
      const old = here.childNodes[place];
      if (!old) here.append(document.importNode(next, true));
      else if (same(old, next)) become(old, next);
      else old.replaceWith(document.importNode(next, true));
    });
    while (here.childNodes.length > news.length) here.lastChild.remove();
  }

  async function renew() {
    const status = main.querySelector("[data-reading]");
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      become(main, page.querySelector("main"));
      document.title = page.title;
      document.dispatchEvent(new CustomEvent("ledger:renewed"));
    } catch {
      if (status) status.textContent = "the service did not answer; this is the last reading";
    }
  }

  let paused = false;
  function button() {
    const place = main.querySelector("[data-pause]");
    if (!place || place.firstChild) return;
    const made = document.createElement("button");
    made.type = "button";
    made.className = "small";
    const say = () => {
      made.textContent = paused ? "Go on" : "Pause";
      made.setAttribute("aria-pressed", String(paused));
    };
    made.title = "This page renews itself";
    made.addEventListener("click", () => {
      paused = !paused;
      say();
    });
    say();
    place.append(made);
  }

  button();
  // Who comes back to the page wants to see what happened meanwhile.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused && main.dataset.refreshSeconds) void renew();
  });
  async function round() {
    const seconds = Number(main.dataset.refreshSeconds);
    if (seconds && !paused && !document.hidden) await renew();
    // A run that has ended says no time: the page has nothing more to wait for.
    if (seconds) setTimeout(round, seconds * 1000);
  }
  setTimeout(round, Number(main.dataset.refreshSeconds) * 1000);
})();
