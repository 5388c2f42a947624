"""Writing projections: rows that are a pure function of the journal, replaced where the journal has changed them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, delete, func, insert, select, update

from ledger.domain.checkpoints import CheckpointRow
from ledger.domain.columns import Events
from ledger.domain.coverage import CLASS_OF_OUTCOME
from ledger.domain.envelopes import envelopes_of, series_of
from ledger.domain.intervals import Intervals
from ledger.domain.objective import label, larger_gap
from ledger.domain.quantities import QUANTITIES
from ledger.domain.trajectory import Save
from ledger.domain.updates import PART_OUTSIDE, PART_UPDATE
from ledger.storage.history import PAGE, AttemptState, is_attempt, pack_ranges, unpack
from ledger.storage.tables import (
    PROJECTIONS,
    attempt_states,
    checkpoint_rows,
    counters,
    drawn,
    early,
    evaluations,
    findings,
    gaps,
    idles,
    passes,
    projected,
    runs,
    saves,
    totals,
    updates,
)

ROWS_TOGETHER = 500


def begin(connection: Connection, run_id: int) -> None:
    """Starts the projections of a new run."""
    connection.execute(insert(projected).values(run_id=run_id, entries=0))


def clear(connection: Connection, run_id: int) -> None:
    """Removes all projections of a run, so that they are made again from the journal."""
    for table in PROJECTIONS:
        connection.execute(delete(table).where(table.c.run_id == run_id))
    connection.execute(update(projected).where(projected.c.run_id == run_id).values(entries=0))


def reflected(connection: Connection, run_id: int, lock: bool = False) -> int:
    """The last offset that the projections reflect; `lock` keeps others from moving it until the commit."""
    query = select(projected.c.entries).where(projected.c.run_id == run_id)
    return int(connection.execute(query.with_for_update() if lock else query).scalar_one())


def reflect(connection: Connection, run_id: int, entries: int) -> None:
    """Says that the projections reflect the journal up to that offset."""
    connection.execute(update(projected).where(projected.c.run_id == run_id).values(entries=entries))


def behind(connection: Connection, limit: int) -> list[tuple[str, str]]:
    """Runs (project, name) with entries that their projections do not reflect yet."""
    query = select(runs.c.project, runs.c.name).join(projected, projected.c.run_id == runs.c.id).where(projected.c.entries < runs.c.entries)
    return [(project, name) for project, name in connection.execute(query.limit(limit))]


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for place in range(0, len(rows), ROWS_TOGETHER):
        connection.execute(insert(table), list(rows[place : place + ROWS_TOGETHER]))


def replace_groups(
    connection: Connection,
    run_id: int,
    attempt: int,
    windows: Iterable[tuple[int, int]],
    parts: Sequence[int],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Replaces the groups of an attempt in windows of update numbers, with their findings and what lies early."""
    for table in (updates, findings, early):
        for start, stop in windows:
            c = table.c
            place = (c.run_id == run_id, c.attempt == attempt, c.number >= start, c.number < stop, c.part.in_(parts))
            connection.execute(delete(table).where(*place))
        _insert(connection, table, rows[table.name])


def replace_evaluations(
    connection: Connection, run_id: int, attempt: int, windows: Iterable[tuple[int, int]], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Replaces the evaluations of an attempt in windows of update numbers."""
    c = evaluations.c
    for start, stop in windows:
        connection.execute(delete(evaluations).where(c.run_id == run_id, c.attempt == attempt, c.number >= start, c.number < stop))
    _insert(connection, evaluations, rows)


PLAIN_KINDS: dict[str, tuple[Table, dict[str, str]]] = {
    "passes": (passes, {"update": "number", "stream": "stream", "epoch": "epoch", "start": "start", "stop": "stop"}),
    "idles": (idles, {"label": "label", "seconds": "seconds"}),
    "counters": (counters, {"update": "number", "name": "name", "value": "value"}),
    "gaps": (gaps, {"first": "first", "last": "last", "reason": "reason"}),
}
"""Kinds whose events are kept one row each, with the names that their columns have in the table."""


def add_plain(connection: Connection, run_id: int, attempt: int, events: Events) -> None:
    """Adds events of a kind that is kept one row each."""
    table, names = PLAIN_KINDS[events.kind.name]
    rows = []
    for event in events.rows():
        row = {"run_id": run_id, "attempt": attempt, "rank": event["rank"], "writer": event["writer"], "seq": event["seq"]}
        row |= {column: event.get(name) for name, column in names.items()}
        if isinstance(row.get("seconds"), float) and not math.isfinite(row["seconds"]):
            row["seconds"] = None
        rows.append(row)
    _insert(connection, table, rows)


def add_checkpoint_rows(connection: Connection, run_id: int, rows: Iterable[CheckpointRow]) -> None:
    """Adds events about checkpoints."""
    kept = [
        {
            "run_id": run_id,
            **{name: getattr(row, name) for name in CheckpointRow.__slots__},
            "positions": None if row.positions is None else json.dumps(row.positions, sort_keys=True),
        }
        for row in rows
    ]
    _insert(connection, checkpoint_rows, kept)


def checkpoint_rows_of(connection: Connection, run_id: int, owners: Iterable[str]) -> list[CheckpointRow]:
    """All rows about checkpoints that those attempts own."""
    c = checkpoint_rows.c
    columns = [c[name] for name in CheckpointRow.__slots__]
    query = select(*columns).where(c.run_id == run_id, c.owner.in_(sorted(owners)))
    place = CheckpointRow.__slots__.index("positions")
    return [
        CheckpointRow(*(json.loads(value) if index == place and value is not None else value for index, value in enumerate(row)))
        for row in connection.execute(query)
    ]


def replace_saves(connection: Connection, run_id: int, attempt: int, found: Iterable[Save]) -> None:
    """Replaces the saves of an attempt."""
    connection.execute(delete(saves).where(saves.c.run_id == run_id, saves.c.attempt == attempt))
    rows = [
        {
            "run_id": run_id,
            "attempt": save.attempt,
            "checkpoint": save.checkpoint,
            "update": save.update,
            "accepted": save.accepted,
            "rejected": save.rejected,
            "starts": json.dumps([[start.rank, start.writer, start.seq] for start in save.starts]),
            "positions": None if save.positions is None else json.dumps(save.positions, sort_keys=True),
            "uri": save.uri,
            "seconds": save.seconds,
        }
        for save in found
    ]
    _insert(connection, saves, rows)


def keep_states(connection: Connection, run_id: int, changed: Mapping[int, AttemptState]) -> None:
    """Replaces what is kept of those attempts."""
    if not changed:
        return
    c = attempt_states.c
    connection.execute(delete(attempt_states).where(c.run_id == run_id, c.attempt.in_(sorted(changed))))
    rows = [
        {
            "run_id": run_id,
            "attempt": attempt,
            "numbers": json.dumps(state.numbers.to_list()),
            "recomputed": json.dumps(state.recomputed.to_list()),
            "cuts": json.dumps(state.cuts),
        }
        for attempt, state in sorted(changed.items())
    ]
    _insert(connection, attempt_states, rows)


def replace_page(connection: Connection, run_id: int, attempt: int, page: int, state: AttemptState) -> None:
    """Sums the groups of a page again, an interval between cuts at a time."""
    for table in (totals, drawn):
        connection.execute(delete(table).where(table.c.run_id == run_id, table.c.attempt == attempt, table.c.page == page))
    c = updates.c
    place = (c.run_id == run_id, c.attempt == attempt, c.number >= page * PAGE, c.number < (page + 1) * PAGE)
    rows = connection.execute(select(updates).where(*place).order_by(c.number, c.part, c.retry)).all()
    if not rows:
        return
    numbers = np.array([row.number for row in rows], dtype=np.int64)
    again = state.recomputed.mask(numbers).tolist()
    cuts = np.array(state.cuts, dtype=np.int64)
    before = np.searchsorted(cuts, numbers, side="left") - 1
    firsts = [max(page * PAGE, int(cuts[index]) + 1) if index >= 0 else page * PAGE for index in before.tolist()]
    _insert(connection, totals, _page_totals(run_id, attempt, page, rows, firsts, again))
    _insert(connection, drawn, _page_ranges(run_id, attempt, page, rows, firsts))


def _page_totals(
    run_id: int, attempt: int, page: int, rows: Sequence[Any], firsts: Sequence[int], again: Sequence[bool]
) -> list[dict[str, Any]]:
    cells: dict[tuple[Any, ...], list[Any]] = {}
    for row, first, recomputed in zip(rows, firsts, again, strict=True):
        # Work outside the participants is abandoned too, but no update: it must not mix with updates that are.
        reason = "outside" if row.part == PART_OUTSIDE else row.reason or ""
        cells.setdefault((first, row.outcome, reason, recomputed), []).append(row)
    result = []
    for (first, outcome, reason, recomputed), members in sorted(cells.items()):
        entry = {"run_id": run_id, "attempt": attempt, "page": page, "first": first, "outcome": outcome, "reason": reason}
        entry |= {"recomputed": recomputed, "updates": len(members)}
        entry["attempts"] = sum(is_attempt(outcome, row.part) for row in members)
        for name in QUANTITIES:
            entry[f"known_{name}"] = sum(getattr(row, f"known_{name}") for row in members)
            entry[f"unknown_{name}"] = sum(getattr(row, f"unknown_{name}") > 0 for row in members)
        entry["seconds"] = math.fsum(row.seconds for row in members if row.seconds is not None)
        result.append(entry | {"extras": json.dumps(_extras(members), sort_keys=True)})
    return result


def _extras(members: Sequence[Any]) -> dict[str, Any]:
    """What a report says of the objective and of the course of the run without reading single updates."""
    verdicts: dict[str, int] = {}
    gap: Mapping[str, Any] | None = None
    last: list[Any] | None = None
    for row in members:
        name = label(row.loss_verdict, row.loss_factor)
        if name is not None:
            verdicts[name] = verdicts.get(name, 0) + 1
        if row.token_mean is not None:
            last = [row.number, row.retry, row.token_mean]
            if row.mean_of_rank_means is not None:
                means = {"update": row.number, "token_mean": row.token_mean, "mean_of_rank_means": row.mean_of_rank_means}
                gap = larger_gap(gap, means)
    unscheduled = {
        "schedule": [[row.number, row.schedule_step] for row in (members[0], members[-1]) if row.schedule_step is not None],
        "verdicts": verdicts,
        "gap": gap,
        "last": last,
        "envelopes": envelopes_of(series_of([row for row in members if row.part == PART_UPDATE])),
    }
    return {name: value for name, value in unscheduled.items() if value}


def _page_ranges(run_id: int, attempt: int, page: int, rows: Sequence[Any], firsts: Sequence[int]) -> list[dict[str, Any]]:
    cells: dict[tuple[int, str, int, str], list[tuple[int, int]]] = {}
    for row, first in zip(rows, firsts, strict=True):
        effect = CLASS_OF_OUTCOME[row.outcome]
        for stream, epoch, start, stop in unpack(row.ranges) or ():
            cells.setdefault((first, stream, epoch, effect), []).append((start, stop))
    result = []
    for (first, stream, epoch, effect), spans in sorted(cells.items()):
        start, stop = _joined(np.array(spans, dtype=np.int64))
        entry = {"run_id": run_id, "attempt": attempt, "page": page, "first": first, "stream": stream, "epoch": epoch, "effect": effect}
        result.append(entry | {"last_stop": int(stop.max(initial=0)), "ranges": pack_ranges(start, stop)})
    return result


def _joined(spans: Any) -> tuple[Any, Any]:
    """Ranges sorted, those that touch end to start made one; what is covered twice stays covered twice."""
    spans = spans[spans[:, 0] < spans[:, 1]]
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    start, stop = spans[order, 0], spans[order, 1]
    fresh = np.ones(len(start), dtype=np.bool_)
    fresh[1:] = start[1:] != stop[:-1]
    heads = np.flatnonzero(fresh)
    tails = np.append(heads[1:], len(start)) - 1 if len(start) else heads
    return start[heads], stop[tails]


def numbers_beyond(connection: Connection, run_id: int, attempt: int, number: int, outcomes: Sequence[str]) -> Intervals:
    """The numbers above one whose groups have one of those outcomes."""
    c = updates.c
    query = select(c.number).where(c.run_id == run_id, c.outcome.in_(outcomes), c.attempt == attempt, c.number > number).distinct()
    return Intervals.of_numbers(np.array(connection.execute(query).scalars().all(), dtype=np.int64))


def last_number(connection: Connection, run_id: int, attempt: int) -> int:
    """The highest number that an attempt has a group of; 0 where it has none."""
    c = updates.c
    highest = select(func.max(c.number)).where(c.run_id == run_id, c.attempt == attempt)
    return int(connection.execute(highest).scalar_one() or 0)
