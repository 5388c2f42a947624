"""What of a spool is still to be sent, in the order in which it was recorded.

The same reading serves a living process (up to the mark of its spool) and what a dead one left behind. Of a dead process it also
gives what was never an event yet: groups that were open when it died, and the numbers of events that had found no room.
"""

import json
import mmap
from collections.abc import Iterator
from typing import NamedTuple

from . import scratch
from .control import ACKNOWLEDGED, LOST, Control
from .records import ENDING, FILL, PENDING, UPDATE_ROW, Record, Row, body_with_ranges, event, last_group, record_at, update_row
from .segment import HEADER_BYTES, index_of, name_of, read_header
from .spool import Spool
from .storage import Storage


class Parcel(NamedTuple):
    """Some events in order, and the place in the spool behind them."""

    events: list[tuple[str, Row]]
    ending: Row | None
    segment: int
    offset: int
    tail_count: int


class Backlog:
    """The reader's side of a spool: of a living one if `spool` is given, else of one that a process left."""

    def __init__(self, storage: Storage, spool: Spool | None = None) -> None:
        self._storage = storage
        self._spool = spool
        self._control = spool.control if spool is not None else Control(storage)
        self._mapped: tuple[int, mmap.mmap] | None = None
        self._tail: list[tuple[str, Row]] = []
        self._fills: dict[int, Record] = {}
        self._segments = [1] if spool is not None else self._existing()
        place = self._control.read(ACKNOWLEDGED)
        self._segment, self._offset = place or (self._segments[0] if self._segments else 1, HEADER_BYTES)
        if spool is None:
            self._survey()

    def take(self, limit: int) -> Parcel:
        """The next events that may be sent, at most that many."""
        events: list[tuple[str, Row]] = []
        segment, offset = self._segment, self._offset
        for record, at_segment, at_offset in self._walk():
            if record.flags & FILL:
                pass
            elif record.kind == ENDING:
                if not events:
                    return Parcel([], json.loads(record.body), at_segment, at_offset, 0)
                break
            else:
                content = self._content(record)
                if content is None or len(events) == limit:
                    break
                events.append(event(content))
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
            return (self._segment, self._offset) == (mark.segment, mark.tail) and not self._spool.awaited and self._spool.lost is None
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
        """All records from the acknowledged place on, each with the place behind it."""
        segment, offset = self._segment, self._offset
        mark = self._spool.claim() if self._spool is not None else None
        while True:
            area = self._area(segment)
            last = mark.segment if mark is not None else self._segments[-1] if self._segments else 0
            if area is not None:
                stop = mark.tail if mark is not None and segment == mark.segment else len(area)
                while (found := record_at(area, offset, stop)) is not None:
                    record, offset = found
                    yield record, segment, offset
            if segment >= last:
                return
            segment, offset = segment + 1, HEADER_BYTES

    def _area(self, index: int) -> mmap.mmap | None:
        if self._mapped is None or self._mapped[0] != index:
            area = self._storage.open(name_of(index))
            if area is None:
                return None
            self._mapped = (index, area)
        return self._mapped[1]

    def _existing(self) -> list[int]:
        indexes = []
        for name in self._storage.names():
            index = index_of(name)
            area = self._storage.open(name) if index is not None else None
            if index is not None and area is not None and read_header(area) is not None:
                indexes.append(index)
        return indexes

    def _survey(self) -> None:
        """Look through what a dead process left: replaced contents, open groups, events that had found no room."""
        newest_seq = 0
        closed_groups = set()
        if self._segments:
            area = self._area(self._segments[-1])
            header = read_header(area) if area is not None else None
            newest_seq = header.first_seq - 1 if header is not None else 0
        start = self._segment, self._offset
        # Also what is acknowledged: a group is closed by an event that the server has, and the scratch may still hold it.
        self._segment, self._offset = self._segments[0] if self._segments else 1, HEADER_BYTES
        for record, _, _ in self._walk():
            newest_seq = max(newest_seq, record.seq)
            if record.kind == UPDATE_ROW:
                closed_groups.add(record.group)
            if record.flags & FILL:
                self._fills[record.seq] = record
        self._segment, self._offset = start
        lost = self._control.read(LOST)
        if lost is not None and lost[1] > newest_seq:
            newest_seq = lost[1] + 1
            self._tail.append(("gaps", {"seq": newest_seq, "first": lost[0], "last": lost[1], "reason": "spool_full"}))
        groups = [last_group(area) for name in self._storage.names() if (area := scratch.opened(self._storage, name))]
        for record, ranges, count in sorted((group for group in groups if group is not None), key=lambda group: group[0].group):
            if record.group not in closed_groups:
                newest_seq += 1
                body = body_with_ranges(record.body, ranges, count)
                self._tail.append(("updates", update_row(record._replace(seq=newest_seq, body=body))))
