"""What took how long: updates in a window, checkpoints, evaluations, idle time."""

from typing import Any

from sqlalchemy import Connection, Row, func, select

from ledger.domain.errors import InvalidRequest
from ledger.storage.tables import evaluations, idles, updates

LARGEST_WINDOW = 200_000
"""Updates that a rate's window may hold: a wider one is asked for by run or attempt, which read totals."""


def _bounded(rows: list[Row[Any]]) -> list[Row[Any]]:
    if len(rows) > LARGEST_WINDOW:
        raise InvalidRequest(f"the window holds more than {LARGEST_WINDOW} updates; ask for the run or an attempt", pointer="/window")
    return rows


def numbered(connection: Connection, run_id: int, first: int, last: int) -> list[Row[Any]]:
    """The groups whose numbers lie in a span, of all attempts. Raises: InvalidRequest."""
    c = updates.c
    query = select(updates).where(c.run_id == run_id, c.number >= first, c.number <= last).limit(LARGEST_WINDOW + 1)
    return _bounded(list(connection.execute(query)))


def latest(connection: Connection, run_id: int, microseconds: int) -> list[Row[Any]]:
    """The groups that began in the last stretch of time before the newest one began. Raises: InvalidRequest."""
    c = updates.c
    newest = connection.execute(select(func.max(c.started_at)).where(c.run_id == run_id)).scalar_one()
    if newest is None:
        return []
    query = select(updates).where(c.run_id == run_id, c.started_at > newest - microseconds, c.started_at <= newest)
    return _bounded(list(connection.execute(query.limit(LARGEST_WINDOW + 1))))


def evaluated(connection: Connection, run_id: int) -> list[Row[Any]]:
    """All evaluations of a run."""
    c = evaluations.c
    return list(connection.execute(select(evaluations).where(c.run_id == run_id).order_by(c.attempt, c.number, c.name, c.retry)))


def idle_seconds(connection: Connection, run_id: int) -> dict[int, float]:
    """For each attempt the idle time of the rank that was idle longest."""
    c = idles.c
    query = select(c.attempt, c.rank, func.sum(c.seconds)).where(c.run_id == run_id).group_by(c.attempt, c.rank)
    longest: dict[int, float] = {}
    for attempt, _, seconds in connection.execute(query.order_by(c.attempt, c.rank)):
        longest[attempt] = max(longest.get(attempt, 0.0), seconds or 0.0)
    return longest
