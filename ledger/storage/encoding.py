"""How a journal block keeps its events: columns, differences, the narrowest integers, zstd.

A block is a zero byte, then zstd over a JSON header's length (4 bytes), the header, and the columns' bytes one after another.
Integers are kept as differences where that is narrower, a constant column costs nothing, and a null mask only exists where a
column holds both nulls and values.
"""

import json
import struct
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from ledger.domain.columns import ColumnValue, Events, Floats, Ranges, Texts
from ledger.domain.events import KINDS, Column

VERSION = b"\x00"
LEVEL = 3
WIDTHS = tuple(np.dtype(name) for name in ("i1", "<i2", "<i4", "<i8"))


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def integers(self, values: NDArray[np.int64]) -> list[Any]:
        """Adds integers and gives what is needed to read them again: [form, width, constant]."""
        if not len(values):
            return ["c", 0, 0]
        if values.min() == values.max():
            return ["c", len(values), int(values[0])]
        steps = np.diff(values, prepend=values[:1])
        plain, stepped = _width(values), _width(steps)
        delta = stepped <= plain
        chosen = steps if delta else values
        self.parts.append(chosen.astype(WIDTHS[stepped if delta else plain]).tobytes())
        return ["d" if delta else "p", len(values), stepped if delta else plain, int(values[0])]

    def flags(self, values: NDArray[np.bool_]) -> bool | int:
        """Adds a mask; a mask of one value is that value."""
        if not len(values) or values.all() or not values.any():
            return bool(len(values) and values[0])
        self.parts.append(np.packbits(values).tobytes())
        return len(values)

    def texts(self, values: Texts) -> list[Any]:
        return [self.integers(values.codes), list(values.values)]

    def column(self, value: ColumnValue) -> Any:
        if isinstance(value, Texts):
            return self.texts(value)
        if isinstance(value, Floats):
            present = self.flags(value.present)
            if present is not False:
                self.parts.append(value.values.tobytes())
            return [present, len(value.values)]
        if isinstance(value, Ranges):
            if not value.present.any():
                return len(value.present)
            present = self.flags(value.present)
            integers = [self.integers(part) for part in (value.lengths, value.epoch, value.start, value.stop - value.start)]
            return [present, integers, self.texts(value.stream)]
        if isinstance(value, list):
            return value if any(item is not None for item in value) else len(value)
        return self.integers(value)


def _width(values: NDArray[np.int64]) -> int:
    low, high = int(values.min()), int(values.max())
    return next(place for place, width in enumerate(WIDTHS) if -(1 << 8 * width.itemsize - 1) <= low and high < 1 << 8 * width.itemsize - 1)


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self.content, self.place = content, 0

    def take(self, size: int) -> memoryview:
        self.place += size
        return self.content[self.place - size : self.place]

    def integers(self, form: list[Any]) -> NDArray[np.int64]:
        if form[0] == "c":
            return np.full(form[1], form[2], dtype=np.int64)
        width = np.dtype(WIDTHS[form[2]])
        values = np.frombuffer(self.take(form[1] * width.itemsize), dtype=width).astype(np.int64)
        return np.cumsum(values) + form[3] if form[0] == "d" else values

    def flags(self, form: bool | int, size: int) -> NDArray[np.bool_]:
        if isinstance(form, bool):
            return np.full(size, form, dtype=np.bool_)
        packed = np.frombuffer(self.take((form + 7) // 8), dtype=np.uint8)
        return np.unpackbits(packed, count=form).astype(np.bool_)

    def texts(self, form: list[Any]) -> Texts:
        return Texts(self.integers(form[0]), tuple(form[1]))

    def column(self, column: Column, form: Any) -> ColumnValue:
        if column.type == "float":
            present = self.flags(form[0], form[1])
            values = np.zeros(form[1]) if form[0] is False else np.frombuffer(self.take(8 * form[1]), dtype=np.float64)
            return Floats(values, present)
        if column.type == "ranges":
            if isinstance(form, int):
                return Ranges.nothing(form)
            present = self.flags(form[0], form[1][0][1])
            lengths, epoch, start, width = (self.integers(part) for part in form[1])
            return Ranges(present, lengths, self.texts(form[2]), epoch, start, start + width)
        if column.type == "text" and not column.choices:
            return self.texts(form)
        if column.type in ("positions", "shards"):
            return [None] * form if isinstance(form, int) else form
        return self.integers(form)


def encode(events: Events) -> bytes:
    """The bytes that keep the events in a block."""
    writer = _Writer()
    header = {
        "rank": writer.integers(events.rank),
        "writer": writer.texts(events.writer),
        "columns": {column.name: writer.column(events.columns[column.name]) for column in events.kind.columns},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    plain = b"".join((struct.pack("<I", len(text)), text, *writer.parts))
    return VERSION + zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(plain)


def decode(kind: str, payload: bytes) -> Events:
    """The events of a block.

    Raises: ValueError if the block was written by a newer version.
    """
    if payload[:1] != VERSION:
        raise ValueError("this journal block was written by a newer version")
    content = memoryview(zstandard.ZstdDecompressor().decompress(payload[1:]))
    (size,) = struct.unpack_from("<I", content)
    header = json.loads(bytes(content[4 : 4 + size]))
    reader = _Reader(content[4 + size :])
    shape = KINDS[kind]
    rank, writer = reader.integers(header["rank"]), reader.texts(header["writer"])
    columns: dict[str, ColumnValue] = {}
    for column in shape.columns:
        form = header["columns"].get(column.name)
        columns[column.name] = absent(column, len(rank)) if form is None else reader.column(column, form)
    return Events(shape, rank, writer, columns)


def absent(column: Column, rows: int) -> ColumnValue:
    """A column that did not exist when the block was written."""
    match column.type:
        case "float":
            return Floats(np.zeros(rows), np.zeros(rows, dtype=np.bool_))
        case "ranges":
            return Ranges.nothing(rows)
        case "text" if not column.choices:
            return Texts(np.full(rows, -1, dtype=np.int64), ())
        case "positions" | "shards":
            return [None] * rows
        case _:
            return np.full(rows, -1, dtype=np.int64)
