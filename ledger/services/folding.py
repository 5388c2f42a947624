"""Groups of rows as rows of the projections."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ledger.domain.columns import Events, Floats, Ranges
from ledger.domain.intervals import Intervals
from ledger.domain.layout import Layout
from ledger.domain.objective import verdict
from ledger.domain.quantities import QUANTITIES
from ledger.domain.trajectory import Save, lies_before
from ledger.domain.updates import (
    NON_ADVANCING,
    OUTCOME_NAMES,
    PART_UPDATE,
    Groups,
    Resolution,
    fold_discards,
    fold_evaluations,
    fold_updates,
)
from ledger.storage.history import pack
from ledger.storage.registry import Launch

CLOCK_SKEW_MICROSECONDS = 60_000_000


def fold(kind: str, events: Events, layout: Layout, resolutions: Sequence[Resolution]) -> Groups:
    """The groups that rows of a kind make."""
    # Losses near the largest double may overflow to infinity, which is kept as a non-finite loss, not warned of.
    with np.errstate(all="ignore"):
        return fold_discards(events, layout) if kind == "discards" else fold_updates(events, layout, resolutions)


def common(left: Intervals, right: Intervals) -> Intervals:
    """Members of both."""
    return left.minus(left.minus(right))


def _floats(values: Floats) -> list[float | None]:
    return [
        value if present and math.isfinite(value) else None
        for value, present in zip(values.values.tolist(), values.present.tolist(), strict=True)
    ]


def _or_null(values: Any) -> list[int | None]:
    return [None if value < 0 else value for value in values.tolist()]


def _ranges(ranges: Ranges) -> list[bytes | None]:
    return [None if spans is None else pack(spans) for spans in ranges.to_list()]


def _reported(values: Floats) -> list[str | None]:
    return [repr(value) if present else None for value, present in zip(values.values.tolist(), values.present.tolist(), strict=True)]


def _quantities(groups: Groups) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for name in QUANTITIES:
        columns[f"known_{name}"] = groups.known[name].tolist()
        columns[f"unknown_{name}"] = groups.unknown[name].tolist()
    return columns


def add_rows(
    rows: dict[str, list[dict[str, Any]]], groups: Groups, run_id: int, launch: Launch, saves: Sequence[Save], received_at: int
) -> None:
    """Adds the rows of `updates`, `findings` and `early` that the groups make."""
    attempt = launch.attempt.ordinal
    columns = {
        "number": groups.number.tolist(),
        "part": groups.part.tolist(),
        "retry": groups.retry.tolist(),
        "outcome": [OUTCOME_NAMES[code] for code in groups.outcome.tolist()],
        "reason": groups.reason,
        "shards_expected": groups.shards_expected.tolist(),
        "shards_reported": groups.shards_reported.tolist(),
        "dp_count": groups.dp_count.tolist(),
        **_quantities(groups),
        "ranges": _ranges(groups.ranges),
        "microbatches": _or_null(np.where(groups.microbatches == 0, -1, groups.microbatches)),
        "loss_sum": _floats(groups.loss),
        "token_mean": _floats(groups.token_mean),
        "mean_of_rank_means": _floats(groups.mean_of_rank_means),
        "mean_of_microbatch_means": _floats(groups.mean_of_microbatch_means),
        "nonfinite_ranks": groups.nonfinite_ranks.tolist(),
        "reported_loss": _reported(groups.reported_loss),
        "schedule_step": _or_null(groups.schedule_step),
        "started_at": _or_null(groups.started_at),
        "seconds": _floats(groups.seconds),
    }
    names = tuple(columns)
    fresh = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for row in fresh:
        row |= {"run_id": run_id, "attempt": attempt, "received_at": received_at}
        row["loss_verdict"], row["loss_factor"] = _verdict(row)
    rows["updates"] += fresh
    rows["findings"] += _findings(groups, fresh)
    rows["early"] += _early(groups, fresh, saves)


def _verdict(row: dict[str, Any]) -> tuple[str | None, float | None]:
    if row["reported_loss"] is None:
        return None, None
    ranks = row["dp_count"]
    accumulation = (row["microbatches"] or 0) // ranks if ranks else 0
    return verdict(float(row["reported_loss"]), row, ranks, accumulation)


def _findings(groups: Groups, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each group shows by itself: contradictions, updates without targets, losses that are not finite."""
    found = [
        _finding(
            rows[item.group], item.kind, rank=item.rank, quantity=item.quantity, expected=item.expected, found=item.found, open=item.open
        )
        for item in groups.disagreements
    ]
    for row in rows:
        if row["part"] != PART_UPDATE or row["outcome"] == "open":
            continue
        whole = row["shards_reported"] >= row["shards_expected"] and not row["unknown_valid_targets"]
        if whole and row["known_valid_targets"] == 0:
            found.append(_finding(row, "zero_target_update", quantity="valid_targets", found=0))
        if row["nonfinite_ranks"]:
            found.append(_finding(row, "nonfinite_loss", quantity="loss_sum", found=row["nonfinite_ranks"]))
        if row["known_valid_targets"] > row["known_input_slots"] and not row["unknown_input_slots"]:
            slots, targets = row["known_input_slots"], row["known_valid_targets"]
            found.append(_finding(row, "valid_exceeds_slots", quantity="valid_targets", expected=slots, found=targets))
        if row["started_at"] is not None and row["started_at"] > row["received_at"] + CLOCK_SKEW_MICROSECONDS:
            found.append(_finding(row, "clock_skew", expected=row["received_at"], found=row["started_at"]))
    places: dict[tuple[Any, ...], int] = {}
    for item in found:
        key = (item["number"], item["part"], item["retry"], item["kind"])
        item["place"] = places[key] = places.get(key, -1) + 1
    return found


def _finding(row: dict[str, Any], kind: str, **values: Any) -> dict[str, Any]:
    item = {key: row[key] for key in ("run_id", "attempt", "number", "part", "retry")}
    item |= {"kind": kind, "rank": None, "quantity": None, "expected": None, "found": None, "open": True, **values}
    for key in ("expected", "found"):
        item[key] = None if item[key] is None else str(item[key])
    return item


def _early(groups: Groups, rows: Sequence[dict[str, Any]], saves: Sequence[Save]) -> list[dict[str, Any]]:
    """Groups that did not advance the number and came before a save of a lower update, in the sequence that started the save."""
    lagging = np.isin(groups.outcome, NON_ADVANCING)
    if not lagging.any():
        return []
    mine = np.flatnonzero(lagging[groups.row_group])
    owner = groups.row_group[mine]
    number = groups.number[owner]
    events = groups.rows.take(mine)
    writers = events.writer.to_list()
    found = []
    for save in saves:
        if not save.starts or save.update >= number.max():
            continue
        before = lies_before(save, events.rank, writers, events.counts("seq")) & (number > save.update)
        for place in np.unique(owner[before]).tolist():
            row = rows[place]
            item = {key: row[key] for key in ("run_id", "attempt", "number", "part", "retry")}
            found.append(item | {"checkpoint": save.checkpoint, "update": save.update})
    return found


def evaluation_rows(events: Events, layout: Layout, run_id: int, attempt: int) -> list[dict[str, Any]]:
    """The rows of `evaluations` that events make."""
    groups = fold_evaluations(events, layout)
    columns = {
        "number": groups.number.tolist(),
        "retry": groups.retry.tolist(),
        "name": [name or "" for name in groups.name],
        **_quantities(groups),
        "seconds": _floats(groups.seconds),
    }
    return [
        {"run_id": run_id, "attempt": attempt, **dict(zip(columns, values, strict=True))} for values in zip(*columns.values(), strict=True)
    ]
