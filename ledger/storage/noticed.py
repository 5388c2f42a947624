"""Findings that are kept with single updates."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select, tuple_

from ledger.storage.tables import findings

_c = findings.c
_KEY = (_c.kind, _c.attempt, _c.number, _c.part, _c.retry, _c.place)


def count_by_kind(connection: Connection, run_id: int) -> dict[str, int]:
    """How many open ones there are of each kind."""
    query = select(_c.kind, func.count()).where(_c.run_id == run_id, _c.open).group_by(_c.kind)
    return {row.kind: row[1] for row in connection.execute(query)}


def key(row: Any) -> list[Any]:
    """A finding's place in the order of pages."""
    return [row.kind, row.attempt, row.number, row.part, row.retry, row.place]


def rows(connection: Connection, run_id: int, after: Sequence[Any] | None, limit: int, kind: str | None) -> list[Row[Any]]:
    """Findings behind a place in the order of pages."""
    query = select(findings).where(_c.run_id == run_id)
    if after is not None:
        query = query.where(tuple_(*_KEY) > tuple_(*after))
    if kind is not None:
        query = query.where(_c.kind == kind)
    return list(connection.execute(query.order_by(*_KEY).limit(limit)))
