"""Runs that the pages are tested on, and how a test reads a page."""

import time
from typing import Any

from browser import Browser
from server import LedgerServer
from worked_example import RUN, attempt, batch, columns, saved

HOSTILE = '<img src=x onerror=console.error("run")>&amp;"\'</table>'
HELD = "/v1/projects/pretraining/runs/held"
LONG = "/v1/projects/pretraining/runs/long"
LONGEST = "x" * 128
PATIENCE_SECONDS = 8


def play_worked_example(server: LedgerServer) -> None:
    """The worked example."""
    server.call("PUT", RUN, {"conventions": {"objective": "token_mean", "gradient_reducer": "mean"}})
    for name, day, source, updates in (
        ("a1", 1, None, dict.fromkeys(range(1, 8), "applied") | {6: "skipped"}),
        ("a2", 2, "c4", dict.fromkeys((5, 6, 7), "applied")),
    ):
        server.call("PUT", f"{RUN}/attempts/{name}", attempt(day, source))
        for rank in (0, 1):
            server.call("POST", f"{RUN}/attempts/{name}/events", batch(rank, updates=columns(1, updates, rank)))
        last = 4 if source is None else 7
        server.call("POST", f"{RUN}/attempts/{name}/events", batch(0, checkpoints=saved(20, f"c{last}", last)))
        server.call("PATCH", f"{RUN}/attempts/{name}", {"ended": "completed" if source else "crashed"})


def play_unknown(server: LedgerServer) -> None:
    """A run whose second rank lacks a count and contradicts an outcome; all its free text is hostile."""
    server.call("PUT", HELD, {"conventions": {"objective": HOSTILE}})
    server.call("PUT", f"{HELD}/attempts/a1", attempt(1, None))
    for rank in (0, 1):
        block = columns(1, dict.fromkeys((1, 2, 3), "applied"), rank)
        block["ranges"] = [[[HOSTILE, 0, 2 * rank, 2 * rank + 2]], None, None]
        if rank:
            block |= {"valid_targets": [16, 16, None], "outcome": ["skipped", "applied", "applied"], "reason": ["overflow", None, None]}
        server.call("POST", f"{HELD}/attempts/a1/events", batch(rank, updates=block))
    server.call("POST", f"{HELD}/attempts/a1/events", batch(0, checkpoints=saved(20, HOSTILE, 2)))


def table(window: Browser, label: str) -> list[list[str]]:
    """The rows of the table of that name, heads left out."""
    script = (
        "return [...document.querySelector(`table[aria-label='${arguments[0]}']`).tBodies[0].rows]"
        ".map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    rows: list[list[str]] = window.run(script, label)
    return rows


def rows(window: Browser, section: str) -> dict[str, list[str]]:
    """The rows of the first table under a heading, by their first cell's first line."""
    found: list[list[str]] = window.run(
        "return [...document.getElementById(arguments[0]).closest('section').querySelector('table').rows]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))",
        section,
    )
    return {cells[0].splitlines()[0]: cells[1:] for cells in found if cells[0]}


def until(window: Browser, condition: str) -> Any:
    """The value of an expression in the page once it is true; fails after some seconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := window.run(f"return {condition}")):
        assert time.monotonic() < deadline, condition
        time.sleep(0.03)
    return found
