"""The journal: what was declared and what ranks posted, in the order of its commits, never rewritten.

An entry is one event or one declaration; its offset is its place in the run, from 1. A row of the table holds the events of one
attempt and kind that were committed together, so that small batches of many ranks fill one block.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, and_, insert, select, update

from ledger.domain.columns import Events
from ledger.domain.intervals import Intervals
from ledger.storage.encoding import decode, encode
from ledger.storage.tables import journal, runs

NUMBERED = ("updates", "discards", "passes", "evaluations", "counters")
DECLARATIONS = ("run", "attempt", "ending", "resume", "resolution")
LARGEST_BLOCK = 65_536
FETCHED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Block:
    """What a block of the journal holds, without its events."""

    first_entry: int
    entries: int
    attempt: int
    kind: str
    first_update: int
    last_update: int
    received_at: int


def lock_run(connection: Connection, run_id: int) -> int:
    """Takes the run's lock until the commit and gives its last offset: offsets are in commit order."""
    return int(connection.execute(select(runs.c.entries).where(runs.c.id == run_id).with_for_update()).scalar_one())


def advance(connection: Connection, run_id: int, entries: int, now: int) -> None:
    """Sets the run's last offset."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(entries=entries, last_entry_at=now))


def declare(connection: Connection, run_id: int, kind: str, attempt: int, body: Any, now: int) -> None:
    """Appends a declaration as one entry."""
    entry = lock_run(connection, run_id) + 1
    row: dict[str, Any] = dict.fromkeys(("first_rank", "last_rank", "first_seq", "last_seq", "first_update", "last_update"), 0)
    row |= {"run_id": run_id, "first_entry": entry, "entries": 1, "attempt": attempt, "kind": kind, "received_at": now}
    connection.execute(insert(journal).values(**row, payload=json.dumps(body, sort_keys=True).encode()))
    advance(connection, run_id, entry, now)


def append(connection: Connection, run_id: int, last_entry: int, attempt: int, events: Events, now: int) -> int:
    """Appends events of one kind, ordered by rank, writer and sequence, and gives the new last offset."""
    order = np.lexsort((events.counts("seq"), events.writer.codes, events.rank))
    rows = []
    for begin in range(0, len(order), LARGEST_BLOCK):
        part = events.take(order[begin : begin + LARGEST_BLOCK])
        seq = part.counts("seq")
        numbers = part.counts("update") if part.kind.name in NUMBERED else np.zeros(1, dtype=np.int64)
        rows.append(
            {
                "run_id": run_id,
                "first_entry": last_entry + 1,
                "entries": len(part),
                "attempt": attempt,
                "kind": part.kind.name,
                "first_rank": int(part.rank.min()),
                "last_rank": int(part.rank.max()),
                "first_seq": int(seq.min()),
                "last_seq": int(seq.max()),
                "first_update": int(numbers.min()),
                "last_update": int(numbers.max()),
                "received_at": now,
                "payload": encode(part),
            }
        )
        last_entry += len(part)
    connection.execute(insert(journal), rows)
    return last_entry


def blocks_between(connection: Connection, run_id: int, after: int, through: int) -> list[Block]:
    """The blocks whose entries lie after one offset and up to another."""
    c = journal.c
    columns = (c.first_entry, c.entries, c.attempt, c.kind, c.first_update, c.last_update, c.received_at)
    query = select(*columns).where(c.run_id == run_id, c.first_entry > after, c.first_entry <= through).order_by(c.first_entry)
    return [Block(*row) for row in connection.execute(query)]


def events_of(connection: Connection, run_id: int, blocks: Sequence[Block]) -> Events | None:
    """The events of those blocks, which are of one kind and attempt; None where there are no blocks."""
    parts: list[Events] = []
    for begin in range(0, len(blocks), FETCHED_TOGETHER):
        entries = [block.first_entry for block in blocks[begin : begin + FETCHED_TOGETHER]]
        query = select(journal.c.kind, journal.c.payload).where(journal.c.run_id == run_id, journal.c.first_entry.in_(entries))
        parts += [decode(kind, payload) for kind, payload in connection.execute(query.order_by(journal.c.first_entry))]
    return Events.join(parts) if parts else None


def events_of_updates(
    connection: Connection, run_id: int, attempt: int, kind: str, start: int, stop: int, through: int
) -> tuple[Events, int] | None:
    """The events of a kind whose update number lies in [start, stop), up to an offset, and when the last of them was received."""
    c = journal.c
    query = (
        select(c.payload, c.received_at)
        .where(c.run_id == run_id, c.attempt == attempt, c.kind == kind, c.last_update >= start, c.first_update < stop)
        .where(c.first_entry <= through)
        .order_by(c.first_entry)
    )
    parts: list[Events] = []
    received = 0
    for payload, received_at in connection.execute(query):
        events = decode(kind, payload)
        numbers = events.counts("update")
        inside = (numbers >= start) & (numbers < stop)
        if inside.any():
            parts.append(events if inside.all() else events.take(inside))
            received = max(received, received_at)
    return (Events.join(parts), received) if parts else None


def declarations(connection: Connection, run_id: int, attempt: int, kind: str, after: int, through: int) -> list[Any]:
    """The declarations of one kind about an attempt, oldest first."""
    c = journal.c
    query = select(c.payload).where(
        c.run_id == run_id, c.attempt == attempt, c.kind == kind, c.first_entry > after, c.first_entry <= through
    )
    return [json.loads(payload) for payload in connection.execute(query.order_by(c.first_entry)).scalars()]


def rows_of_sequence(
    connection: Connection, run_id: int, attempt: int, rank: int, writer: str, wanted: Intervals
) -> dict[int, dict[str, Any]]:
    """The journalled events of one writer with those sequence numbers, as plain rows by number: the slow way, for resent events."""
    if not wanted.spans:
        return {}
    c = journal.c
    low, high = wanted.spans[0][0], wanted.spans[-1][1] - 1
    place = and_(c.last_seq >= low, c.first_seq <= high, c.first_rank <= rank, c.last_rank >= rank)
    query = select(c.kind, c.payload).where(c.run_id == run_id, c.attempt == attempt, c.kind.not_in(DECLARATIONS), place)
    found: dict[int, dict[str, Any]] = {}
    for kind, payload in connection.execute(query):
        events = decode(kind, payload)
        same = np.array((*events.writer.values, ""), dtype=object)[events.writer.codes] == writer
        mine = (events.rank == rank) & same & wanted.mask(events.counts("seq"))
        found |= {row["seq"]: row for row in events.take(mine).rows()} if mine.any() else {}
    return found


def entries_of(connection: Connection, run_id: int, after: int, through: int) -> Iterator[dict[str, Any]]:
    """Each entry of the run as a plain row, in the order of offsets."""
    c = journal.c
    while True:
        query = select(c.first_entry, c.entries, c.attempt, c.kind, c.received_at, c.payload).where(
            c.run_id == run_id, c.first_entry > after, c.first_entry <= through
        )
        blocks = connection.execute(query.order_by(c.first_entry).limit(FETCHED_TOGETHER)).all()
        if not blocks:
            return
        for first_entry, entries, attempt, kind, received_at, payload in blocks:
            head = {"attempt": attempt, "kind": kind, "received_at": received_at}
            if kind in DECLARATIONS:
                yield {"offset": first_entry, **head, "body": json.loads(payload)}
            else:
                for place, row in enumerate(decode(kind, payload).rows()):
                    yield {"offset": first_entry + place, **head, **row}
            after = first_entry + entries - 1
