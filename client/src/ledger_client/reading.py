"""How the records of a spool are read back: the other side of `records` and `cells`."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from .cells import CELL, CELL_BYTES, HEAD, IS_RANGE, LOSS_UNKNOWN, UNKNOWN, key_of
from .deferred import LARGEST_COUNT
from .records import (
    CLOSING,
    FRAME,
    NO_PARTICIPANTS,
    OUTCOMES,
    PREFIX,
    REASONS,
    REPORTED_KNOWN,
    SEQ_MASK,
    SHARD,
    UNCOUNTED,
    UPDATE_ROW,
    moment,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .shapes import Area, Event, Range, Row

NAME = struct.Struct("<HI")
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")


class Record(NamedTuple):
    """One record as it lies in the spool."""

    kind: int
    flags: int
    outcome: int
    reason: int
    group: int
    seq: int
    payload: bytes


class Microbatch(NamedTuple):
    """What one cell says; None where unknown."""

    counts: tuple[int | None, ...]
    loss_sum: float | None
    clock: float
    ranges: list[Range] | None


def record_at(area: Area, offset: int, stop: int) -> tuple[Record, int] | None:
    """The record at that offset and where the next one begins; None where there is no whole record."""
    begin = offset + FRAME.size
    if begin > stop:
        return None
    length, checksum, seq = FRAME.unpack(area[offset:begin])
    if length < PREFIX.size or begin + length > stop:
        return None
    payload = area[begin : begin + length]
    if crc32(payload, seq & SEQ_MASK) != checksum:
        return None
    kind, flags, outcome, reason, group = PREFIX.unpack_from(payload)
    return Record(kind, flags, outcome, reason, group, seq, payload), begin + length


def behind_damage(area: Area, offset: int, stop: int) -> int | None:
    """Where the next whole record begins behind one that is damaged, if its length is still believable; else None."""
    begin = offset + FRAME.size
    if begin > stop:
        return None
    (length, _, _) = FRAME.unpack(area[offset:begin])
    beyond = begin + length
    return beyond if length >= PREFIX.size and record_at(area, beyond, stop) is not None else None


def stream_names(area: Area | None) -> list[str]:
    """The names of the data streams, by number."""
    names: list[str] = []
    offset = 0
    while area is not None and offset + NAME.size <= len(area):
        length, checksum = NAME.unpack(area[offset : offset + NAME.size])
        offset += NAME.size
        name = area[offset : offset + length]
        if not length or crc32(name) != checksum:
            break
        names.append(name.decode())
        offset += length
    return names


def known_count(value: int) -> int | None:
    """A packed count as the ledger reads it: null where unknown, or beyond what the ledger counts."""
    return value if value <= LARGEST_COUNT else None


def microbatches(cells: bytes, group: int, names: Sequence[str]) -> Iterator[Microbatch]:
    """The microbatches of a group, in the order of their cells; what is no cell of the group is passed over."""
    key = key_of(group)
    waiting: list[Range] = []
    for slots, tokens, targets, samples, ranges, loss, clock, seal in CELL.iter_unpack(cells[: len(cells) // CELL_BYTES * CELL_BYTES]):
        flags = (seal ^ slots ^ tokens ^ targets ^ samples ^ ranges) ^ key
        if flags == IS_RANGE:
            waiting.append((names[slots] if slots < len(names) else "", tokens, targets, samples))
        elif flags in (0, LOSS_UNKNOWN):
            drawn: list[Range] | None = None
            if ranges <= len(waiting):
                first = len(waiting) - ranges
                drawn = waiting[first:]
                del waiting[first:]
            counts = tuple(known_count(value) for value in (slots, tokens, targets, samples))
            yield Microbatch(counts, None if flags else loss, clock, drawn)


def joined(ranges: Sequence[Range]) -> list[Range]:
    """The same ranges, those that touch made one. Law: how often each position was drawn stays, since ranges are half-open.

    >>> joined([("train", 0, 0, 2), ("train", 0, 2, 4), ("code", 0, 4, 5)])
    [('train', 0, 0, 4), ('code', 0, 4, 5)]
    """
    merged: list[Range] = []
    for stream, epoch, start, stop in ranges:
        if merged and merged[-1][0] == stream and merged[-1][1] == epoch and merged[-1][3] == start:
            merged[-1] = (stream, epoch, merged[-1][2], stop)
        else:
            merged.append((stream, epoch, start, stop))
    return merged


def added(group: Sequence[Microbatch]) -> Row:
    """What the microbatches amount to. Law: a sum is unknown where one of its parts is; nothing is unknown as zero.

    The mean of a microbatch is its loss over its targets; one without targets has none and is not scored.
    """
    row: Row = {}
    for name, values in zip(QUANTITIES, zip(*(part.counts for part in group), strict=True), strict=True):
        row[name] = None if None in values else sum(values)
    row["microbatches"] = len(group)
    row["loss_sum"] = total(part.loss_sum for part in group)
    means: list[float | None] = []
    for part in group:
        targets = part.counts[2]
        if targets is None or part.loss_sum is None:
            means.append(None)
        elif targets:
            means.append(part.loss_sum / targets)
    row["microbatch_mean_sum"] = total(means)
    row["microbatches_scored"] = None if None in means else len(means)
    drawn = [part.ranges for part in group]
    row["ranges"] = None if None in drawn else [list(item) for item in joined([item for part in drawn for item in part or ()])]
    if any(not item[0] for part in drawn for item in part or ()):
        row["ranges"] = None
    return row


def total(values: Iterator[float | None] | list[float | None]) -> float | None:
    """The sum in the order of the values; None where one of them is."""
    result = 0.0
    for value in values:
        if value is None:
            return None
        result += value
    return result


def update_row(record: Record, names: Sequence[str]) -> Row:
    """The row of the kind `updates` that a record holds."""
    _, flags, outcome, reason, group, number, retry, shards, step, reported, started_at, seconds = CLOSING.unpack_from(record.payload)
    stop = len(record.payload)
    participants = None
    if shards != NO_PARTICIPANTS:
        stop -= shards * SHARD.size
        participants = [shard for (shard,) in SHARD.iter_unpack(record.payload[stop:])]
    parts = list(microbatches(record.payload[CLOSING.size : stop], group, names))
    row: Row = {"seq": record.seq, "update": number, "retry": retry, "outcome": OUTCOMES[outcome], "reason": REASONS[reason]}
    if parts and not flags & UNCOUNTED:
        row |= added(parts)
    row["reported_loss"] = reported if flags & REPORTED_KNOWN else None
    row["schedule_step"] = known_count(step)
    return row | {"started_at": moment(started_at), "seconds": seconds, "participants": participants}


def event(record: Record, names: Sequence[str]) -> Event:
    """The kind and the row of the event that a record holds."""
    if record.kind == UPDATE_ROW:
        return "updates", update_row(record, names)
    kind, row = json.loads(record.payload[PREFIX.size :])
    return kind, {"seq": record.seq, **row}


def ending(record: Record) -> Row:
    """How the attempt ended."""
    row: Row = json.loads(record.payload[PREFIX.size :])
    return row


def open_group(area: Area) -> Record | None:
    """What a group that never closed had come to, as a record without a seq; None where there is none with a microbatch."""
    key, group, retry, number, started_at, began, seal = HEAD.unpack(area[: HEAD.size])
    if key != key_of(group) or not group or seal != key ^ group ^ retry ^ number:
        return None
    cells = area[CELL_BYTES:]
    clocks = [part.clock for part in microbatches(cells, group, ())]
    if not clocks:
        return None
    seconds = max(0.0, max(clocks) - began)
    head = CLOSING.pack(UPDATE_ROW, 0, 0, 0, group, number, retry, NO_PARTICIPANTS, UNKNOWN, 0.0, started_at, seconds)
    return Record(UPDATE_ROW, 0, 0, 0, group, 0, head + cells)
