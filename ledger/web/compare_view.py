"""What the page of a comparison shows, in words and figures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ledger.web.addresses import rest_path, run_path, with_query
from ledger.web.curve_drawing import draw
from ledger.web.wording import figure, moment

Json = Mapping[str, Any]
AXIS_WORDS = {"applied_updates": "applied updates", "valid_targets": "valid targets", "consumed_tokens": "consumed tokens"}
LOSS_WORDS = {"token_mean": "Token mean", "reported_loss": "Reported loss"}


def value_words(value: Any) -> str:
    """A declared value as people read it.

    >>> value_words(None), value_words({"changed": [1, None]}), value_words({"unit": "position"}), value_words(True)
    ('not declared', '1, then not declared', 'unit: position', 'yes')
    """
    match value:
        case None:
            return "not declared"
        case bool():
            return "yes" if value else "no"
        case {"changed": list(values)} if len(value) == 1:
            return ", then ".join(value_words(item) for item in values)
        case dict():
            return ", ".join(f"{key}: {value_words(item)}" for key, item in sorted(value.items())) or "none"
        case str():
            return value
        case float():
            return f"{value:,.6g}"
        case int():
            return f"{value:,}"
    return json.dumps(value)


def loss(value: float | None) -> str:
    """An exact loss: as many digits as it takes to read the same double back; `none` where a stretch has none."""
    return "none" if value is None else repr(value)


def _difference_words(item: Json) -> str:
    name = item["name"].replace("_", " ")
    return f"{name} {item['kind']}" if item["kind"] == "valid-token batch" else name


def _exposure(rows: Iterable[Json]) -> list[dict[str, Any]]:
    """The rows of each quantity under its heading."""
    found: list[dict[str, Any]] = []
    for row in rows:
        words = f"{row['quantity'].replace('_', ' ')} [{row['unit']}]"
        if not found or found[-1]["words"] != words:
            found.append({"words": words, "terms": []})
        cells = [figure(value, known) for value, known in zip(row["values"], row["known"], strict=True)]
        found[-1]["terms"].append({"term": row["term"].replace("_", " "), "cells": cells})
    return found


def _charts(curves: Json, names: Sequence[str]) -> list[dict[str, Any]]:
    charts = []
    for name, words in LOSS_WORDS.items():
        drawing = draw(curves["places"], [run[name] for run in curves["runs"]]) if curves["places"] else None
        ends = [f"{run}: {loss(curve[name][-1])} nats" for run, curve in zip(names, curves["runs"], strict=True) if curve[name]]
        charts.append({"name": name, "words": words, "drawing": drawing, "ends": ends})
    return charts


def _curve_rows(curves: Json) -> list[list[str]]:
    return [
        [f"{place:,}", *(loss(run[name][index]) for run in curves["runs"] for name in LOSS_WORDS)]
        for index, place in enumerate(curves["places"])
    ]


def compare_view(found: Json, at: str) -> dict[str, Any]:
    """The values of the page."""
    names = [f"{run['project']}/{run['run']}" for run in found["runs"]]
    query: dict[str, Any] = {"run": names}
    curves = found["curves"]
    return {
        "runs": [
            {
                "name": name,
                "href": run_path(run["project"], run["run"]),
                "record": rest_path(run["project"], run["run"], "record"),
                "digest": run["digest"],
                "events": figure(run["as_of"]["events"]),
                "at": moment(run["as_of"]["at"]),
            }
            for name, run in zip(names, found["runs"], strict=True)
        ],
        "differences": [
            {"kind": item["kind"], "name": _difference_words(item), "cells": [value_words(value) for value in item["values"]]}
            for item in found["differences"]
        ],
        "not_declared": [
            f"{name} does not declare {', '.join(key.replace('_', ' ') for key in keys)}."
            for name, keys in zip(names, found["not_declared"], strict=True)
            if keys
        ],
        "statements": found["statements"],
        "exposure": _exposure(found["exposure"]),
        "batches": [_batch_cells(item["valid_token_batch"]) for item in found["records"]],
        "axes": [
            {"words": words, "href": _address("/compare", query, at=axis), "current": axis == at} for axis, words in AXIS_WORDS.items()
        ],
        "axis": AXIS_WORDS[at],
        "unit": curves["unit"],
        "charts": _charts(curves, names),
        "curve_rows": _curve_rows(curves),
        "reaches": [_reach(name, run, curves["unit"]) for name, run in zip(names, curves["runs"], strict=True)],
        "rates": [[rate["statement"] for rate in item["rates"]] for item in found["records"]],
        "rest": _address("/v1/compare", query, at=at),
        "again": "/compare",
    }


def _address(path: str, query: Mapping[str, Any], **more: str) -> str:
    pairs = [with_query("", run=run)[1:] for run in query["run"]] + [with_query("", **more)[1:]]
    return f"{path}?{'&'.join(pairs)}"


def _batch_cells(batch: Json) -> list[str]:
    quantiles = batch["quantiles"]
    middle = ["unknown" if quantiles[share] is None else f"{quantiles[share]:,}" for share in ("0.05", "0.5", "0.95")]
    mean = "unknown" if batch["mean"] is None else f"{batch['mean']:,.6g}"
    note = "" if batch["quantiles_exact"] else f" (from {batch['quantiles_from']:,} of {batch['updates']:,} updates, evenly spread)"
    return [figure(batch["lowest"]), *(cell + note for cell in middle), figure(batch["highest"]), mean]


def _reach(name: str, run: Json, unit: str) -> str:
    words = f"{name} comes to {run['reach']:,} {unit}"
    if not run["known_throughout"]:
        words += ", where an update lacks the count; what comes behind it has no known place"
    return words + ("." if run["exact"] else "; its points are read off stretches of up to 1,024 updates.")
