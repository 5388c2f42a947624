"""What the pages show, worked out from reports; the templates only lay it out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ledger.domain.exposure import BUCKETS
from ledger.web.drawing import BAR_WIDTH_UNITS, stacked_bar
from ledger.web.wording import balance_sentence, counted, figure, finding_place, moment, sentences, share, stretch_words, term_figure, width

Json = Mapping[str, Any]
MAIN_QUANTITY = "valid_targets"
CHECKPOINTS_SHOWN = 10
TERM_WORDS = {
    "preserved": "applied, on the trajectory, within an accepted checkpoint",
    "pending": "applied or undecided, on the trajectory, not yet within an accepted checkpoint",
    "lost_to_restart": "applied or undecided, left behind when a later attempt resumed from before it",
    "skipped": "computed, but the optimizer did not apply it",
    "dropped": "computed, but never part of an applied or skipped update",
}
BESIDE_WORDS = {
    "recomputed": "work whose update number had been attempted before; part of the balance",
    "evaluation": "outside the balance",
    "passed over": "data jumped on purpose; nothing was processed",
}
STATE_WORDS = {"started": "not accepted yet", "accepted": "accepted", "rejected": "rejected"}
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


@dataclass(frozen=True, slots=True)
class Shown:
    """The reports that the page of a run is made from."""

    run: Json
    exposure: Json
    coverage: Json
    objective: Json
    checkpoints: Json
    findings: Sequence[Json]
    rates: Sequence[Json]


def run_path(project: str, run: str) -> str:
    """The page of a run."""
    return f"/runs/{quote(project, safe='')}/{quote(run, safe='')}"


def rest_path(project: str, run: str, part: str = "") -> str:
    """A REST call on a run."""
    return f"/v1/projects/{quote(project, safe='')}/runs/{quote(run, safe='')}" + (f"/{part}" if part else "")


def runs_view(page: Json, exposures: Sequence[Json | None]) -> dict[str, Any]:
    """The list of runs."""
    rows = [_run_row(item, exposure) for item, exposure in zip(page["items"], exposures, strict=True)]
    more = page["next_cursor"]
    return {"rows": rows, "next": None if more is None else f"/?cursor={quote(more, safe='')}"}


def _run_row(item: Json, exposure: Json | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": f"{item['project']}/{item['run']}",
        "href": run_path(item["project"], item["run"]),
        "last_event_at": moment(item["last_event_at"]),
    }
    if exposure is None:
        return row | {"attempted": "not read yet", "bar": None, "preserved": "", "findings": ""}
    balance = exposure["balance"][MAIN_QUANTITY]
    return row | {
        "attempted": term_figure(balance, "attempted"),
        "bar": _bar(balance),
        "preserved": share(balance["preserved"], balance["attempted"]),
        "findings": figure(sum(exposure["findings"].values())),
    }


def run_view(shown: Shown, quantity: str) -> dict[str, Any]:
    """The page of a run, with its balance in one quantity."""
    run, exposure = shown.run, shown.exposure
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
        "equation": balance_sentence(balance),
        "bar": _bar(balance),
        "attempted": term_figure(balance, "attempted"),
        "terms": [_term(balance, term) for term in BUCKETS],
        "unknown": _unknown(balance, quantity),
        "beside": _beside(exposure, quantity),
        "rates": [item["statement"] for item in shown.rates if item["value"] is not None],
        "attempts": [_attempt(item, exposure) for item in reversed(run["attempts"])],
        "coverage": [_stream(item) for item in shown.coverage["streams"]],
        "more_streams": shown.coverage["next_cursor"] is not None,
        "objective": shown.objective["statement"],
        "objective_figures": list(_objective_figures(shown.objective)),
        "checkpoints": _checkpoints(shown.checkpoints),
        "findings": [{"kind": item["kind"], "place": finding_place(item), "message": item["message"]} for item in shown.findings],
        "finding_counts": {kind: figure(count) for kind, count in exposure["findings"].items() if count},
        "links": [{"words": words, "href": rest_path(project, name, part)} for words, part in REST_PARTS.items()],
        "rest": {part: rest_path(project, name, part) for part in ("exposure", "coverage", "checkpoints", "findings")},
        "run_href": rest_path(project, name),
    }


def _state(head: Json | None) -> str:
    if head is None:
        return "no attempt yet"
    return f"{head['attempt']} is running" if head["ended"] is None else f"{head['attempt']} {head['ended']}"


def _bar(balance: Json) -> dict[str, Any]:
    """The stacked bar: each piece with what it says when it is pointed at, and the whole in words."""
    pieces = [
        {
            "term": piece.term,
            "start": piece.start_units,
            "width": piece.width_units,
            "words": f"{piece.term.replace('_', ' ')} {term_figure(balance, piece.term)} {balance['unit']}",
        }
        for piece in stacked_bar(balance)
    ]
    return {"pieces": pieces, "width": BAR_WIDTH_UNITS, "description": balance_sentence(balance)}


def _unknown(balance: Json, quantity: str) -> str | None:
    if not balance["updates_unknown"]:
        return None
    where = counted(balance["updates_unknown"], "group of work", "groups of work")
    unknown = f"The {quantity.replace('_', ' ')} of {where} are unknown."
    return f"{unknown} Figures after “at least” are lower bounds, and the bar shows only those."


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
    named = {"recomputed": dict(exposure["recomputed"]), "evaluation": exposure["evaluation"], "passed over": exposure["passed_over"]}
    named["recomputed"]["updates"] = exposure["updates"]["recomputed"]
    return [
        {"words": words, "figure": figure(values[quantity]), "meaning": BESIDE_WORDS[words]}
        for words, values in named.items()
        if quantity in values
    ]


def _attempt(item: Json, exposure: Json) -> dict[str, Any]:
    stretch = next((segment for segment in exposure["trajectory"] if segment["attempt"] == item["attempt"]), None)
    source = item["resumed_from"]
    return {
        "attempt": item["attempt"],
        "from": "scratch" if source is None else f"checkpoint {source['checkpoint']}",
        "on_trajectory": "off it" if stretch is None else stretch_words(stretch, exposure["updates"]["attempted"] == 0),
        "ranks": figure(item["world_size"]),
        "ended": item["ended"] or "running",
        "started_at": moment(item["started_at"] or item.get("opened_at")),
    }


def _stream(item: Json) -> dict[str, str]:
    some = " or more" if item.get("truncated") else ""
    widths = {name: figure(width(item[name])) + some for name in ("repeated", "gaps", "without_effect", "passed_over")}
    return {
        "stream": item["stream"],
        "epoch": figure(item["epoch"]),
        "unit": "positions" if item["unit"] == "position" else "sample ids",
        "effective": figure(item["effective_unique"]),
        **widths,
    }


def _objective_figures(objective: Json) -> Iterable[dict[str, str]]:
    gap = objective["largest_gap"]
    if objective["token_mean_of_last"] is not None:
        yield {"words": "token mean of the newest update", "figure": f"{objective['token_mean_of_last']:.4f} nats"}
    if gap is not None and gap["token_mean"] != gap["mean_of_rank_means"]:
        between = f"{gap['token_mean']:.4f} and {gap['mean_of_rank_means']:.4f} nats"
        yield {"words": f"token mean and mean of rank means, where they differ most (update {gap['update']:,})", "figure": between}
    elif gap is not None:
        yield {"words": "token mean and mean of rank means", "figure": "the same wherever both are known"}
    if objective["loss_scale_rule"]:
        yield {"words": "loss scale that gives the gradient of the token mean", "figure": str(objective["loss_scale_rule"])}


def _checkpoints(page: Json) -> dict[str, Any]:
    found = page["checkpoints"]
    rows = [
        {
            "checkpoint": item["checkpoint"],
            "attempt": item["attempt"],
            "update": figure(item["update"]),
            "state": STATE_WORDS[item["state"]] + (" by a resume" if item["accepted_by"] == "resume" else ""),
            "on_trajectory": "on it" if item["on_trajectory"] else "off it",
        }
        for item in reversed(found[-CHECKPOINTS_SHOWN:])
    ]
    whole = figure(len(found)) + ("" if page["next_cursor"] is None else " or more")
    return {"rows": rows, "caption": f"the newest {len(rows)} of {whole}" if len(found) > len(rows) else "newest first"}
