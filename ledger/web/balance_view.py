"""What the page of a run shows: where every count went, as one picture and in exact figures, and what lies beside it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ledger.domain.exposure import BUCKETS
from ledger.web.addresses import rest_path, run_path
from ledger.web.drawing import BAR_WIDTH_UNITS, stacked_bar
from ledger.web.wording import NOTHING, age, balance_sentence, counted, figure, sentences, share, term_figure

Json = Mapping[str, Any]
TERM_WORDS = {
    "preserved": "applied, on the trajectory, within an accepted checkpoint",
    "pending": "at risk: applied or undecided, on the trajectory, not yet within an accepted checkpoint",
    "lost_to_restart": "applied or undecided, left behind when a later attempt resumed from before it",
    "skipped": "computed, but the optimizer did not apply it",
    "dropped": "computed, but never part of an applied or skipped update",
}
BESIDE_WORDS = {
    "recomputed": "work whose update number had been attempted before; part of the balance",
    "evaluation": "outside the balance",
    "passed over": "data jumped on purpose; nothing was processed",
}
REST_PARTS = {
    "exposure": "exposure",
    "trajectory": "trajectory",
    "updates": "updates?points=200",
    "course": "course",
    "coverage": "coverage",
    "objective": "objective",
    "rates": "rates",
    "checkpoints": "checkpoints",
    "findings": "findings",
    "raw log": "events",
}


def bar_of(balance: Json) -> dict[str, Any]:
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


def balance_view(
    run: Json, exposure: Json, objective: Json, rates: Sequence[Json], quantity: str, silence_seconds: float
) -> dict[str, Any]:
    """The page of a run, with its balance in one quantity."""
    project, name = run["project"], run["run"]
    balance = exposure["balance"][quantity]
    return {
        "sentences": sentences(exposure)[:3],
        "tiles": list(_tiles(exposure, silence_seconds)),
        "quantity": quantity.replace("_", " "),
        "unit": balance["unit"],
        "choices": [
            {"words": other.replace("_", " "), "href": f"?quantity={other}", "chosen": other == quantity} for other in exposure["balance"]
        ],
        "equation": balance_sentence(balance),
        "bar": bar_of(balance),
        "attempted": term_figure(balance, "attempted"),
        "terms": [_term(balance, term) for term in BUCKETS],
        "unknown": _unknown(balance, quantity),
        "beside": _beside(exposure, quantity),
        "rates": [item["statement"] for item in rates if item["value"] is not None],
        "objective": objective["statement"],
        "finding_counts": _finding_counts(project, name, exposure["findings"]),
        "forked_from": run["forked_from"],
        "forks": [{"words": f"{fork['project']}/{fork['run']}", "href": run_path(fork["project"], fork["run"])} for fork in run["forks"]],
        "links": [{"words": words, "href": rest_path(project, name, part)} for words, part in REST_PARTS.items()],
        "run_rest": rest_path(project, name),
        "pages": {part: run_path(project, name, part) for part in ("rates", "updates", "findings", "trajectory")},
    }


def _tiles(exposure: Json, silence_seconds: float) -> Iterable[dict[str, str]]:
    updates, accepted, as_of = exposure["updates"], exposure["accepted_checkpoint"], exposure["as_of"]
    last = exposure["trajectory"][-1]["through"] if exposure["trajectory"] and updates["attempted"] else None
    yield {"words": "Head, at update", "figure": NOTHING if last is None else figure(last), "more": as_of["head"] or "no attempt yet"}
    yield {
        "words": "Preserved up to update",
        "figure": "none yet" if accepted is None else figure(accepted["update"]),
        "more": "no accepted checkpoint" if accepted is None else f"by {accepted['checkpoint']} of {accepted['attempt']}",
    }
    held = f"{updates['held']:,} more held" if updates["held"] else "not in a checkpoint yet"
    yield {"words": "At risk, updates", "figure": figure(updates["pending"]), "more": held}
    redone = f"{updates['recomputed']:,} redone"
    yield {"words": "Lost to restarts, updates", "figure": figure(updates["lost_to_restart"]), "more": redone}
    yield {"words": "Last entry", "figure": age(silence_seconds), "more": "of the journal, any rank"}
    open_ones = sum(exposure["findings"].values())
    yield {"words": "Findings", "figure": figure(open_ones), "more": "open" if open_ones else "no contradiction"}


def _finding_counts(project: str, run: str, counts: Mapping[str, int]) -> list[dict[str, str]]:
    page = run_path(project, run, "findings")
    return [
        {"words": kind.replace("_", " "), "count": figure(count), "href": f"{page}?kind={kind}"} for kind, count in counts.items() if count
    ]


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
