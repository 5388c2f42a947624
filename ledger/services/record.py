"""The record of an experiment: what must stay attached to a batch size, in one document with its offset and its digest.

The digest is that of the document's canonical form, so whoever holds a copy can tell whether it is still what was recorded.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ledger.domain import conventions
from ledger.domain.exposure import Total
from ledger.domain.intervals import Intervals
from ledger.services import data, reports
from ledger.services.books import Books
from ledger.storage import series

QUANTILE_ROWS = 2_000
"""Updates that the quantiles are read from; where there are more, so many spread evenly over the trajectory."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
RATES = (
    ("valid_targets", "applied", "update"),
    ("valid_targets", "preserved", "wall"),
    ("consumed_tokens", "applied", "update"),
    ("updates", "applied", "update"),
)
"""Quantity, work and time of the rates: how fast it trains, and how fast it comes to something that is kept."""
EXPOSURE_KEYS = ("updates", "balance", "recomputed", "evaluation", "passed_over", "occupancy")
"""Findings are no part of a record: some of them come and go with the time of asking."""
DIGEST_PREFIX = "sha256:"


def canonical(document: Mapping[str, Any]) -> bytes:
    """The document's canonical form: UTF-8 JSON without its digest, keys sorted, no spaces, non-finite numbers by name.

    >>> canonical({"b": 1, "a": [0.5, float("inf")], "digest": "sha256:…"})
    b'{"a":[0.5,"Infinity"],"b":1}'
    """
    bare = {key: value for key, value in document.items() if key != "digest"}
    return json.dumps(_finite(bare), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {str(key): _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest that a record must bear."""
    return DIGEST_PREFIX + hashlib.sha256(canonical(document)).hexdigest()


def record(books: Books) -> dict[str, Any]:
    """Everything that an experiment with the batch size must be read with, at one offset.

    Law: digest = SHA-256 of the canonical form; the same for the same offset. Of a fork the data also depends on the run it came from.
    """
    exposure = reports.work(books)
    attempts = list(_attempts(books))
    document: dict[str, Any] = {
        "project": books.run.project,
        "run": books.run.name,
        "as_of": books.as_of(),
        "forked_from": books.run.forked_from,
        "trajectory": exposure["trajectory"],
        "accepted_checkpoint": exposure["accepted_checkpoint"],
        "attempts": attempts,
        "conventions_changed": _changed([item["conventions"] for item in attempts if item["on_trajectory"]]),
        "streams": streams(books),
        "valid_token_batch": valid_token_batch(books),
        "exposure": {key: exposure[key] for key in EXPOSURE_KEYS},
        "objective": {key: value for key, value in reports.objective(books).items() if key != "as_of"},
        "rates": [reports.rate(books, quantity, work, [time]) for quantity, work, time in RATES],
    }
    return document | {"digest": digest_of(document)}


def _attempts(books: Books) -> Iterator[dict[str, Any]]:
    """What held in each attempt, oldest first."""
    place = {segment.attempt: segment for segment in books.path}
    for ordinal in books.tree.order:
        launch, declared = books.launches[ordinal], books.conventions(ordinal)
        shards, segment = launch.shards(), place.get(ordinal)
        yield {
            "attempt": books.name(ordinal),
            "on_trajectory": segment is not None,
            "after": None if segment is None else segment.after,
            "through": None if segment is None else books.through(segment),
            "conventions": declared,
            "loss_scale_rule": conventions.loss_scale_rule(declared),
            "sequence_length": declared.get("sequence_length"),
            "topology": {
                "data_parallel_ranks": shards.dp_count,
                "shards": shards.shard_count,
                "ranks": shards.world_size,
                "accelerators": declared.get("accelerators"),
                **{axis: (launch.layout or {}).get(axis) for axis in ("dp", "tp", "pp", "cp", "cp_counts")},
            },
        }


def _changed(declared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Conventions that are not the same in all attempts of the trajectory."""
    keys = sorted({key for item in declared for key in item})
    return [key for key in keys if any(item.get(key) != declared[0].get(key) for item in declared)]


def streams(books: Books) -> list[dict[str, Any]]:
    """Each stream's share of what applied updates of the trajectory drew, repeats counted."""
    unit = conventions.data_unit(books.conventions(books.head))
    drawn: dict[str, list[Any]] = {}
    for item in books.once(data.covered):
        drawn.setdefault(item.stream, []).append(item)
    totals = {name: sum(item.effective_total for item in items) for name, items in drawn.items()}
    whole = sum(totals.values())
    return [
        {
            "stream": name,
            "unit": unit,
            "epochs": len(items),
            "effective_total": totals[name],
            "effective_unique": sum(item.effective_unique for item in items),
            "share": totals[name] / whole if whole else None,
        }
        for name, items in sorted(drawn.items())
    ]


def trajectory_totals(books: Books) -> list[Total]:
    """The totals of what was applied on the trajectory."""
    fates = books.fates
    applied = (total for total in books.totals if fates.outcome(total.attempt, total.outcome) == "applied")
    return [total for total in applied if fates.fate(total.attempt, total.first, "applied") != "lost"]


def valid_token_batch(books: Books) -> dict[str, Any]:
    """How the valid-token batch of applied updates on the trajectory is distributed; it costs the totals and a bounded number of rows."""
    totals = trajectory_totals(books)
    updates, lacking = sum(total.attempts for total in totals), sum(total.unknown["valid_targets"] for total in totals)
    envelopes = [total.extras["envelopes"]["valid_targets"] for total in totals if "valid_targets" in total.extras.get("envelopes", {})]
    known = updates - lacking
    # Totals that were folded before envelopes were kept have none; then the extremes are unknown, not those of the rest.
    whole = sum(item[0] for item in envelopes) == known and known > 0
    exact_sum = sum(total.known["valid_targets"] for total in totals)
    mean = (exact_sum if not lacking else sum(item[1] for item in envelopes)) / known if whole else None
    return {
        "unit": "targets",
        "updates": updates,
        "updates_unknown": lacking,
        "lowest": int(min(item[2] for item in envelopes)) if whole else None,
        "highest": int(max(item[3] for item in envelopes)) if whole else None,
        "mean": mean,
        **_quantiles(books, known),
    }


def _quantiles(books: Books, known: int) -> dict[str, Any]:
    """Quantiles by the nearest rank, so that each is the batch of an update that was read."""
    spans = [(segment.attempt, segment.after, books.through(segment)) for segment in books.path]
    numbers = {
        attempt: Intervals.of(
            (max(start, after + 1) if after else start, min(stop, through + 1))
            for start, stop in books.numbers(attempt)
            if start <= through and stop > after
        )
        for attempt, after, through in spans
    }
    rows = series.spread(books.connection, books.run.id, numbers, QUANTILE_ROWS, series.BATCH)
    found = sorted(
        row.known_valid_targets
        for row in rows
        if books.fates.outcome(row.attempt, row.outcome) == "applied" and not row.unknown_valid_targets
    )
    size = len(found)
    return {
        "quantiles": {f"{share:g}": found[max(0, math.ceil(share * size) - 1)] if size else None for share in QUANTILES},
        "quantiles_from": size,
        "quantiles_exact": size == known,
    }
