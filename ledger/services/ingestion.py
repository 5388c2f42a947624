"""Taking in what ranks post: each event once, whatever is sent again, and answered after the commit.

Batches wait in a bounded queue; one writer takes all that wait and commits them together, so that many small batches cost one
commit and fill one block of the journal. An event's identity is (attempt, rank, writer, seq): the same again is a duplicate,
another content under a used identity is named and refused, and one bad event never blocks the others.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from ledger.domain.checks import refusals
from ledger.domain.columns import Events, moment_of
from ledger.domain.errors import DatabaseUnavailable, LedgerError, QueueFull
from ledger.domain.events import KINDS, RankEvents
from ledger.domain.intervals import Intervals
from ledger.storage import journal, registry
from ledger.storage.registry import Run, Stream
from ledger.storage.store import Connection, Store

LARGEST_GROUP = 256
log = structlog.get_logger("ledger.ingestion")


@dataclass(slots=True)
class Reply:
    """What became of a batch."""

    accepted: int = 0
    duplicates: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The answer's body."""
        return {"accepted": self.accepted, "duplicates": self.duplicates, "rejected": self.rejected}


@dataclass(slots=True)
class Batch:
    """A batch that waits for its commit."""

    project: str
    run: str
    attempt: str
    events: list[Events]
    done: threading.Event = field(default_factory=threading.Event)
    reply: Reply = field(default_factory=Reply)
    error: BaseException | None = None


def _refuse(reply: Reply, rank: int, writer: str | None, seq: int, code: str, detail: str) -> None:
    reply.rejected.append({"rank": rank, "writer": writer, "seq": seq, "code": code, "detail": detail})


class _Books:
    """One attempt's journal while a group of batches is written: what is in it, and what comes to it."""

    def __init__(self, connection: Connection, run: Run, attempt: str, now: int) -> None:
        self.connection, self.run, self.now = connection, run, now
        self.launch = registry.find_launch(connection, run, attempt)
        self.ordinal = self.launch.attempt.ordinal
        self.held: dict[Stream, Intervals] = {}
        self.known: set[Stream] = set()
        self.changed: set[Stream] = set()
        self.ranks: set[int] = set()
        self.fresh: dict[str, list[Events]] = {}

    def load(self, ranks: Iterable[int]) -> None:
        """Reads what writers of those ranks have posted before."""
        new = set(ranks) - self.ranks
        if new:
            found = registry.journalled(self.connection, self.run.id, self.ordinal, new)
            self.held |= found
            self.known |= set(found)
            self.ranks |= new

    def write(self, last_entry: int) -> int:
        """Appends what has come, and gives the new last offset."""
        for kind in KINDS:
            if kind in self.fresh:
                events = Events.join(self.fresh.pop(kind))
                last_entry = journal.append(self.connection, self.run.id, last_entry, self.ordinal, events, self.now)
        return last_entry

    def close(self) -> None:
        """Writes down which events are in the journal now."""
        changed = sorted(self.changed)
        known = [stream for stream in changed if stream in self.known]
        fresh = [stream for stream in changed if stream not in self.known]
        registry.keep_journalled(self.connection, self.run.id, known, fresh, self.held, self.now)
        if changed:
            registry.save_launch(self.connection, self.run.id, self.ordinal, last_event_at=self.now)

    def stored(self, stream: Stream, seqs: Intervals) -> dict[int, dict[str, Any]]:
        """The events of those numbers, in the journal or about to come to it."""
        _, rank, writer = stream
        found = journal.rows_of_sequence(self.connection, self.run.id, self.ordinal, rank, writer, seqs)
        for parts in self.fresh.values():
            for events in parts:
                mine = (events.rank == rank) & seqs.mask(events.counts("seq"))
                if mine.any():
                    found |= {row["seq"]: row for row in events.take(mine).rows() if row["writer"] == writer}
        return found


def _same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two rows say the same; NaN is the same as NaN, and a try that was left out is try 0."""
    left, right = {"retry": 0, **left}, {"retry": 0, **right}
    return left.keys() == right.keys() and all(_equal(value, right[key]) for key, value in left.items())


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right or (isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)))


def _group_by_writer(parts: Sequence[Events], ordinal: int) -> dict[Stream, list[tuple[int, NDArray[np.int64]]]]:
    """For each writer, which rows of which part are its own."""
    result: dict[Stream, list[tuple[int, NDArray[np.int64]]]] = {}
    for place, events in enumerate(parts):
        order = np.lexsort((events.writer.codes, events.rank))
        rank, code = events.rank[order], events.writer.codes[order]
        edges = np.flatnonzero((np.diff(rank) != 0) | (np.diff(code) != 0)) + 1
        for rows in np.split(order, edges):
            stream = (ordinal, int(events.rank[rows[0]]), events.writer.at(int(rows[0])) or "")
            result.setdefault(stream, []).append((place, rows))
    return result


def _take_in(books: _Books, batch: Batch) -> None:
    """Sorts a batch's events into new ones, duplicates and refused ones."""
    parts: list[Events] = []
    for events in batch.events:
        refused = refusals(events, books.launch.shards())
        if refused:
            stays = np.ones(len(events), dtype=np.bool_)
            for row, code, detail in refused:
                stays[row] = False
                _refuse(
                    batch.reply, int(events.rank[row]), events.writer.at(row), int(events.counts("seq")[row]), code, detail
                )
            events = events.take(stays)
        if len(events):
            parts.append(events)
    books.load({int(rank) for events in parts for rank in np.unique(events.rank)})
    keep = [np.ones(len(events), dtype=np.bool_) for events in parts]
    for stream, places in _group_by_writer(parts, books.ordinal).items():
        seqs = np.concatenate([parts[place].counts("seq")[rows] for place, rows in places])
        posted, held = Intervals.of_numbers(seqs), books.held.get(stream, Intervals())
        if len(np.unique(seqs)) < len(seqs) or held.mask(seqs).any():
            _compare(books, batch, stream, parts, places, keep)
        # What was posted before changes nothing, not even when the stream was last heard of.
        if posted.minus(held):
            books.held[stream] = held.union(posted)
            books.changed.add(stream)
    for events, mask in zip(parts, keep, strict=True):
        if mask.any():
            books.fresh.setdefault(events.kind.name, []).append(events if mask.all() else events.take(mask))
            batch.reply.accepted += int(mask.sum())


def _compare(
    books: _Books,
    batch: Batch,
    stream: Stream,
    parts: Sequence[Events],
    places: Sequence[tuple[int, NDArray[np.int64]]],
    keep: Sequence[NDArray[np.bool_]],
) -> None:
    """Tells duplicates from conflicts, event by event: the slow way, taken only where numbers come again."""
    posted = Intervals.of_numbers(np.concatenate([parts[place].counts("seq")[rows] for place, rows in places]))
    seen = books.stored(stream, posted)
    for place, rows in places:
        for row, event in zip(rows.tolist(), parts[place].take(rows).rows(), strict=True):
            first = seen.setdefault(event["seq"], event)
            if first is event:
                continue
            keep[place][row] = False
            if _same(first, event):
                batch.reply.duplicates += 1
            else:
                detail = "another event was accepted under this identity; the first stays"
                _refuse(batch.reply, stream[1], stream[2], event["seq"], "event_conflict", detail)


class Ingestion:
    """The queue of batches and the one thread that commits them; lives as long as the service."""

    def __init__(self, store: Store, clock: Callable[[], datetime], queue_batches: int) -> None:
        self.store, self.clock, self.queue_batches = store, clock, queue_batches
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ledger-ingestion", daemon=True)

    @property
    def waiting(self) -> int:
        """Batches that wait for their commit."""
        return len(self._waiting)

    def start(self) -> None:
        """Starts the writer."""
        self._thread.start()

    def stop(self) -> None:
        """Commits what waits and ends the writer."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, project: str, run: str, attempt: str, ranks: list[RankEvents]) -> dict[str, Any]:
        """Takes a batch in and answers after its commit.

        Raises: QueueFull, RunUnknown, AttemptUnknown.
        """
        kinds = [kind for kind in KINDS if any(kind in block.blocks for block in ranks)]
        batch = Batch(project, run, attempt, [events for events in (Events.of(kind, ranks) for kind in kinds) if len(events)])
        with self._changed:
            if self._stopping or len(self._waiting) >= self.queue_batches:
                raise QueueFull(f"{len(self._waiting)} batches are waiting", waiting=len(self._waiting))
            self._waiting.append(batch)
            self._changed.notify()
        batch.done.wait()
        if batch.error is not None:
            raise batch.error
        return batch.reply.as_dict()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if not self._waiting:
                    return
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST_GROUP))]
            self._commit(group)

    def _commit(self, group: list[Batch]) -> None:
        """Commits a group; where that fails, each batch alone, so that one cannot take the others down."""
        try:
            with self.store.write() as connection:
                self._write(connection, group)
        except Exception as error:
            if len(group) > 1 and not isinstance(error, DatabaseUnavailable):
                for batch in group:
                    batch.reply, batch.error = Reply(), None
                    self._commit([batch])
                return
            if not isinstance(error, LedgerError):
                log.exception("batch not committed", batches=len(group))
            for batch in group:
                batch.error = error
        for batch in group:
            batch.done.set()

    def _write(self, connection: Connection, group: Sequence[Batch]) -> None:
        now = moment_of(self.clock())
        by_run: dict[tuple[str, str], list[Batch]] = {}
        for batch in group:
            by_run.setdefault((batch.project, batch.run), []).append(batch)
        # Runs are locked in the order of their names, so that two services never wait for each other.
        for (project, name), batches in sorted(by_run.items(), key=lambda item: item[0]):
            run = registry.find_run(connection, project, name)
            before = last_entry = journal.lock_run(connection, run.id)
            books: dict[str, _Books] = {}
            for batch in batches:
                if batch.attempt not in books:
                    books[batch.attempt] = _Books(connection, run, batch.attempt, now)
                _take_in(books[batch.attempt], batch)
            for book in books.values():
                last_entry = book.write(last_entry)
                book.close()
            if last_entry > before:
                journal.advance(connection, run.id, last_entry, now)
