"""Runs side by side: what differs first, then exposure in every unit, then losses at equal places; and what that does not show."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ledger.domain.errors import InvalidRequest
from ledger.domain.exposure import BUCKETS
from ledger.services import curves
from ledger.services.books import Reports, open_books
from ledger.services.record import record

LEAST_RUNS, MOST_RUNS = 2, 8
SHARE_DIGITS = 4
"""Two mixtures are the same where their shares agree to so many digits: shares of whole positions seldom agree to the last."""
CONVENTIONS = (
    "objective", "target_rule", "gradient_reducer", "accumulation_divides", "remainder_policy", "optimizer", "schedule_clock", "precision",
    "sample_meaning", "data",
)  # fmt: skip
"""Documented conventions in the order in which a reader needs them; the sequence length and the accelerators are compared apart."""
APART = ("sequence_length", "accelerators")
TOPOLOGY = ("data_parallel_ranks", "shards", "ranks", "accelerators", "dp", "tp", "pp", "cp", "cp_counts")
NOT_EQUAL_GRADIENTS = (
    "Equal token counts are not equal gradients: runs with other sequence lengths, document mixtures, dropout or reduction order take "
    "other steps from the same number of tokens."
)
NO_LEARNING_RATE_RULE = (
    "A larger valid-token batch implies no universal learning-rate rule: what follows for a learning rate depends on the optimizer, the "
    "schedule and the data, and is to be measured."
)
OTHER_LOSSES = "The runs differ in {}, so their losses are not the same quantity and their curves cannot be read against each other."


def compare(reports: Reports, runs: Sequence[tuple[str, str]], at: str = "applied_updates", points: int = 100) -> dict[str, Any]:
    """Records side by side, each at its own offset.

    Raises: InvalidRequest, RunUnknown, ProjectionBehind.
    """
    if not LEAST_RUNS <= len(runs) <= MOST_RUNS or len(set(runs)) < len(runs):
        raise InvalidRequest(f"give {LEAST_RUNS} to {MOST_RUNS} different runs", pointer="/run")
    records, courses = [], []
    for project, run in runs:
        with open_books(reports, project, run) as books:
            records.append(record(books))
            courses.append(curves.course_of(books, at))
    differences = list(_differences(records))
    return {
        "runs": [
            {"project": item["project"], "run": item["run"], "as_of": item["as_of"], "digest": item["digest"]} for item in records
        ],
        "differences": differences,
        "not_declared": _not_declared(records),
        "statements": _statements(differences),
        "exposure": _exposure(records),
        "curves": curves.curves(courses, at, points),
        "records": records,
    }


def _along(item: Mapping[str, Any], read: Any) -> Any:
    """What held along a run's trajectory: one value, or the values in order where it changed."""
    values: list[Any] = []
    for attempt in item["attempts"]:
        if attempt["on_trajectory"] and (not values or values[-1] != read(attempt)):
            values.append(read(attempt))
    return values[0] if len(values) == 1 else {"changed": values} if values else None


def _same(values: Sequence[Any]) -> bool:
    return len({json.dumps(value, sort_keys=True) for value in values}) == 1


def _differences(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is not the same in all runs: conventions, then topology, sequence length, origin, data and batch."""
    declared = {key for item in records for attempt in item["attempts"] for key in attempt["conventions"]}
    rest = sorted(declared - {*CONVENTIONS, *APART})
    rows: list[tuple[str, str, list[Any]]] = [
        ("convention", key, [_along(item, lambda attempt, key=key: attempt["conventions"].get(key)) for item in records])
        for key in (*CONVENTIONS, *rest)
    ]
    rows += [
        ("topology", key, [_along(item, lambda attempt, key=key: attempt["topology"].get(key)) for item in records]) for key in TOPOLOGY
    ]
    rows.append(("sequence length", "sequence_length", [_along(item, lambda attempt: attempt["sequence_length"]) for item in records]))
    rows.append(("origin", "forked_from", [_origin(item) for item in records]))
    rows.append(("data mixture", "streams", [_mixture(item) for item in records]))
    rows.append(("valid-token batch", "mean", [item["valid_token_batch"]["mean"] for item in records]))
    for kind, name, values in rows:
        if not _same(values):
            yield {"kind": kind, "name": name, "values": values}


def _origin(item: Mapping[str, Any]) -> str:
    source = item["forked_from"]
    return "from scratch" if source is None else f"{source['project']}/{source['run']}, checkpoint {source['checkpoint']}"


def _mixture(item: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        stream["stream"]: None if stream["share"] is None else round(stream["share"], SHARE_DIGITS)
        for stream in item["streams"]
        if stream["effective_total"]
    }


def _not_declared(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """For each run the documented conventions that it does not declare: what is not declared is not known to be equal."""
    missing = []
    for item in records:
        along = [attempt["conventions"] for attempt in item["attempts"] if attempt["on_trajectory"]]
        missing.append([key for key in (*CONVENTIONS, "sequence_length") if not along or any(given.get(key) is None for given in along)])
    return missing


def _statements(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """What must be said beside the figures."""
    quantity = [item["name"].replace("_", " ") for item in differences if item["name"] in ("objective", "target_rule")]
    first = [OTHER_LOSSES.format(" and ".join(quantity))] if quantity else []
    return [*first, NOT_EQUAL_GRADIENTS, NO_LEARNING_RATE_RULE]


def _exposure(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each term of the balance in each unit, one value a run; null where a run does not know it, with what it knows beside it."""
    balances = [item["exposure"]["balance"] for item in records]
    rows = []
    for quantity, first in balances[0].items():
        for term in ("attempted", *BUCKETS):
            entries = [balance[quantity] for balance in balances]
            rows.append(
                {
                    "quantity": quantity,
                    "unit": first["unit"],
                    "term": term,
                    "values": [entry[term] for entry in entries],
                    "known": [(entry.get("known") or entry)[term] for entry in entries],
                }
            )
        if quantity in records[0]["exposure"]["recomputed"]:
            values = [item["exposure"]["recomputed"][quantity] for item in records]
            rows.append({"quantity": quantity, "unit": first["unit"], "term": "recomputed", "values": values, "known": values})
    return rows
