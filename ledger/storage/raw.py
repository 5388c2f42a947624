"""The journal's blocks as plain lists, for a reader that trusts nothing and folds nothing."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from ledger.domain.columns import Events
from ledger.storage.encoding import decode
from ledger.storage.journal import DECLARATIONS, FETCHED_TOGETHER, NUMBERED, Block
from ledger.storage.tables import journal

STANDING_ALONE = ("checkpoints", "passes", "idles", "counters", "gaps")
"""Kinds whose rows stand each for itself."""


class Unreadable(Exception):
    """A block of the journal cannot be read."""

    def __init__(self, first_entry: int, why: str) -> None:
        super().__init__(why)
        self.first_entry = first_entry


@dataclass(frozen=True, slots=True)
class Content:
    """What a block of the journal holds: a declaration's body, or events, whose plain rows are only made for small kinds."""

    body: Any = None
    ranks: list[int] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


def contents(connection: Connection, run_id: int, blocks: Sequence[Block]) -> Iterator[tuple[Block, Content]]:
    """The content of each block. Raises: Unreadable."""
    c = journal.c
    for begin in range(0, len(blocks), FETCHED_TOGETHER):
        wanted = blocks[begin : begin + FETCHED_TOGETHER]
        columns = (c.first_entry, c.payload, c.first_rank, c.last_rank, c.first_seq, c.last_seq)
        query = select(*columns).where(c.run_id == run_id, c.first_entry.in_([block.first_entry for block in wanted]))
        found = {row.first_entry: row for row in connection.execute(query)}
        for block in wanted:
            row = found.pop(block.first_entry)
            content = _content(block, row.payload)
            _check_bounds(block, content.ranks, (row.first_rank, row.last_rank), "ranks")
            _check_bounds(block, content.seqs, (row.first_seq, row.last_seq), "sequence numbers")
            yield block, content


def _check_bounds(block: Block, values: list[int], said: tuple[int, int], what: str) -> None:
    """Makes sure that a search by those bounds finds the block. Raises: Unreadable."""
    if values and (min(values), max(values)) != said:
        raise Unreadable(block.first_entry, f"it is filed under {what} {said[0]} to {said[1]}, and holds {min(values)} to {max(values)}")


def _content(block: Block, payload: bytes) -> Content:
    try:
        if block.kind in DECLARATIONS:
            return Content(json.loads(payload))
        return _events(decode(block.kind, payload))
    except Exception as error:
        # Damaged bytes may raise anything on their way through the decoder.
        raise Unreadable(block.first_entry, f"{type(error).__name__}: {error}") from error


def _events(events: Events) -> Content:
    content = _lists(events)
    required = [column.name for column in events.kind.columns if column.required]
    lacking = [name for name in required if any(name not in row for row in content.rows)]
    lacking += [name for name, values in (("seq", content.seqs), ("update", content.numbers)) if values and min(values) < 0]
    if lacking:
        raise ValueError(f"{events.kind.name} without {lacking[0]}")
    return content


def _lists(events: Events) -> Content:
    return Content(
        None,
        events.rank.tolist(),
        [name or "" for name in events.writer.to_list()],
        events.counts("seq").tolist(),
        events.counts("update").tolist() if events.kind.name in NUMBERED else [],
        list(events.rows()) if events.kind.name in STANDING_ALONE else [],
    )


def plain(events: Events) -> list[dict[str, Any]]:
    """Events as plain rows. Raises: Unreadable."""
    try:
        return list(events.rows())
    except Exception as error:
        raise Unreadable(0, f"{type(error).__name__}: {error}") from error
