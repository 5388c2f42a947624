"""What of a spool is still to be sent, in the order in which it was recorded.

The same reading serves a living process (up to the mark of its spool) and what a dead one left behind. Of a dead process it also
gives what was never an event yet: groups that were open when it died, and the numbers of events that had found no room or cannot be
read any more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from .control import ACKNOWLEDGED, LOST, Control
from .reading import behind_damage, ending, event, open_group, record_at, stream_names, update_row
from .records import ENDING, FILL, PENDING, UPDATE_ROW
from .scratch import is_scratch
from .segment import HEADER_BYTES, first_seq_of, index_of, name_of
from .spool import STREAMS

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    from .reading import Record
    from .shapes import Event, Row, Storage
    from .spool import Spool

YIELD_EVENTS = 8
"""After so many records the reader offers the interpreter to the training thread, which would else wait for 5 ms."""


class Parcel(NamedTuple):
    """Some events in order, and the place in the spool behind them."""

    events: list[Event]
    ending: Row | None
    segment: int
    offset: int
    tail_count: int


class Backlog:
    """The reader's side of a spool: of a living one if `spool` is given, else of one that a process left.

    Raises: OtherFormat where another version of the client wrote it.
    """

    def __init__(self, storage: Storage, spool: Spool | None = None, *, writable: bool = True) -> None:
        self._storage = storage
        self._spool = spool
        self._control = spool.control if spool is not None else Control(storage, writable)
        self._mapped: tuple[int, mmap.mmap] | None = None
        self._tail: list[Event] = []
        self._fills: dict[int, Record] = {}
        self._names = [] if spool is not None else stream_names(storage.open(STREAMS))
        self._segments = {1: 1} if spool is not None else self._existing()
        place = self._control.read(ACKNOWLEDGED)
        self._segment, self._offset = place or (min(self._segments, default=1), HEADER_BYTES)
        if spool is None:
            self._survey()

    def take(self, limit: int) -> Parcel:
        """The next events that may be sent, at most that many."""
        events: list[Event] = []
        segment, offset = self._segment, self._offset
        for number, (record, at_segment, at_offset) in enumerate(self._walk()):
            if number % YIELD_EVENTS == YIELD_EVENTS - 1:
                time.sleep(0)
            if record.flags & FILL:
                pass
            elif record.kind == ENDING:
                if not events:
                    return Parcel([], ending(record), at_segment, at_offset, 0)
                break
            else:
                content = self._content(record)
                if content is None or len(events) == limit:
                    break
                events.append(event(content, self._names if self._spool is None else list(self._spool.stream_numbers)))
            segment, offset = at_segment, at_offset
        else:
            if not events and self._tail:
                tail = self._tail[:limit]
                return Parcel(tail, None, segment, offset, len(tail))
        return Parcel(events, None, segment, offset, 0)

    def acknowledge(self, parcel: Parcel) -> None:
        """Remember that the server has these events, and free their space."""
        if (parcel.segment, parcel.offset) != (self._segment, self._offset):
            self._segment, self._offset = parcel.segment, parcel.offset
            self._control.write(ACKNOWLEDGED, parcel.segment, parcel.offset)
        del self._tail[: parcel.tail_count]
        if self._spool is not None:
            newest = parcel.events[-1][1]["seq"] if parcel.events else 0
            assert isinstance(newest, int)
            self._spool.forget(parcel.segment, newest)

    @property
    def empty(self) -> bool:
        """Whether everything has been acknowledged."""
        if self._spool is not None:
            mark = self._spool.mark
            return (self._segment, self._offset) == (mark[0], mark[2]) and not self._spool.awaited and self._spool.lost is None
        return not self._tail and next(self._walk(), None) is None

    def count(self) -> int:
        """How many events are still to be sent."""
        rows = sum(1 for record, _, _ in self._walk() if not record.flags & FILL and record.kind != ENDING)
        return rows + len(self._tail)

    def _content(self, record: Record) -> Record | None:
        """The record, or what was put in its place; None where its values have not arrived."""
        if self._spool is None:
            return self._fills.get(record.seq, record)
        filled = self._spool.fills.get(record.seq)
        if filled is not None:
            found = record_at(filled, 0, len(filled))
            assert found is not None
            record = found[0]
        return None if record.flags & PENDING else record

    def _walk(self) -> Iterator[tuple[Record, int, int]]:
        """All records from the acknowledged place on, each with the place behind it. What is damaged is passed over."""
        segment, offset = self._segment, self._offset
        mark = self._spool.claim() if self._spool is not None else None
        last = mark[0] if mark is not None else max(self._segments, default=0)
        while True:
            area = self._area(segment)
            if area is not None:
                stop = mark[2] if mark is not None and segment == mark[0] else len(area)
                while True:
                    found = record_at(area, offset, stop)
                    if found is None:
                        beyond = behind_damage(area, offset, stop)
                        if beyond is None:
                            break
                        offset = beyond
                        continue
                    record, offset = found
                    yield record, segment, offset
            if segment >= last:
                return
            segment, offset = segment + 1, HEADER_BYTES

    def _area(self, index: int) -> mmap.mmap | None:
        if self._spool is None and index not in self._segments:
            return None
        if self._mapped is None or self._mapped[0] != index:
            mark = self._spool.mark if self._spool is not None else None
            # The newest segment of a living process is in its hands, even if somebody has deleted the file.
            area = mark[1] if mark is not None and mark[0] == index else self._storage.open(name_of(index))
            if area is None:
                return None
            self._mapped = (index, area)
        return self._mapped[1]

    def _existing(self) -> dict[int, int]:
        """The segments that have begun to exist, each with the first seq that can lie in it."""
        found = {}
        for name in self._storage.names():
            index = index_of(name)
            area = self._storage.open(name) if index is not None else None
            if index is not None and area is not None and (first := first_seq_of(area)) is not None:
                found[index] = first
        return found

    def _survey(self) -> None:
        """Look through what a dead process left: replaced contents, open groups, events that are not there."""
        start = self._segment, self._offset
        # Also what is acknowledged: a group is closed by an event that the server has, and the scratch may still hold it.
        first_segment = min(self._segments, default=1)
        self._segment, self._offset = first_segment, HEADER_BYTES
        newest_seq = self._segments.get(first_segment, 1) - 1
        closed_groups, holes, told = set(), [], []
        for record, segment, _ in self._walk():
            begun = self._segments[segment]
            if record.seq > newest_seq and record.kind != ENDING:
                if record.seq > newest_seq + 1:
                    holes.append((newest_seq + 1, record.seq - 1))
                newest_seq = record.seq
            newest_seq = max(newest_seq, begun - 1)
            if record.kind == UPDATE_ROW:
                closed_groups.add(record.group)
            elif (row := event(record, ()) if record.kind != ENDING else None) and row[0] == "gaps":
                told.append((row[1]["first"], row[1]["last"]))
            if record.flags & FILL:
                self._fills[record.seq] = record
        self._segment, self._offset = start
        last = self._segments.get(max(self._segments, default=0), 1) - 1
        if last > newest_seq:
            holes.append((newest_seq + 1, last))
            newest_seq = last
        losses = [(*hole, "spool_damaged") for hole in holes if hole not in told]
        lost = self._control.read(LOST)
        if lost is not None and lost[1] > newest_seq:
            losses.append((*lost, "spool_full"))
            newest_seq = lost[1]
        for first, stop, reason in losses:
            newest_seq += 1
            self._tail.append(("gaps", {"seq": newest_seq, "first": first, "last": stop, "reason": reason}))
        groups = [open_group(area) for name in self._storage.names() if is_scratch(name) and (area := self._storage.open(name)) is not None]
        for group in sorted((group for group in groups if group is not None), key=lambda group: group.group):
            if group.group not in closed_groups:
                newest_seq += 1
                self._tail.append(("updates", update_row(group._replace(seq=newest_seq), self._names)))
