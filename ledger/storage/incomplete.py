"""Updates whose shards have not all reported, or whose quantities are not all known."""

from typing import Any

from sqlalchemy import Connection, Row, func, select

from ledger.domain.exposure import DECIDED_BY_OPTIMIZER
from ledger.domain.updates import PART_UPDATE
from ledger.storage.tables import updates

_c = updates.c
_LACKING = (_c.outcome == "held", _c.part == PART_UPDATE, _c.shards_reported < _c.shards_expected)


def first_of_attempts(connection: Connection, run_id: int) -> dict[int, int]:
    """For each attempt the lowest number of an update that lacks a shard."""
    query = select(_c.attempt, func.min(_c.number)).where(_c.run_id == run_id, *_LACKING).group_by(_c.attempt)
    return {row.attempt: row[1] for row in connection.execute(query)}


def rows(connection: Connection, run_id: int, limit: int) -> list[Row[Any]]:
    """Updates that lack a shard."""
    columns = (_c.attempt, _c.number, _c.retry, _c.shards_expected, _c.shards_reported, _c.received_at)
    query = select(*columns).where(_c.run_id == run_id, *_LACKING).order_by(_c.attempt, _c.number, _c.retry)
    return list(connection.execute(query.limit(limit)))


def rows_unknown(connection: Connection, run_id: int, attempt: int, quantity: str, limit: int) -> list[Row[Any]]:
    """Decided updates of an attempt that lack a quantity; what is held may yet learn it."""
    query = select(_c.attempt, _c.number, _c.retry, _c[f"unknown_{quantity}"].label("shards")).where(
        _c.run_id == run_id,
        _c.attempt == attempt,
        _c.part == PART_UPDATE,
        _c[f"unknown_{quantity}"] > 0,
        _c.outcome.in_(DECIDED_BY_OPTIMIZER),
    )
    return list(connection.execute(query.order_by(_c.number, _c.retry).limit(limit)))
