"""What the tables keep of a run, row by row: for a verification, which trusts none of them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Row, Table, func, select, tuple_

from ledger.storage.history import unpack
from ledger.storage.projections import PLAIN_KINDS
from ledger.storage.tables import QUANTITY_COLUMNS, attempt_states, checkpoint_rows, evaluations, streams, updates

ROWS_TOGETHER = 2000
GROUP_KEY = ("attempt", "number", "part", "retry")

_CHECKPOINT_NAMES = {"checkpoint": "checkpoint", "state": "state", "update": "update", "uri": "uri", "seconds": "seconds"}
_PLAIN: dict[str, tuple[Table, dict[str, str]]] = {**PLAIN_KINDS, "checkpoints": (checkpoint_rows, _CHECKPOINT_NAMES)}


class Damaged(Exception):
    """A kept row cannot be read."""

    def __init__(self, table: Table, why: str) -> None:
        super().__init__(why)
        self.table = table.name


def _read(table: Table, reading: Callable[[Any], Any], value: Any) -> Any:
    try:
        return reading(value)
    except Exception as error:
        # Damaged bytes may raise anything on their way through the decoder.
        raise Damaged(table, f"{type(error).__name__}: {error}") from error


def journalled_streams(connection: Connection, run_id: int) -> dict[tuple[int, int, str], list[tuple[int, int]]]:
    """The sequence numbers that the table of streams says are journalled, by attempt, rank and writer, as half-open spans."""
    c = streams.c
    query = select(c.attempt, c.rank, c.writer, c.journalled).where(c.run_id == run_id)
    return {
        (attempt, rank, writer): [(start, stop) for start, stop in _read(streams, json.loads, text)]
        for attempt, rank, writer, text in connection.execute(query)
    }


def numbers_of_attempts(connection: Connection, run_id: int) -> dict[int, tuple[list[list[int]], list[list[int]]]]:
    """The numbers that each attempt is kept to have attempted, and those of them that older ones had, as half-open spans."""
    c = attempt_states.c
    query = select(c.attempt, c.numbers, c.recomputed).where(c.run_id == run_id)
    return {
        attempt: (_read(attempt_states, json.loads, numbers), _read(attempt_states, json.loads, again))
        for attempt, numbers, again in connection.execute(query)
    }


def groups(connection: Connection, run_id: int) -> Iterator[dict[str, Any]]:
    """Every kept group in the order of its key, its ranges as plain lists."""
    c = updates.c
    names = (*GROUP_KEY, "outcome", "reason", "shards_expected", "shards_reported", "ranges")
    columns = [c[name] for name in names] + _quantities(updates)
    key = tuple_(*(c[name] for name in GROUP_KEY))
    query = select(*columns).where(c.run_id == run_id).order_by(*(c[name] for name in GROUP_KEY)).limit(ROWS_TOGETHER)
    rows = connection.execute(query).all()
    while rows:
        yield from ({**row._asdict(), "ranges": _read(updates, unpack, row.ranges) or []} for row in rows)
        rows = connection.execute(query.where(key > tuple_(*(getattr(rows[-1], name) for name in GROUP_KEY)))).all()


def evaluated(connection: Connection, run_id: int) -> Iterator[Row[Any]]:
    """Every kept evaluation."""
    c = evaluations.c
    columns = [c.attempt, c.number, c.name, c.retry, *_quantities(evaluations)]
    yield from connection.execute(select(*columns).where(c.run_id == run_id))


def _quantities(table: Table) -> list[Any]:
    return [table.c[f"{what}_{name}"] for what in ("known", "unknown") for name in QUANTITY_COLUMNS]


def plain_count(connection: Connection, run_id: int, kind: str) -> int:
    """How many rows are kept of a kind whose events stand each for itself."""
    table = _PLAIN[kind][0]
    return int(connection.execute(select(func.count()).select_from(table).where(table.c.run_id == run_id)).scalar_one())


def plain_rows(connection: Connection, run_id: int, kind: str, attempt: int, seqs: tuple[int, int]) -> dict[Any, dict[str, Any]]:
    """The kept rows of such a kind and attempt between two sequence numbers: by (rank, writer, seq), in the words of the events."""
    table, names = _PLAIN[kind]
    c = table.c
    extra = ["owner", "positions"] if kind == "checkpoints" else []
    columns = [c.rank, c.writer, c.seq, *(c[kept].label(f"of_{name}") for name, kept in names.items()), *(c[name] for name in extra)]
    query = select(*columns).where(c.run_id == run_id, c.attempt == attempt, c.seq >= seqs[0], c.seq <= seqs[1])
    found: dict[Any, dict[str, Any]] = {}
    for row in connection.execute(query):
        plain = {name: getattr(row, f"of_{name}") for name in names}
        if extra:
            plain |= {"owner": row.owner, "positions": None if row.positions is None else _read(table, json.loads, row.positions)}
        found[row.rank, row.writer, row.seq] = plain
    return found
