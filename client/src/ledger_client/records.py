"""How a row of the ledger lies in the spool: one framed, checksummed record.

| bytes | field |
|---|---|
| 0-3 | length of the payload; 0 where the segment has no further record |
| 4-7 | CRC-32 of the payload |
| 8-23 | prefix of the payload: kind, flags, outcome, reason, group, seq |
| 24- | body: packed numbers for an update, JSON for everything else |

A record is copied into its place in one piece, and a reader believes it only if its checksum agrees, so a process that is killed
while it writes loses at most the record whose call had not returned yet.
"""

import json
import mmap
import operator
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from zlib import crc32

FRAME = struct.Struct("<II")
PREFIX = struct.Struct("<BBBBIQ")
BODY = struct.Struct("<QIB3x7q5dII")
UPDATE = struct.Struct("<BBBBIQQIB3x7q5dII")
RANGE = struct.Struct("<QQQ")
NAME_LENGTH = struct.Struct("<H")
SHARD = struct.Struct("<I")

UPDATE_ROW, PLAIN_ROW, ENDING = 1, 2, 3
"""Kinds of records: an update (or an open group), a row of another kind, how the attempt ended."""

FILL, PENDING = 1, 2
"""Flags: this record takes the place of an earlier one with its seq; a value of this record is still on a device."""

# UPDATE is PREFIX and BODY in one, for the record that is written at every microbatch.

LOSS_KNOWN, MEANS_KNOWN, REPORTED_KNOWN, RANGES_KNOWN = 1, 2, 4, 8
ALL_KNOWN = LOSS_KNOWN | MEANS_KNOWN | RANGES_KNOWN
UNKNOWN = -(2**62)
"""Stands for an unknown count: so far below zero that no sum of known ones lifts it above."""

NO_PARTICIPANTS = 0xFFFFFFFF

OUTCOMES: tuple[str | None, ...] = ("open", "applied", "skipped", "abandoned", None)
REASONS: tuple[str | None, ...] = (None, "overflow", "nonfinite", "spike_guard", "no_targets", "other")

Row = dict[str, object]
Range = tuple[str, int, int, int]
Area = bytes | mmap.mmap


class Record(NamedTuple):
    """One record as it lies in the spool."""

    kind: int
    flags: int
    outcome: int
    reason: int
    group: int
    seq: int
    body: bytes


Sums = tuple[int, int, int, int, int, int, float, float, int]
"""What the microbatches of a group amount to so far: slots, tokens, targets, samples, microbatches, microbatches scored, sum of
losses, sum of means, and which of the last and of the ranges are known. A plain tuple: one is made at every microbatch."""

NO_SUMS: Sums = (0, 0, 0, 0, 0, 0, 0.0, 0.0, ALL_KNOWN)
SILENT: Sums = (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 0.0, 0.0, 0)
"""The sums of a rank that reports an outcome and no microbatch: all unknown, none zero."""


def frame(kind: int, flags: int, outcome: int, reason: int, group: int, seq: int, body: bytes) -> bytes:
    """The bytes of one record."""
    payload = PREFIX.pack(kind, flags, outcome, reason, group, seq) + body
    return FRAME.pack(len(payload), crc32(payload)) + payload


def record_at(area: Area, offset: int, stop: int) -> tuple[Record, int] | None:
    """The record at that offset and where the next one begins; None where there is no whole record."""
    if offset + FRAME.size > stop:
        return None
    length, checksum = FRAME.unpack(area[offset : offset + FRAME.size])
    begin = offset + FRAME.size
    if length < PREFIX.size or begin + length > stop:
        return None
    payload = area[begin : begin + length]
    if crc32(payload) != checksum:
        return None
    kind, flags, outcome, reason, group, seq = PREFIX.unpack_from(payload)
    return Record(kind, flags, outcome, reason, group, seq, payload[PREFIX.size :]), begin + length


def pack_range(item: Sequence[object], names: dict[str, bytes]) -> bytes:
    """One `(stream, epoch, start, stop)` range; `names` remembers the encoded streams.

    Raises: ValueError, TypeError or struct.error where it is no range.
    """
    stream, epoch, start, stop = item
    encoded = names.get(stream)  # type: ignore[call-overload]
    if encoded is None:
        if not isinstance(stream, str) or not stream:
            raise TypeError(f"a stream is named by a text, not by {stream!r}")
        raw = stream.encode()
        encoded = names[stream] = NAME_LENGTH.pack(len(raw)) + raw
    if start > stop:  # type: ignore[operator]
        raise ValueError(f"a range starts at or before it stops: {item!r}")
    packed: bytes = encoded + RANGE.pack(epoch, start, stop)
    return packed


def unpack_ranges(body: bytes, count: int) -> list[Range]:
    """The ranges behind the packed numbers of an update, those that touch joined into one.

    Law: joining keeps how often each position was drawn, since ranges are half-open.
    """
    ranges: list[Range] = []
    offset = BODY.size
    for _ in range(count):
        (length,) = NAME_LENGTH.unpack_from(body, offset)
        offset += NAME_LENGTH.size
        stream = body[offset : offset + length].decode()
        epoch, start, stop = RANGE.unpack_from(body, offset + length)
        offset += length + RANGE.size
        if ranges and ranges[-1][0] == stream and ranges[-1][1] == epoch and ranges[-1][3] == start:
            ranges[-1] = (stream, epoch, ranges[-1][2], stop)
        else:
            ranges.append((stream, epoch, start, stop))
    return ranges


def known_count(value: int) -> int | None:
    """A packed count as the ledger reads it: null where unknown."""
    return None if value < 0 else value


def moment(seconds: float) -> str:
    """RFC 3339 text of a moment. Units: seconds since 1970-01-01T00:00:00Z.

    >>> moment(0.25)
    '1970-01-01T00:00:00.250000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def update_row(record: Record) -> Row:
    """The row of the kind `updates` that a record holds."""
    numbers = BODY.unpack_from(record.body)
    update, retry, known = numbers[:3]
    slots, tokens, targets, samples, microbatches, scored, step = numbers[3:10]
    loss, means, reported, started_at, seconds = numbers[10:15]
    range_count, participant_count = numbers[15:17]
    means_known = known & MEANS_KNOWN
    participants = None
    if participant_count != NO_PARTICIPANTS:
        packed = record.body[len(record.body) - participant_count * SHARD.size :]
        participants = [shard for (shard,) in SHARD.iter_unpack(packed)]
    return {
        "seq": record.seq,
        "update": update,
        "retry": retry,
        "outcome": OUTCOMES[record.outcome],
        "reason": REASONS[record.reason],
        "input_slots": known_count(slots),
        "consumed_tokens": known_count(tokens),
        "valid_targets": known_count(targets),
        "samples": known_count(samples),
        "microbatches": known_count(microbatches),
        "loss_sum": loss if known & LOSS_KNOWN else None,
        "microbatch_mean_sum": means if means_known else None,
        "microbatches_scored": known_count(scored) if means_known else None,
        "reported_loss": reported if known & REPORTED_KNOWN else None,
        "schedule_step": known_count(step),
        "ranges": [list(item) for item in unpack_ranges(record.body, range_count)] if known & RANGES_KNOWN else None,
        "started_at": moment(started_at),
        "seconds": seconds,
        "participants": participants,
    }


def pack_plain(kind: str, row: Row) -> bytes:
    """The body of a row of any other kind."""
    return json.dumps([kind, row], separators=(",", ":"), default=operator.index).encode()


def event(record: Record) -> tuple[str, Row]:
    """The kind and the row of the event that a record holds."""
    if record.kind == UPDATE_ROW:
        return "updates", update_row(record)
    kind, row = json.loads(record.body)
    return kind, {"seq": record.seq, **row}


def last_group(area: Area) -> tuple[Record, bytes, int] | None:
    """What a group that never closed had amounted to: its newest record, and all its packed ranges with their number.

    The area may hold remains of older groups behind it; they bear another group number.
    """
    newest: Record | None = None
    ranges: list[bytes] = []
    count = offset = 0
    while (found := record_at(area, offset, len(area))) is not None:
        record, offset = found
        if newest is not None and record.group != newest.group:
            break
        newest = record
        ranges.append(record.body[BODY.size :])
        count += BODY.unpack_from(record.body)[15]
    if newest is None:
        return None
    return newest, b"".join(ranges), count


def body_with_ranges(body: bytes, packed: bytes, count: int) -> bytes:
    """The same packed numbers with other ranges behind them, and no participants."""
    return BODY.pack(*BODY.unpack_from(body)[:15], count, NO_PARTICIPANTS) + packed


