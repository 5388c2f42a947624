"""The facts of a run as its journal has them, and what is wrong with a journal that has them badly.

The journal is read once from its first entry to an offset. Declarations, rows about checkpoints and passes are kept; of the kinds that
can be as many as the updates only their place is noted, so that they are read again a window of update numbers at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ledger.storage import journal, raw
from ledger.storage.journal import Block
from ledger.storage.raw import STANDING_ALONE, Content, Unreadable
from ledger.storage.store import Connection

GROUPED = ("updates", "discards", "evaluations")
"""Kinds of which rows of many ranks make one group."""

PAGE = 256
"""Update numbers whose rows are counted together, to know how many numbers a window may span."""

WINDOW_ROWS = 50_000
"""Rows that are held in memory at once."""

Stream = tuple[int, int, str]
"""(attempt, rank, writer)"""
Spans = list[tuple[int, int]]


class JournalFault(Exception):
    """The journal itself is damaged."""

    def __init__(self, place: str, found: Any, expected: Any) -> None:
        super().__init__(f"{place}: {found!r} instead of {expected!r}")
        self.place, self.found, self.expected = place, found, expected


@dataclass(slots=True)
class Opening:
    """An attempt as its ranks declared it; `settled` are the resume points that an operator chose, the last one stands."""

    name: str
    layout: dict[str, Any] | None
    conventions: dict[str, Any]
    started_at: int | None
    declared: list[dict[str, Any] | None]
    settled: list[dict[str, Any] | None] = field(default_factory=list)


@dataclass(slots=True)
class Facts:
    """What was declared and posted up to an offset."""

    declaration: dict[str, Any] = field(default_factory=dict)
    openings: dict[int, Opening] = field(default_factory=dict)
    resolutions: dict[tuple[int, int, int], list[dict[str, Any]]] = field(default_factory=dict)
    """By attempt, update and try."""
    saved: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    passed: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    pages: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)
    sequences: dict[Stream, Spans] = field(default_factory=dict)
    plain: list[Block] = field(default_factory=list)


def read(connection: Connection, run_id: int, through: int, read_so_far: Callable[[int], None]) -> Facts:
    """The facts of a run up to an offset.

    Raises: JournalFault where entries are missing, come twice, or cannot be read.
    """
    facts, expected = Facts(), 1
    try:
        for block, content in raw.contents(connection, run_id, journal.blocks_between(connection, run_id, 0, through)):
            if block.first_entry != expected:
                raise JournalFault(f"/journal/{expected}", f"a block at offset {block.first_entry}", "the entry")
            _take(facts, block, content)
            expected = block.first_entry + block.entries
            read_so_far(expected - 1)
    except Unreadable as error:
        raise JournalFault(f"/journal/{error.first_entry}", str(error), "a block that can be read") from error
    if expected != through + 1:
        raise JournalFault(f"/journal/{expected}", None, "the entry")
    for stream, spans in facts.sequences.items():
        facts.sequences[stream] = _once(facts, stream, spans)
    return facts


def _take(facts: Facts, block: Block, content: Content) -> None:
    if block.attempt not in facts.openings and block.kind not in ("run", "attempt"):
        raise JournalFault(f"/journal/{block.first_entry}/attempt", block.attempt, "an attempt that was opened before")
    if block.kind in journal.DECLARATIONS:
        try:
            _declare(facts, block.attempt, block.kind, content.body)
        except (KeyError, TypeError) as error:
            raise JournalFault(f"/journal/{block.first_entry}", f"{type(error).__name__}: {error}", "a declaration") from error
        return
    if len(content.seqs) != block.entries:
        raise JournalFault(f"/journal/{block.first_entry}/entries", len(content.seqs), block.entries)
    _note_sequences(facts, block.attempt, content)
    if block.kind in journal.NUMBERED:
        numbers = content.numbers
        bounds = (min(numbers), max(numbers))
        if bounds != (block.first_update, block.last_update):
            raise JournalFault(f"/journal/{block.first_entry}/updates", bounds, (block.first_update, block.last_update))
        if block.kind in GROUPED:
            pages = facts.pages.setdefault((block.attempt, block.kind), {})
            for number in numbers:
                pages[number // PAGE] = pages.get(number // PAGE, 0) + 1
    if block.kind in STANDING_ALONE:
        facts.plain.append(block)
    if block.kind == "checkpoints":
        facts.saved += [(block.attempt, row) for row in content.rows]
    elif block.kind == "passes":
        facts.passed += [(block.attempt, row) for row in content.rows]


def _declare(facts: Facts, attempt: int, kind: str, body: dict[str, Any]) -> None:
    if kind == "run":
        facts.declaration = body
    elif kind == "attempt" and attempt not in facts.openings:
        facts.openings[attempt] = Opening(body["name"], body["layout"], body["conventions"], body["started_at"], [body["resumed_from"]])
    elif kind == "attempt":
        opening = facts.openings[attempt]
        opening.declared.append(body["resumed_from"])
        moments = [moment for moment in (opening.started_at, body["started_at"]) if moment is not None]
        opening.started_at = min(moments) if moments else None
    elif kind == "resume":
        facts.openings[attempt].settled.append(body["resumed_from"])
    elif kind == "resolution":
        facts.resolutions.setdefault((attempt, body["update"], body["retry"]), []).append(body)


def _note_sequences(facts: Facts, attempt: int, content: Content) -> None:
    """Adds the sequence numbers of a block, neighbours as one span."""
    for rank, writer, seq in zip(content.ranks, content.writers, content.seqs, strict=True):
        spans = facts.sequences.setdefault((attempt, rank, writer), [])
        if spans and spans[-1][1] == seq:
            spans[-1] = (spans[-1][0], seq + 1)
        else:
            spans.append((seq, seq + 1))


def _once(facts: Facts, stream: Stream, spans: Spans) -> Spans:
    """The spans in order, touching ones joined. Raises: JournalFault where a number is journalled twice."""
    ordered = sorted(spans)
    for before, after in pairwise(ordered):
        if after[0] < before[1]:
            attempt, rank, writer = stream
            place = f"/journal/sequences/{facts.openings[attempt].name}/{rank}/{writer}"
            raise JournalFault(place, f"{after[0]} twice", "each sequence number once")
    joined: Spans = []
    for start, stop in ordered:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def rows_in_windows(
    connection: Connection, run_id: int, attempt: int, kind: str, pages: dict[int, int], through: int
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one kind as plain rows, a window of update numbers at a time: all rows of a number are in one window."""
    for start, stop in _windows(pages):
        found = journal.events_of_updates(connection, run_id, attempt, kind, start, stop, through)
        if found is not None:
            yield raw.plain(found[0])


def _windows(pages: dict[int, int]) -> Iterator[tuple[int, int]]:
    first: int | None = None
    held, last = 0, 0
    for page, rows in sorted(pages.items()):
        if first is not None and held + rows > WINDOW_ROWS:
            yield first * PAGE, (last + 1) * PAGE
            first, held = None, 0
        first = page if first is None else first
        held, last = held + rows, page
    if first is not None:
        yield first * PAGE, (last + 1) * PAGE
