"""Data passed over on purpose, counters of the trainer's own, and the first groups of an attempt."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from ledger.domain.trajectory import Save
from ledger.storage.tables import counters, gaps, passes, updates

FIRST_GROUPS = 16


@dataclass(frozen=True, slots=True)
class Passed:
    """Positions [start, stop) of a stream that were jumped before an update."""

    attempt: int
    number: int
    rank: int
    writer: str
    seq: int
    stream: str
    epoch: int
    start: int
    stop: int

    def before(self, save: Save) -> bool:
        """Whether the jump came before the save began, in the sequence that started the save."""
        return any((self.rank, self.writer) == (start.rank, start.writer) and self.seq < start.seq for start in save.starts)


def passes_of(connection: Connection, run_id: int, attempts: Iterable[int]) -> list[Passed]:
    """The passes of those attempts; ranks that post the same pass are one."""
    c = passes.c
    columns = [c[name] for name in Passed.__slots__]
    query = select(*columns).where(c.run_id == run_id, c.attempt.in_(sorted(set(attempts))))
    return [Passed(*row) for row in connection.execute(query.order_by(c.attempt, c.number, c.start, c.rank, c.writer, c.seq))]


def first_groups(connection: Connection, run_id: int, attempt: int) -> list[Row[Any]]:
    """The first groups of an attempt."""
    c = updates.c
    columns = (c.number, c.outcome, c.shards_expected, c.shards_reported, c.ranges)
    query = select(*columns).where(c.run_id == run_id, c.attempt == attempt).order_by(c.number, c.part, c.retry)
    return list(connection.execute(query.limit(FIRST_GROUPS)))


def latest_counters(connection: Connection, run_id: int) -> list[Row[Any]]:
    """The trainer's own counters: for each attempt and name the value of the lowest rank at the highest update."""
    c = counters.c
    newest = select(c.attempt, c.name, func.max(c.number).label("number")).where(c.run_id == run_id).group_by(c.attempt, c.name).subquery()
    query = (
        select(c.attempt, c.name, c.rank, c.number, c.value)
        .join(newest, (c.attempt == newest.c.attempt) & (c.name == newest.c.name) & (c.number == newest.c.number))
        .where(c.run_id == run_id)
        .order_by(c.attempt, c.name, c.rank.desc(), c.seq)
    )
    latest: dict[tuple[int, str], Any] = {(row.attempt, row.name): row for row in connection.execute(query)}
    return [latest[key] for key in sorted(latest)]


def gaps_of(connection: Connection, run_id: int, limit: int) -> list[Row[Any]]:
    """Sequence numbers that writers say were lost."""
    c = gaps.c
    query = select(gaps).where(c.run_id == run_id).order_by(c.attempt, c.rank, c.writer, c.first)
    return list(connection.execute(query.limit(limit)))
