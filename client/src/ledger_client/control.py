"""The one page of a spool that is written again and again: how far it is acknowledged, and what had to be dropped.

Each fact has two places that are written in turn, with a rising number and a checksum: a kill in the middle of a write leaves
the older value to be read.
"""

from __future__ import annotations

import mmap
import struct
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shapes import Storage

CONTROL_BYTES = mmap.PAGESIZE
NAME = "control"
VALUE = struct.Struct("<QQQ")
CHECKED = struct.Struct("<I4x")
SLOT_BYTES = CHECKED.size + VALUE.size
ACKNOWLEDGED, LOST = 0, 2 * SLOT_BYTES


def read_pair(page: mmap.mmap, place: int) -> tuple[int, int, int]:
    """Turn and both numbers of the fact kept at that place; turn 0 where nothing was written yet."""
    newest = (0, 0, 0)
    for slot in (0, 1):
        begin = place + slot * SLOT_BYTES
        raw = page[begin : begin + SLOT_BYTES]
        (checksum,) = CHECKED.unpack_from(raw)
        value = raw[CHECKED.size :]
        turn, first, second = VALUE.unpack(value)
        if crc32(value) == checksum and turn > newest[0]:
            newest = (turn, first, second)
    return newest


class Control:
    """The page as its owner writes it."""

    def __init__(self, storage: Storage, writable: bool = True) -> None:
        page = storage.open(NAME, writable)
        self._page = page if page is not None or not writable else storage.create(NAME, CONTROL_BYTES)
        self._turns = {place: 0 if self._page is None else read_pair(self._page, place)[0] for place in (ACKNOWLEDGED, LOST)}

    def read(self, place: int) -> tuple[int, int] | None:
        """The newest value of a fact; None where there is none."""
        if self._page is None:
            return None
        turn, first, second = read_pair(self._page, place)
        return (first, second) if turn else None

    def write(self, place: int, first: int, second: int) -> None:
        """Put a fact in the place of its predecessor."""
        assert self._page is not None
        turn = self._turns[place] = self._turns[place] + 1
        value = VALUE.pack(turn, first, second)
        begin = place + (turn % 2) * SLOT_BYTES
        self._page[begin : begin + SLOT_BYTES] = CHECKED.pack(crc32(value)) + value
