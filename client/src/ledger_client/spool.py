"""The events of one process and one attempt, from the record call until the server has acknowledged them.

The training thread appends; the sender reads up to the mark, sends, and acknowledges. A record call is a copy into a mapped page
and one assignment that moves the mark, so that neither a kill nor an exception between two instructions leaves half an event.
Space is bounded: what finds no room is dropped, newest first, and its sequence numbers are kept until a `gaps` event names them.

Law: seq grows by one from 1 over all kinds; every number up to the newest is an event, or lies in the range of a `gaps` event.

No lock is taken to record: a signal handler that closes the run would wait for the sender, and the sender for the interrupted record
call. Instead whoever changes the spool prepares everything, compares the mark with the one it began from, and only then stores. From
the comparison to the assignment of the mark the interpreter calls nothing, allocates nothing that the garbage collector tracks and
jumps nowhere back, so it switches to no other thread and to no signal handler; where the mark has changed, all is prepared again.
"""

from __future__ import annotations

import itertools
import mmap
import threading
from zlib import crc32

from .control import LOST, Control
from .records import FILL, FRAME, SEQ_MASK, ending_payload, frame, plain_payload
from .segment import HEADER_BYTES, header_of, name_of
from .storage import touched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shapes import Awaited, Mark, Row, Storage

SEGMENT_BYTES = 1 << 20
TOTAL_BYTES = 256 << 20
GAP_BYTES = 256
"""Room that a `gaps` event takes at most."""
LONGEST_WAIT_SECONDS = 0.2
WARM_BYTES = 128 << 10
"""So much is kept ready to be written without a page fault: some two hundred updates."""
STREAMS, STREAMS_BYTES = "streams", 64 << 10
EMPTY = bytes(8)


class Spool:
    """The writer's side of a spool."""

    def __init__(
        self, storage: Storage, writer: str, segment_bytes: int = SEGMENT_BYTES, total_bytes: int = TOTAL_BYTES, read: bool = True
    ) -> None:
        self.storage = storage
        self.writer = writer
        self.segment_bytes = segment_bytes
        self.total_bytes = max(total_bytes, 2 * segment_bytes)
        self.control = Control(storage)
        self.fills: dict[int, bytes] = {}
        self.awaited: dict[int, Awaited] = {}
        self.dropped_count = 0
        self.lost: tuple[int, int] | None = None
        self.claimed_seq = 0
        self.lock = threading.RLock()
        """For the names of streams alone."""
        self._making = threading.RLock()
        self._read = read
        self._sealed = False
        self._sizes: dict[int, int] = {1: segment_bytes}
        self._spare: tuple[int, mmap.mmap] | None = None
        self._made = itertools.count(2)
        self._streams = storage.create(STREAMS, STREAMS_BYTES)
        self._streams_tail = 0
        self.stream_numbers: dict[str, int] = {}
        area = storage.create(name_of(1), segment_bytes)
        header = header_of(1, 1, writer)
        area[: len(header)] = header
        self.mark: Mark = (1, area, HEADER_BYTES, segment_bytes, 0)

    @property
    def newest_seq(self) -> int:
        """The number of the newest event."""
        return self.mark[4]

    def append(self, payload: bytes, clear: mmap.mmap | None = None) -> int:
        """Write one event and give its seq; with `clear`, empty the scratch that the event supersedes."""
        while True:
            mark = self.mark
            segment, area, tail, room, newest = mark
            seq = newest + 1
            stop = tail + 16 + len(payload)
            if stop > room:
                return self._append_slowly(payload, clear)
            record = FRAME.pack(len(payload), crc32(payload, seq & SEQ_MASK), seq) + payload
            moved = segment, area, stop, room, seq
            place = slice(tail, stop)
            if self.mark is mark:
                area[place] = record
                self.mark = moved
                if clear is not None:
                    clear[:8] = EMPTY
                return seq

    def end(self, ending: Row) -> None:
        """Write how the attempt ended; it has no seq of its own."""
        payload = ending_payload(ending)
        if not self._put(payload, 0) and self._provide(FRAME.size + len(payload)):
            self._put(payload, 0)

    def seal(self) -> None:
        """Take nothing more: a record call that was interrupted by the closing of the run must not write into what is given up."""
        self._sealed = True
        while True:
            mark = self.mark
            moved = (*mark[:3], 0, mark[4])
            if self.mark is mark:
                self.mark = moved
                return

    def replace(self, seq: int, payload: bytes) -> bool:
        """Put another content in the place of the newest event, if no one has read it yet; False where it is too late."""
        filled = payload[:1] + bytes([payload[1] | FILL]) + payload[2:]
        while True:
            mark = self.mark
            segment, area, tail, room, newest = mark
            record = frame(filled, seq)
            stop = tail + len(record)
            if seq != newest or seq <= self.claimed_seq or seq in self.awaited or stop > room:
                return False
            moved = segment, area, stop, room, newest
            place = slice(tail, stop)
            if self.mark is mark:
                area[place] = record
                self.mark = moved
                self._keep_fill(seq, filled)
                return True

    def await_values(self, seq: int, awaited: Awaited) -> None:
        """Let the sender fill an event in as soon as its values have arrived."""
        self.awaited[seq] = awaited

    def fill(self) -> None:
        """Fill in what has arrived. Only the sender's thread calls this.

        A value that finds no room on the disk is sent all the same, and unknown only if the process dies before.
        """
        for seq, awaited in sorted(self.awaited.copy().items()):
            if not awaited.ready():
                continue
            payload = awaited.payload()
            if not self._put(payload, seq) and self._provide(FRAME.size + len(payload)):
                self._put(payload, seq)
            self._keep_fill(seq, payload)
            # Last: as long as it is awaited, no one replaces it.
            del self.awaited[seq]

    def claim(self) -> Mark:
        """How far events may be read; what has been read is never replaced any more."""
        while True:
            mark = self.mark
            claimed = (*mark,)
            newest = mark[4]
            if self.mark is mark:
                self.claimed_seq = newest
                self.mark = claimed
                return claimed

    def forget(self, segment: int, seq: int) -> None:
        """Free what is acknowledged: segments before that one, and contents up to that seq."""
        for index in [index for index in self._sizes.copy() if index < segment]:
            self.storage.delete(name_of(index))
            self._sizes.pop(index, None)
        for filled in [filled for filled in self.fills.copy() if filled <= seq]:
            del self.fills[filled]

    def prepare(self) -> None:
        """Make the next segment ahead of its use, and tell of losses once there is room. Only the sender's thread calls this."""
        tail = self.mark[2]
        if self._spare is None and (self.lost is not None or tail > len(self.mark[1]) // 2):
            self._provide(self.segment_bytes - HEADER_BYTES - GAP_BYTES)
        self.tell_losses(self.segment_bytes // 4)

    def warm(self) -> None:
        """Touch what is written next, which the kernel may have written to the disk and watch again."""
        _, area, tail, _, _ = self.mark
        touched(area, tail, tail + WARM_BYTES)
        spare = self._spare
        if spare is not None:
            touched(spare[1], 0, WARM_BYTES)

    def tell_losses(self, room_bytes: int) -> None:
        """Post the `gaps` event of what was dropped, if there is room for that many bytes."""
        if self.lost is not None and self._room_for(room_bytes):
            self._put_gap()

    def stream_number(self, name: str) -> int:
        """The number that stands for a data stream in the cells of a group. Raises: ValueError where the table is full."""
        if not name:
            raise ValueError("a data stream has a name")
        raw = name.encode()
        with self.lock:
            number = self.stream_numbers.get(name)
            if number is not None:
                return number
            entry = len(raw).to_bytes(2, "little") + crc32(raw).to_bytes(4, "little") + raw
            stop = self._streams_tail + len(entry)
            if stop > STREAMS_BYTES:
                raise ValueError("there are too many data streams")
            self._streams[self._streams_tail : stop] = entry
            self._streams_tail = stop
            number = self.stream_numbers[name] = len(self.stream_numbers)
            return number

    def _append_slowly(self, payload: bytes, clear: mmap.mmap | None) -> int:
        """Write an event where the present segment has no room; drop it where there is none at all.

        While events are being dropped only the sender looks for room: a full disk must not slow the training down.
        """
        needed = FRAME.size + len(payload)
        for last in (False, False, False, True):
            if self._sealed:
                return self.newest_seq
            if self.lost is None or (self._room_for(needed + GAP_BYTES) and self._put_gap()):
                seq = self._put(payload)
                if seq:
                    if clear is not None:
                        clear[:8] = EMPTY
                    return seq
            if last or self.lost is not None or not self._provide(needed):
                break
        return self._drop()

    def _room_for(self, size_bytes: int) -> bool:
        """Whether the present segment has that room; goes on in the spare one if it has not."""
        while True:
            mark = self.mark
            _, area, tail, _, seq = mark
            if tail + size_bytes <= len(area):
                return True
            spare = self._spare
            if spare is None or HEADER_BYTES + size_bytes > len(spare[1]):
                return False
            index, fresh = spare
            header = header_of(index, seq + 1, self.writer)
            moved = index, fresh, HEADER_BYTES, self._open_room(fresh), seq
            place = slice(0, len(header))
            if self.mark is mark and self._spare is spare:
                fresh[place] = header
                self._spare = None
                self.mark = moved

    def _open_room(self, area: mmap.mmap) -> int:
        """Where the room of a segment ends for `append`: at once while events are being dropped, or none are taken any more."""
        return 0 if self._sealed or self.lost is not None else len(area)

    def _put(self, payload: bytes, seq: int | None = None) -> int:
        """Write a record, under a new seq unless one is given; gives the seq, or 0 where there is no room (for an ending: 1)."""
        while self._room_for(FRAME.size + len(payload)):
            mark = self.mark
            segment, area, tail, _, newest = mark
            number = newest + 1 if seq is None else seq
            record = frame(payload, number)
            stop = tail + len(record)
            moved = segment, area, stop, self._open_room(area), newest if seq is not None else number
            place = slice(tail, stop)
            if stop <= len(area) and self.mark is mark:
                area[place] = record
                self.mark = moved
                return number or 1
        return 0

    def _put_gap(self) -> bool:
        """Write the `gaps` event that is due, which ends the dropping; False where there is no room for it."""
        while (lost := self.lost) is not None:
            mark = self.mark
            segment, area, tail, _, newest = mark
            first, last = lost
            record = frame(plain_payload("gaps", {"first": first, "last": last, "reason": "spool_full"}), newest + 1)
            stop = tail + len(record)
            moved = segment, area, stop, 0 if self._sealed else len(area), newest + 1
            place = slice(tail, stop)
            if stop > len(area):
                return False
            if self.mark is mark:
                area[place] = record
                self.lost = None
                self.mark = moved
        return True

    def _drop(self) -> int:
        """Give an event up: its number is spent, and told later."""
        while True:
            mark = self.mark
            segment, area, tail, _, newest = mark
            lost = (self.lost[0] if self.lost is not None else newest + 1, newest + 1)
            moved = segment, area, tail, 0, newest + 1
            if self.mark is mark:
                self.lost = lost
                self.mark = moved
                break
        self.dropped_count += 1
        while (told := self.lost) is not None:
            self.control.write(LOST, *told)
            if told is self.lost:
                break
        return lost[1]

    def _provide(self, record_bytes: int) -> bool:
        """See to a segment that has room for the record; False where the spool or the disk is full.

        One thread makes it and the others wait for it, but not for long: a signal handler may have interrupted the one that makes it.
        """
        size = max(self.segment_bytes, HEADER_BYTES + record_bytes + GAP_BYTES)
        alone = self._making.acquire(timeout=LONGEST_WAIT_SECONDS)
        try:
            spare = self._spare
            _, area, tail, _, _ = self.mark
            if (spare is not None and len(spare[1]) >= size) or tail + record_bytes + GAP_BYTES <= len(area):
                return True
            return self._make_spare(size)
        finally:
            if alone:
                self._making.release()

    def _make_spare(self, size: int) -> bool:
        if sum(list(self._sizes.values())) + size > self.total_bytes:
            return False
        index = next(self._made)
        self._sizes[index] = size
        try:
            made = index, self.storage.create(name_of(index), size)
        except OSError:
            self._sizes.pop(index, None)
            return False
        except BaseException:
            # A handler of the trainer's interrupted the making: what was not made takes no room.
            self._sizes.pop(index, None)
            raise
        over = index
        while index > self.mark[0]:
            spare = self._spare
            if spare is not None and len(spare[1]) >= size:
                break
            if self._spare is spare:
                self._spare = made
                over = spare[0] if spare is not None else 0
                break
        if over:
            self.storage.delete(name_of(over))
            self._sizes.pop(over, None)
        return True

    def _keep_fill(self, seq: int, payload: bytes) -> None:
        if self._read:
            self.fills[seq] = frame(payload, seq)
