"""The files that a spool is made of: a header, then records one behind the other, then zeros.

| bytes | field of the header |
|---|---|
| 0-5, 7 | mark, version of the format |
| 8-15 | number of the segment |
| 16-23 | seq of the first event that can lie in it |
| 24-39 | writer |
| 40-43 | CRC-32 of the bytes before |

A segment is made ahead of its use, without a header; it begins to exist for a reader when the header is written. A number may be
missing: of two segments that were made at once, one is thrown away.
"""

from __future__ import annotations

import mmap
import struct
from zlib import crc32

HEADER = struct.Struct("<6sxBQQ16s")
HEADER_BYTES = 64
MARK = b"LEDGER"
FORMAT_VERSION = 2
PREFIX = "segment-"


class OtherFormat(Exception):
    """A spool is written in a version of the format that this client does not read."""


def name_of(index: int) -> str:
    """The file name of a segment.

    >>> name_of(7)
    'segment-00000007'
    """
    return f"{PREFIX}{index:08d}"


def index_of(name: str) -> int | None:
    """The number of the segment of that file name; None if it is no segment."""
    digits = name[len(PREFIX) :]
    return int(digits) if name.startswith(PREFIX) and len(digits) >= 8 and digits.isdecimal() else None


def header_of(index: int, first_seq: int, writer: str) -> bytes:
    """What lets a segment begin to exist when it is written to its beginning."""
    raw = HEADER.pack(MARK, FORMAT_VERSION, index, first_seq, writer.encode())
    return raw + struct.pack("<I", crc32(raw))


def first_seq_of(area: mmap.mmap) -> int | None:
    """The seq of the first event that can lie in a segment; None where it has no valid header.

    Raises: OtherFormat where another version of the client wrote it.
    """
    if len(area) < HEADER_BYTES:
        return None
    raw = area[: HEADER.size]
    (checksum,) = struct.unpack_from("<I", area, HEADER.size)
    mark, version, _, first_seq, _ = HEADER.unpack(raw)
    if mark != MARK:
        return None
    if version != FORMAT_VERSION:
        raise OtherFormat(f"the spool is written in version {version} of the format, and this client reads version {FORMAT_VERSION}")
    return int(first_seq) if checksum == crc32(raw) else None
