"""What the pages show, worked out from reports; the templates only lay it out."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ledger.domain.exposure import BUCKETS
from ledger.web.drawing import BAR_WIDTH_UNITS, stacked_bar
from ledger.web.wording import figure, finding_place, sentences, share, term_figure

Json = Mapping[str, Any]
TERM_WORDS = {
    "preserved": "applied, on the trajectory, within an accepted checkpoint",
    "pending": "applied or undecided, on the trajectory, not yet within an accepted checkpoint",
    "lost_to_restart": "applied, then left behind when a later attempt resumed from before it",
    "skipped": "computed, but the optimizer did not apply it",
    "dropped": "computed, but never part of an applied or skipped update",
}
REST_PARTS = {
    "exposure": "exposure",
    "updates": "updates?points=200",
    "coverage": "coverage",
    "objective": "objective",
    "rates": "rates",
    "findings": "findings",
    "checkpoints": "checkpoints",
    "raw log": "events",
}


def run_path(project: str, run: str) -> str:
    """The page of a run."""
    return f"/projects/{quote(project, safe='')}/runs/{quote(run, safe='')}"


def rest_path(project: str, run: str, part: str = "") -> str:
    """A REST call on a run."""
    return "/v1" + run_path(project, run) + (f"/{part}" if part else "")


def runs_view(page: Json) -> dict[str, Any]:
    """The list of runs."""
    rows = [
        {
            "name": f"{item['project']}/{item['run']}",
            "href": run_path(item["project"], item["run"]),
            "entries": figure(item["events"]),
            "opened_at": item["opened_at"],
            "last_event_at": item["last_event_at"],
        }
        for item in page["items"]
    ]
    more = page["next_cursor"]
    return {"rows": rows, "next": None if more is None else f"/?cursor={quote(more, safe='')}"}


def run_view(run: Json, exposure: Json, findings: Sequence[Json], quantity: str) -> dict[str, Any]:
    """The page of a run, with its balance in one quantity."""
    project, name = run["project"], run["run"]
    balance = exposure["balance"][quantity]
    head = next((item for item in run["attempts"] if item["attempt"] == exposure["as_of"]["head"]), None)
    return {
        "title": f"{project}/{name}",
        "state": _state(head),
        "refreshes": head is None or head["ended"] is None,
        "sentences": sentences(exposure),
        "quantity": quantity.replace("_", " "),
        "unit": balance["unit"],
        "choices": [
            {"words": other.replace("_", " "), "href": f"?quantity={other}", "chosen": other == quantity} for other in exposure["balance"]
        ],
        "bar": {"pieces": stacked_bar(balance), "width": BAR_WIDTH_UNITS, "description": _bar_words(balance)},
        "attempted": term_figure(balance, "attempted"),
        "terms": [_term(balance, term) for term in BUCKETS],
        "unknown_updates": balance["updates_unknown"],
        "beside": _beside(exposure, quantity),
        "attempts": [_attempt(item, exposure["trajectory"]) for item in reversed(run["attempts"])],
        "findings": [{"kind": item["kind"], "place": finding_place(item), "message": item["message"]} for item in findings],
        "finding_counts": {kind: figure(count) for kind, count in exposure["findings"].items() if count},
        "links": [{"words": words, "href": rest_path(project, name, part)} for words, part in REST_PARTS.items()],
        "exposure_href": rest_path(project, name, "exposure"),
        "findings_href": rest_path(project, name, "findings"),
        "run_href": rest_path(project, name),
    }


def _state(head: Json | None) -> str:
    if head is None:
        return "no attempt yet"
    return f"{head['attempt']} is running" if head["ended"] is None else f"{head['attempt']} {head['ended']}"


def _bar_words(balance: Json) -> str:
    parts = [f"{term.replace('_', ' ')} {term_figure(balance, term)}" for term in BUCKETS]
    return f"{term_figure(balance, 'attempted')} {balance['unit']} attempted: {', '.join(parts)}"


def _term(balance: Json, term: str) -> dict[str, Any]:
    reasons = balance.get("skipped_by_reason") or {} if term == "skipped" else {}
    return {
        "term": term,
        "words": term.replace("_", " "),
        "meaning": TERM_WORDS[term],
        "figure": term_figure(balance, term),
        "share": share(balance[term], balance["attempted"]),
        "reasons": [f"{reason.replace('_', ' ')} {figure(count)}" for reason, count in reasons.items()],
    }


def _beside(exposure: Json, quantity: str) -> list[dict[str, str]]:
    named = (
        ("recomputed", exposure["recomputed"], "work whose update number had been attempted before; part of the balance"),
        ("evaluation", exposure["evaluation"], "outside the balance"),
        ("passed over", exposure["passed_over"], "data jumped on purpose; nothing was processed"),
    )
    rows = [{"words": words, "figure": figure(values[quantity]), "meaning": text} for words, values, text in named if quantity in values]
    if quantity == "updates":
        rows.insert(0, {"words": "recomputed", "figure": figure(exposure["updates"]["recomputed"]), "meaning": named[0][2]})
    return rows


def _attempt(item: Json, trajectory: Sequence[Json]) -> dict[str, Any]:
    stretch = next((segment for segment in trajectory if segment["attempt"] == item["attempt"]), None)
    source = item["resumed_from"]
    return {
        "attempt": item["attempt"],
        "from": "scratch" if source is None else f"checkpoint {source['checkpoint']}",
        "on_trajectory": "off the trajectory" if stretch is None else _through(stretch),
        "ended": item["ended"] or "running",
        "started_at": item["started_at"] or item.get("opened_at") or "",
    }


def _through(segment: Json) -> str:
    if segment["through"] is None or (segment["after"] is not None and segment["through"] <= segment["after"]):
        return "no update yet"
    return f"updates {(segment['after'] or 0) + 1:,} to {segment['through']:,}"
