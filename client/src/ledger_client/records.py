"""How a row of the ledger is written to the spool: one framed, checksummed record.

| bytes | field |
|---|---|
| 0-3 | length of the payload; 0 where the segment has no further record |
| 4-7 | CRC-32 of the payload, begun with the seq |
| 8-15 | seq |
| 16-23 | payload: kind, flags, outcome, reason, group |
| 24- | payload: packed numbers and cells for an update, JSON for everything else |

A record is copied into its place in one piece, and a reader believes it only if its checksum agrees, so a process that is killed
while it writes loses at most the record whose call had not returned yet.
"""

from __future__ import annotations

import json
import operator
import struct
import time
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shapes import Row

FRAME = struct.Struct("<IIQ")
PREFIX = struct.Struct("<BBBBI")
CLOSING = struct.Struct("<BBBBIQIIQddd")
SHARD = struct.Struct("<I")
SEQ_MASK = 0xFFFFFFFF

UPDATE_ROW, PLAIN_ROW, ENDING = 1, 2, 3
"""Kinds of records: an update (or an open group), a row of another kind, how the attempt ended."""

FILL, PENDING, REPORTED_KNOWN, UNCOUNTED = 1, 2, 4, 8
"""Flags: this record takes the place of an earlier one with its seq; a value of this record is still on a device; the reported loss
is known; the cells do not tell all microbatches, so no count is known."""

NO_PARTICIPANTS = 0xFFFFFFFF
OUTCOMES: tuple[str | None, ...] = ("open", "applied", "skipped", "abandoned", None)
REASONS: tuple[str | None, ...] = (None, "overflow", "nonfinite", "spike_guard", "no_targets", "other")

PLAIN_PREFIX = PREFIX.pack(PLAIN_ROW, 0, 0, 0, 0)
encoded = json.JSONEncoder(separators=(",", ":"), default=operator.index).encode


def frame(payload: bytes, seq: int) -> bytes:
    """The bytes of one record."""
    return FRAME.pack(len(payload), crc32(payload, seq & SEQ_MASK), seq) + payload


def plain_payload(kind: str, row: Row, flags: int = 0) -> bytes:
    """The payload of a row of any other kind than `updates`."""
    return PREFIX.pack(PLAIN_ROW, flags, 0, 0, 0) + encoded([kind, row]).encode()


def ending_payload(ending: Row) -> bytes:
    """The payload that says how the attempt ended."""
    return PREFIX.pack(ENDING, 0, 0, 0, 0) + encoded(ending).encode()


def moment(seconds: float) -> str:
    """RFC 3339 text of a moment. Units: seconds since 1970-01-01T00:00:00Z.

    >>> moment(0.25)
    '1970-01-01T00:00:00.250000Z'
    """
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"
