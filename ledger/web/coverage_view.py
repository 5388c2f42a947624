"""What the page of the coverage shows: how the positions of each stream were seen, as a picture and as exact ranges."""

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.domain.coverage import StreamCoverage
from ledger.web.addresses import run_path, with_query
from ledger.web.drawing import CELLS, cells, tick_words
from ledger.web.wording import figure, share, span_words

Json = Mapping[str, Any]
RANGES_SHOWN = 50
LANES = (
    ("seen", "trained on once", "by applied updates on the trajectory"),
    ("again", "more than once", "repeated in one epoch"),
    ("gap", "never drawn", "below the highest position drawn, and not passed over"),
    ("idle", "without effect", "drawn, but only by work that no optimizer applied"),
    ("passed", "passed over", "jumped on purpose"),
)
LISTS = {"again": "repeated", "gap": "gaps", "idle": "without_effect", "passed": "passed_over"}


def coverage_view(coverage: Json, sets: Sequence[StreamCoverage], project: str, run: str) -> dict[str, Any]:
    """The page of the coverage."""
    known = {(item.stream, item.epoch): item for item in sets}
    return {
        "streams": [_stream(item, known[item["stream"], item["epoch"]]) for item in coverage["streams"]],
        "cells": CELLS,
        "more": None
        if coverage["next_cursor"] is None
        else with_query(run_path(project, run, "coverage"), cursor=coverage["next_cursor"]),
    }


def _stream(item: Json, found: StreamCoverage) -> dict[str, Any]:
    spans: dict[str, Sequence[Sequence[int]]] = {
        "seen": found.effective.minus(found.repeated).to_list(),
        **{name: getattr(found, kept).to_list() for name, kept in LISTS.items()},
    }
    extent, unit = found.extent, "positions" if item["unit"] == "position" else "sample ids"
    once = item["times_seen"].get("1", 0)
    widths = {name: sum(stop - start for start, stop in own) for name, own in spans.items()}
    return {
        "stream": item["stream"],
        "epoch": item["epoch"],
        "unit": unit,
        "lead": f"{figure(item['effective_unique'])} {unit} trained on, {figure(item['effective_total'])} times in all; "
        f"{figure(once)} of them once.",
        "lanes": [
            {
                "name": name,
                "words": words,
                "meaning": meaning,
                "path": cells(spans[name], extent) if extent and spans[name] else "",
                "figure": figure(widths[name]),
                "share": share(widths[name], extent),
                "description": f"{words}: {figure(widths[name])} of {figure(extent)} {unit}, in {figure(len(spans[name]))} ranges",
            }
            for name, words, meaning in LANES
        ],
        "xs": ["0", tick_words(extent / 2) if extent > 1 else "", tick_words(extent)],
        "times": [{"times": f"{int(times):,}", "figure": figure(width)} for times, width in item["times_seen"].items()],
        "lists": [
            {
                "words": words,
                "spans": [span_words(start, stop) for start, stop in item[LISTS[name]][:RANGES_SHOWN]],
                "more": max(0, len(item[LISTS[name]]) - RANGES_SHOWN),
                "cut": item["truncated"],
            }
            for name, words, _ in LANES
            if name in LISTS and item[LISTS[name]]
        ],
    }
