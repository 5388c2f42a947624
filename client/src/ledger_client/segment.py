"""The files that a spool is made of: a header, then records one behind the other, then zeros.

| bytes | field of the header |
|---|---|
| 0-7 | mark and version of the format |
| 8-15 | number of the segment |
| 16-23 | seq of the first event that can lie in it |
| 24-39 | writer |
| 40-43 | CRC-32 of the bytes before |

A segment is made ahead of its use, without a header; it begins to exist for a reader when the header is written.
"""

import mmap
import re
import struct
from typing import NamedTuple
from zlib import crc32

HEADER = struct.Struct("<8sQQ16s")
HEADER_BYTES = 64
MARK = b"LEDGER\x00\x01"
NAME = re.compile(r"segment-(\d{8})")


class Header(NamedTuple):
    """What the header of a segment says."""

    segment: int
    first_seq: int
    writer: str


def name_of(index: int) -> str:
    """The file name of a segment."""
    return f"segment-{index:08d}"


def index_of(name: str) -> int | None:
    """The number of the segment of that file name; None if it is no segment."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None


def write_header(area: mmap.mmap, index: int, first_seq: int, writer: str) -> None:
    """Let the segment begin to exist."""
    raw = HEADER.pack(MARK, index, first_seq, writer.encode())
    sealed = raw + struct.pack("<I", crc32(raw))
    area[: len(sealed)] = sealed


def read_header(area: mmap.mmap) -> Header | None:
    """What the header says; None where there is no valid one."""
    raw = area[: HEADER.size]
    (checksum,) = struct.unpack_from("<I", area, HEADER.size)
    mark, index, first_seq, writer = HEADER.unpack(raw)
    if mark != MARK or checksum != crc32(raw):
        return None
    return Header(index, first_seq, writer.decode())
