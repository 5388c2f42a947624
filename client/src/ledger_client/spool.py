"""The events of one process and one attempt, from the record call until the server has acknowledged them.

The training thread appends; the sender reads up to the mark, sends, and acknowledges. A record call is a copy into a mapped page
and one assignment that moves the mark, so that neither a kill nor an exception between two instructions leaves half an event.
Space is bounded: what finds no room is dropped, newest first, and its sequence numbers are kept until a `gaps` event names them.

Law: seq grows by one from 1 over all kinds; every number up to the newest is an event, or lies in the range of a `gaps` event.
"""

import mmap
import threading
from typing import NamedTuple, Protocol

from .control import LOST, Control
from .records import ENDING, FILL, PLAIN_ROW, frame, pack_plain
from .segment import HEADER_BYTES, name_of, write_header
from .storage import Storage

SEGMENT_BYTES = 1 << 20
TOTAL_BYTES = 256 << 20
SPARE = "spare"
GAP_BYTES = 256
"""Room that a `gaps` event takes at most."""


class Mark(NamedTuple):
    """How far the spool is written: all of it is replaced at once."""

    segment: int
    area: mmap.mmap
    tail: int
    size: int
    seq: int


class Awaited(Protocol):
    """A record that waits for values which are still on a device."""

    def ready(self) -> bool:
        """Whether the values can be read without waiting."""

    def body(self) -> bytes:
        """The record's body with the values in it."""


class Spool:
    """The writer's side of a spool."""

    def __init__(self, storage: Storage, writer: str, segment_bytes: int = SEGMENT_BYTES, total_bytes: int = TOTAL_BYTES) -> None:
        self.storage = storage
        self.writer = writer
        self.segment_bytes = segment_bytes
        self.total_bytes = max(total_bytes, 2 * segment_bytes)
        self.control = Control(storage)
        self.fills: dict[int, bytes] = {}
        self.awaited: dict[int, tuple[Awaited, int, int, int, int]] = {}
        self.dropped_count = 0
        self.lost: tuple[int, int] | None = None
        self.claimed_seq = 0
        # A signal handler may record while the same thread is inside a record call, hence re-entrant; see `append`.
        self.lock = threading.RLock()
        self._sizes: dict[int, int] = {}
        self._spare: tuple[int, mmap.mmap] | None = None
        area = self._make(1, segment_bytes)
        write_header(area, 1, 1, writer)
        self.mark = Mark(1, area, HEADER_BYTES, segment_bytes, 0)

    def append(
        self, kind: int, body: bytes, *, flags: int = 0, outcome: int = 0, reason: int = 0, group: int = 0, clear: mmap.mmap | None = None
    ) -> int:
        """Write one event and give its seq; with `clear`, empty the scratch that the event supersedes.

        Nothing between the comparison and the assignment of the mark can be interrupted by a signal handler, which is why a handler
        that recorded something meanwhile is noticed, and its record kept.
        """
        with self.lock:
            while True:
                mark = self.mark
                seq = mark.seq + 1
                record = frame(kind, flags, outcome, reason, group, seq, body)
                stop = mark.tail + len(record)
                if stop > mark.size or self.lost is not None:
                    if self._make_room(len(record)):
                        continue
                    self._drop()
                    break
                moved = tuple.__new__(Mark, (mark.segment, mark.area, stop, mark.size, seq))
                if self.mark is mark:
                    mark.area[mark.tail : stop] = record
                    self.mark = moved
                    break
            if clear is not None:
                clear[:8] = bytes(8)
            return seq

    def end(self, body: bytes) -> None:
        """Write how the attempt ended; it has no seq of its own."""
        self._append_unnumbered(frame(ENDING, 0, 0, 0, 0, 0, body))

    def replace(
        self, seq: int, kind: int, body: bytes, *, flags: int = 0, outcome: int = 0, reason: int = 0, group: int = 0
    ) -> bool:
        """Put another content in the place of the newest event, if no one has read it yet; False where it is too late."""
        with self.lock:
            if seq != self.mark.seq or seq <= self.claimed_seq or self.lost is not None:
                return False
            record = frame(kind, FILL | flags, outcome, reason, group, seq, body)
            if not self._append_unnumbered(record):
                return False
            self.fills[seq] = record
            self.awaited.pop(seq, None)
            return True

    def await_values(self, seq: int, awaited: Awaited, kind: int, outcome: int = 0, reason: int = 0, group: int = 0) -> None:
        """Let the sender fill an event in as soon as its values have arrived."""
        with self.lock:
            self.awaited[seq] = (awaited, kind, outcome, reason, group)

    def fill(self) -> None:
        """Fill in what has arrived. Only the sender's thread calls this."""
        for seq, entry in sorted(self.awaited.items()):
            awaited, kind, outcome, reason, group = entry
            if not awaited.ready():
                continue
            record = frame(kind, FILL, outcome, reason, group, seq, awaited.body())
            with self.lock:
                if self.awaited.get(seq) is not entry:
                    continue
                self._append_unnumbered(record)
                self.fills[seq] = record
                del self.awaited[seq]

    def claim(self) -> Mark:
        """How far events may be read; what has been read is never replaced any more."""
        with self.lock:
            self.claimed_seq = self.mark.seq
            return self.mark

    def forget(self, segment: int, seq: int) -> None:
        """Free what is acknowledged: segments before that one, and contents up to that seq."""
        with self.lock:
            for index in [index for index in self._sizes if index < segment]:
                self.storage.delete(name_of(index))
                del self._sizes[index]
            for filled in [filled for filled in self.fills if filled <= seq]:
                del self.fills[filled]

    def prepare(self) -> None:
        """Make the next segment ahead of its use, and tell of losses once there is room. Only the sender's thread calls this."""
        mark = self.mark
        if self._spare is None and mark.tail > mark.size // 2 and self._fits(self.segment_bytes):
            try:
                area = self.storage.create(SPARE, self.segment_bytes)
            except OSError:
                return
            with self.lock:
                index = self.mark.segment + 1
                self.storage.rename(SPARE, name_of(index))
                self._spare, self._sizes[index] = (index, area), self.segment_bytes
        self.tell_losses(self.segment_bytes // 4)

    def tell_losses(self, room_bytes: int) -> None:
        """Post the `gaps` event of what was dropped, if there is room for that many bytes."""
        with self.lock:
            if self.lost is not None:
                self._make_room(room_bytes)

    def _append_unnumbered(self, record: bytes) -> bool:
        """Write a record that takes no new seq; False where there is no room."""
        with self.lock:
            while True:
                mark = self.mark
                stop = mark.tail + len(record)
                if stop > mark.size:
                    if self._rotate(len(record)):
                        continue
                    return False
                moved = Mark(mark.segment, mark.area, stop, mark.size, mark.seq)
                if self.mark is mark:
                    mark.area[mark.tail : stop] = record
                    self.mark = moved
                    return True

    def _make_room(self, record_bytes: int) -> bool:
        """Make room for a record, and write the `gaps` event that is due before it; False where there is none."""
        needed = record_bytes + (GAP_BYTES if self.lost else 0)
        if self.mark.tail + needed > self.mark.size and not self._rotate(needed):
            return False
        if self.lost is not None:
            first, last = self.lost
            mark = self.mark
            body = pack_plain("gaps", {"first": first, "last": last, "reason": "spool_full"})
            record = frame(PLAIN_ROW, 0, 0, 0, 0, mark.seq + 1, body)
            stop = mark.tail + len(record)
            mark.area[mark.tail : stop] = record
            self.mark = mark._replace(tail=stop, seq=mark.seq + 1)
            self.lost = None
        return True

    def _drop(self) -> None:
        mark = self.mark
        seq = mark.seq + 1
        first = self.lost[0] if self.lost else seq
        self.control.write(LOST, first, seq)
        self.lost = (first, seq)
        self.mark = mark._replace(seq=seq)
        self.dropped_count += 1

    def _rotate(self, record_bytes: int) -> bool:
        """Go on in a new segment that has room for the record; False where the spool is full."""
        mark = self.mark
        index = mark.segment + 1
        size = max(self.segment_bytes, HEADER_BYTES + record_bytes)
        area = None
        if self._spare is not None and self._spare[0] == index:
            area, self._spare = self._spare[1], None
            if len(area) < size:
                self.storage.delete(name_of(index))
                self._sizes.pop(index)
                area = None
        if area is None:
            if not self._fits(size):
                return False
            try:
                area = self._make(index, size)
            except OSError:
                return False
        write_header(area, index, mark.seq + 1, self.writer)
        self.mark = Mark(index, area, HEADER_BYTES, len(area), mark.seq)
        return True

    def _fits(self, size_bytes: int) -> bool:
        return sum(self._sizes.values()) + size_bytes <= self.total_bytes

    def _make(self, index: int, size_bytes: int) -> mmap.mmap:
        area = self.storage.create(name_of(index), size_bytes)
        self._sizes[index] = size_bytes
        return area


