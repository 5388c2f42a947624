"""What the smaller pages of a run show: rates, conventions, findings, checkpoints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ledger.domain import rates
from ledger.domain.findings import ADVICE
from ledger.web.addresses import checkpoint_path, rest_path, run_path, with_query
from ledger.web.wording import counted, figure, finding_place, lasting, span_words

Json = Mapping[str, Any]
QUANTITY_NAMES = ("valid_targets", "consumed_tokens", "input_slots", "samples", "updates")
WINDOW_KINDS = {"run": "the whole run", "attempt": "one attempt", "last": "the last seconds", "updates": "a span of updates"}
STATE_WORDS = {"started": "not accepted yet", "accepted": "accepted", "rejected": "rejected"}
UNDECLARED = "not declared"
OUTCOME_WORDS = {
    "applied": "the optimizer applied it",
    "skipped": "computed, but not applied",
    "abandoned": "computed, never committed",
    "held": "waiting for a shard or for an operator",
    "open": "a group without an outcome",
    "discarded": "microbatches that entered no update",
}


def rates_view(
    asked: Json, answer: Json | None, error: str | None, usual: Sequence[Json], attempts: Sequence[str], rest: str
) -> dict[str, Any]:
    """The page of the rates: the one that was asked for, and those that are usual."""
    value = None if answer is None else answer["value"]
    return {
        "asked": asked,
        "error": error,
        "value": None if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}",
        "answer": answer,
        "numerator": "" if answer is None else figure(answer["numerator"]),
        "seconds": "" if answer is None else lasting(answer["seconds"]),
        "rate_rest": rest,
        "quantities": QUANTITY_NAMES,
        "works": rates.WORK_WORDS,
        "times": {name: words for name, words in rates.TIME_WORDS.items() if name != "wall"},
        "windows": WINDOW_KINDS,
        "attempts": attempts,
        "usual": [
            {
                "work": rates.WORK_WORDS[item["work"]],
                "time": " and ".join(rates.TIME_WORDS[name] for name in item["time"]),
                "value": "unknown" if item["value"] is None else f"{item['value']:,.6g} {item['unit']}",
                "statement": item["statement"],
            }
            for item in usual
        ],
    }


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in sorted(value.items())) or UNDECLARED
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNDECLARED if value is None else str(value)


def conventions_view(declared: Sequence[tuple[Json, Json]], run_conventions: Json) -> dict[str, Any]:
    """The page of the conventions: `declared` holds each attempt, oldest first, with the conventions that hold in it."""
    changes: list[dict[str, str]] = []
    layouts: list[dict[str, Any]] = []
    since: dict[str, str] = {}
    before: Json = {}
    for place, (attempt, conventions) in enumerate(declared):
        for key in sorted({*before, *conventions}):
            old, new = before.get(key), conventions.get(key)
            if place and old != new:
                changes.append({"attempt": attempt["attempt"], "key": key.replace("_", " "), "old": _shown(old), "new": _shown(new)})
            if old != new:
                since[key] = attempt["attempt"]
        before = conventions
        layout = {"words": _shown(attempt["layout"] or {"dp": 1}), "ranks": figure(attempt["world_size"])}
        if layouts and layouts[-1]["words"] == layout["words"]:
            layouts[-1] |= {"through": attempt["attempt"], "count": layouts[-1]["count"] + 1}
        else:
            layouts.append(layout | {"first": attempt["attempt"], "through": attempt["attempt"], "count": 1})
    now = before if declared else run_conventions
    return {
        "rows": [
            {
                "key": key.replace("_", " "),
                "value": _shown(value),
                "since": since.get(key, "the run"),
                "by_run": "yes" if run_conventions.get(key) == value else "overlaid by the attempt",
            }
            for key, value in sorted(now.items())
        ],
        "changes": changes,
        "layouts": [
            row
            | {
                "attempts": row["first"] if row["count"] == 1 else f"{row['first']} to {row['through']}",
                "count": figure(row["count"]),
            }
            for row in layouts
        ],
    }


def findings_view(page: Json, counts: Mapping[str, int], kind: str | None, project: str, run: str) -> dict[str, Any]:
    """The page of the findings: of all kinds or of one, with the numbers that disagree and what to do."""
    path = run_path(project, run, "findings")
    return {
        "kinds": [
            {"words": name.replace("_", " "), "count": figure(count), "href": f"{path}?kind={name}", "chosen": name == kind}
            for name, count in counts.items()
            if count
        ],
        "kind": None if kind is None else kind.replace("_", " "),
        "all_href": path,
        "rows": [_finding(item) for item in page["findings"]],
        "more": None if page["next_cursor"] is None else with_query(path, kind=kind, cursor=page["next_cursor"]),
    }


def _finding(item: Json) -> dict[str, Any]:
    numbers = [("expected", item["expected"]), ("found", item["found"])]
    ranges = item.get("ranges") or []
    return {
        "kind": item["kind"].replace("_", " "),
        "place": finding_place(item),
        "message": item["message"],
        "advice": ADVICE[item["kind"]],
        "settled": not item["open"],
        "numbers": [
            {"words": words, "figure": f"{value:,}" if isinstance(value, int) else str(value)}
            for words, value in numbers
            if value is not None
        ],
        "ranges": ", ".join(span_words(start, stop) for start, stop in ranges),
    }


def _checkpoint(item: Json, project: str, run: str) -> dict[str, Any]:
    return {
        "checkpoint": {
            "words": item["checkpoint"],
            "href": checkpoint_path(project, run, item["checkpoint"], item["attempt"], item["update"]) if item["attempt"] else None,
        },
        "attempt": item["attempt"] or "another run",
        "update": figure(item["update"]),
        "state": STATE_WORDS[item["state"]] + (" by a resume" if item["accepted_by"] == "resume" else ""),
        "on": "on it" if item["on_trajectory"] else "off it",
        "on_words": "on the trajectory" if item["on_trajectory"] else "off the trajectory",
        "seconds": lasting(item.get("seconds")),
        "uri": item["uri"] or "",
    }


CHECKPOINT_COLUMNS = (
    ("checkpoint", "checkpoint", ""),
    ("attempt", "of attempt", ""),
    ("update", "after update", "figure"),
    ("state", "state", ""),
    ("on", "trajectory", ""),
    ("seconds", "seconds", "figure"),
    ("uri", "saved at", ""),
)


def checkpoints_view(found: Sequence[Json], number: int, pages: int, project: str, run: str) -> dict[str, Any]:
    """The page of the checkpoints, newest first."""
    path = run_path(project, run, "checkpoints")
    columns = [column for column in CHECKPOINT_COLUMNS if column[0] != "uri" or any(item["uri"] for item in found)]
    return {
        "columns": columns,
        "rows": [_checkpoint(item, project, run) for item in found],
        "number": number,
        "pages": pages,
        "newer": None if number == 1 else with_query(path, page=number - 1),
        "older": None if number == pages else with_query(path, page=number + 1),
    }


def checkpoint_view(report: Json, project: str, run: str) -> dict[str, Any]:
    """The page of a checkpoint: the path that leads to it, across forks, and all that was done on that path."""
    outcomes = [name for name in OUTCOME_WORDS if name in report["updates"]]
    quantities = list(report["exposure"])
    return {
        "item": _checkpoint(report, project, run),
        "positions": list(_positions(report["positions"])),
        "lead": f"{counted(len(report['path']), 'stretch', 'stretches')} of work lead to it: "
        + ", ".join(f"{report['updates'][name]:,} {name}" for name in outcomes if report["updates"][name] or name == "applied")
        + ".",
        "path": [
            {
                "run": {"words": f"{part['project']}/{part['run']}", "href": run_path(part["project"], part["run"], "trajectory")},
                "attempt": part["attempt"],
                "updates": "none" if part["through"] == part["after"] and part["after"] else _numbers(part),
            }
            for part in report["path"]
        ],
        "outcomes": [
            {
                "outcome": name,
                "meaning": OUTCOME_WORDS[name],
                "updates": figure(report["updates"][name]),
                **{quantity: figure(report["exposure"][quantity].get(name)) for quantity in quantities},
            }
            for name in outcomes
        ],
        "columns": (("updates", "updates"), *((name, name.replace("_", " ")) for name in quantities)),
        "saved_under": rest_path(project, run, "checkpoints"),
        "streams": [_stream(item) for item in report["streams"]],
    }


def _numbers(part: Json) -> str:
    return f"up to {part['through']:,}" if not part["after"] else f"{part['after'] + 1:,} to {part['through']:,}"


def _positions(positions: Mapping[str, Any] | None) -> Iterable[dict[str, str]]:
    for stream, place in sorted((positions or {}).items()):
        yield {"words": f"declared position of stream {stream}", "figure": f"epoch {place['epoch']:,}, position {place['position']:,}"}


def _stream(item: Json) -> dict[str, str]:
    some = " or more" if item.get("truncated") else ""

    def width(name: str) -> str:
        return figure(sum(stop - start for start, stop in item[name])) + some

    return {
        "stream": item["stream"],
        "epoch": figure(item["epoch"]),
        "unit": "positions" if item["unit"] == "position" else "sample ids",
        "effective": figure(item["effective_unique"]),
        **{name: width(name) for name in ("repeated", "gaps", "without_effect", "passed_over")},
    }

