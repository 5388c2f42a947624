"""Many events of one kind as arrays, the natural value of everything that the ledger folds.

A count that is null is -1 (counts are never negative); a float carries a mask, because NaN is a value that a trainer may report;
a closed text column holds the place of its value in the column's `choices`, -1 for null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.domain.events import KINDS, Column, Kind, RankEvents

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
NONFINITE_NAMES = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(frozen=True, slots=True)
class Floats:
    """Floats that may be null: where `present` is false the value means nothing."""

    values: NDArray[np.float64]
    present: Booleans

    def take(self, rows: NDArray[Any]) -> "Floats":
        """The floats of those rows."""
        return Floats(self.values[rows], self.present[rows])


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by their place in a list of distinct values; -1 is null."""

    codes: Integers
    values: tuple[str, ...]

    def take(self, rows: NDArray[Any]) -> "Texts":
        """The texts of those rows."""
        return Texts(self.codes[rows], self.values)

    def at(self, row: int) -> str | None:
        """The text of one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.values[code]

    def to_list(self) -> list[str | None]:
        """All texts, in the order of the rows."""
        lookup: list[str | None] = [*self.values, None]
        return [lookup[code] for code in self.codes.tolist()]

    @staticmethod
    def of(items: Sequence[str | None]) -> "Texts":
        """Texts from a plain list."""
        places: dict[str, int] = {}
        codes = [-1 if item is None else places.setdefault(item, len(places)) for item in items]
        return Texts(np.array(codes, dtype=np.int64), tuple(places))

    @staticmethod
    def join(parts: Sequence["Texts"]) -> "Texts":
        """The texts of all parts, one after another."""
        places: dict[str, int] = {}
        codes = []
        for part in parts:
            lookup = np.array([places.setdefault(value, len(places)) for value in part.values] + [-1], dtype=np.int64)
            codes.append(lookup[part.codes])
        return Texts(np.concatenate(codes) if codes else np.empty(0, np.int64), tuple(places))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Half-open ranges [start, stop) of a stream and epoch, any number of them a row.

    Shape: `present` and `lengths` have one entry a row, the others one entry a range; the ranges of a row lie together.
    """

    present: Booleans
    lengths: Integers
    stream: Texts
    epoch: Integers
    start: Integers
    stop: Integers

    @property
    def first(self) -> Integers:
        """Where the ranges of each row begin."""
        return np.concatenate(([0], np.cumsum(self.lengths)[:-1])).astype(np.int64) if len(self.lengths) else self.lengths

    @property
    def row(self) -> Integers:
        """The row that each range belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def spans(self) -> Integers:
        """Positions in all ranges of each row; 0 where it has none."""
        total = np.concatenate(([0], np.cumsum(self.stop - self.start)))
        first = self.first
        spans: Integers = total[first + self.lengths] - total[first]
        return spans

    def take(self, rows: NDArray[Any]) -> "Ranges":
        """The ranges of those rows."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        lengths = self.lengths[chosen]
        places = np.repeat(self.first[chosen] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths) if len(chosen) else lengths
        places = (places + np.arange(int(lengths.sum()))).astype(np.int64)
        return Ranges(
            self.present[chosen], lengths, self.stream.take(places), self.epoch[places], self.start[places], self.stop[places]
        )

    def to_list(self) -> list[list[list[object]] | None]:
        """The ranges of each row as lists [stream, epoch, start, stop], None where they are unknown."""
        flat = [
            [stream, epoch, start, stop]
            for stream, epoch, start, stop in zip(
                self.stream.to_list(), self.epoch.tolist(), self.start.tolist(), self.stop.tolist(), strict=True
            )
        ]
        rows: list[list[list[object]] | None] = []
        place = 0
        for present, length in zip(self.present.tolist(), self.lengths.tolist(), strict=True):
            rows.append([list(item) for item in flat[place : place + length]] if present else None)
            place += length
        return rows

    @staticmethod
    def of(items: Sequence[Sequence[Sequence[Any]] | None]) -> "Ranges":
        """Ranges from plain lists."""
        flat = [item for row in items if row for item in row]
        return Ranges(
            np.array([row is not None for row in items], dtype=np.bool_),
            np.array([len(row) if row else 0 for row in items], dtype=np.int64),
            Texts.of([item[0] for item in flat]),
            np.array([item[1] for item in flat], dtype=np.int64),
            np.array([item[2] for item in flat], dtype=np.int64),
            np.array([item[3] for item in flat], dtype=np.int64),
        )

    @staticmethod
    def join(parts: Sequence["Ranges"]) -> "Ranges":
        """The rows of all parts, one after another."""
        return Ranges(
            np.concatenate([part.present for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            Texts.join([part.stream for part in parts]),
            np.concatenate([part.epoch for part in parts]),
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.stop for part in parts]),
        )

    @staticmethod
    def nothing(rows: int) -> "Ranges":
        """Rows whose ranges are unknown."""
        return Ranges.of([None] * rows)


ColumnValue = Integers | Floats | Texts | Ranges | list[Any]


def moment_of(text: str | datetime) -> int:
    """Microseconds since 1970 of an RFC 3339 moment; one without an offset is taken as UTC."""
    moment = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def moment_text(microseconds: int) -> str:
    """The RFC 3339 form of a moment in microseconds since 1970."""
    return (EPOCH + microseconds * MICROSECOND).isoformat().replace("+00:00", "Z")


def _counts(items: Sequence[int | None]) -> Integers:
    if None in items:
        items = [-1 if item is None else item for item in items]
    return np.array(items, dtype=np.int64)


def _floats(items: Sequence[float | str | None]) -> Floats:
    present = np.ones(len(items), dtype=np.bool_) if None not in items else np.array([item is not None for item in items])
    plain = [NONFINITE_NAMES[item] if isinstance(item, str) else 0.0 if item is None else item for item in items]
    return Floats(np.array(plain, dtype=np.float64), present)


def column_of(column: Column, items: Sequence[Any] | None, rows: int) -> ColumnValue:
    """The array form of a column that was posted as a plain list, or left out."""
    values: Sequence[Any] = items if items is not None else [None] * rows
    match column.type:
        case "count":
            return _counts(values)
        case "float":
            return _floats(values)
        case "moment":
            return _counts([None if item is None else moment_of(item) for item in values])
        case "ranges":
            return Ranges.of(values) if items is not None else Ranges.nothing(rows)
        case "text" if column.choices:
            places = {choice: place for place, choice in enumerate(column.choices)}
            return np.array([-1 if item is None else places[item] for item in values], dtype=np.int64)
        case "text":
            return Texts.of(values)
        case _:
            return list(values)


def _plain(column: Column, value: ColumnValue) -> list[Any]:
    if isinstance(value, Floats):
        return [item if present else None for item, present in zip(value.values.tolist(), value.present.tolist(), strict=True)]
    if isinstance(value, Texts | Ranges):
        return value.to_list()
    if isinstance(value, list):
        return value
    if column.choices:
        lookup = [*column.choices, None]
        return [lookup[item] for item in value.tolist()]
    if column.type == "moment":
        return [None if item < 0 else moment_text(item) for item in value.tolist()]
    return [None if item < 0 else item for item in value.tolist()]


def _take(value: ColumnValue, rows: NDArray[Any]) -> ColumnValue:
    if isinstance(value, list):
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return [value[place] for place in places.tolist()]
    return value[rows] if isinstance(value, np.ndarray) else value.take(rows)


def _join(values: list[Any]) -> ColumnValue:
    first = values[0]
    if isinstance(first, Texts):
        return Texts.join(values)
    if isinstance(first, Ranges):
        return Ranges.join(values)
    if isinstance(first, Floats):
        return Floats(np.concatenate([v.values for v in values]), np.concatenate([v.present for v in values]))
    if isinstance(first, list):
        return [item for value in values for item in value]
    return np.concatenate(values)


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one kind and one attempt, of any ranks and writers.

    Shape: `rank`, `writer` and every column of the kind have one entry an event.
    """

    kind: Kind
    rank: Integers
    writer: Texts
    columns: dict[str, ColumnValue]

    def __len__(self) -> int:
        return len(self.rank)

    def counts(self, name: str) -> Integers:
        """A count, moment or closed text column; -1 is null."""
        value = self.columns[name]
        assert isinstance(value, np.ndarray)
        return value

    def floats(self, name: str) -> Floats:
        """A float column."""
        value = self.columns[name]
        assert isinstance(value, Floats)
        return value

    def texts(self, name: str) -> Texts:
        """A free text column."""
        value = self.columns[name]
        assert isinstance(value, Texts)
        return value

    def ranges(self, name: str = "ranges") -> Ranges:
        """The column of data ranges."""
        value = self.columns[name]
        assert isinstance(value, Ranges)
        return value

    def objects(self, name: str) -> list[Any]:
        """A column of structured values."""
        value = self.columns[name]
        assert isinstance(value, list)
        return value

    def take(self, rows: NDArray[Any]) -> "Events":
        """The events of those rows (indices or a mask)."""
        columns = {name: _take(value, rows) for name, value in self.columns.items()}
        return Events(self.kind, self.rank[rows], self.writer.take(rows), columns)

    def with_column(self, name: str, value: ColumnValue) -> "Events":
        """The same events with one column replaced."""
        return Events(self.kind, self.rank, self.writer, {**self.columns, name: value})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each event as a plain row; columns that are null are left out."""
        plain = {column.name: _plain(column, self.columns[column.name]) for column in self.kind.columns}
        writers = self.writer.to_list()
        for place, rank in enumerate(self.rank.tolist()):
            row = {name: values[place] for name, values in plain.items() if values[place] is not None}
            yield {"rank": rank, "writer": writers[place], "kind": self.kind.name, **row}

    @staticmethod
    def of(kind: str, blocks: Sequence[RankEvents]) -> "Events":
        """The events of one kind in the blocks that ranks posted."""
        shape = KINDS[kind]
        posted = [(block, block.blocks[kind]) for block in blocks if kind in block.blocks]
        sizes = [len(columns["seq"]) for _, columns in posted]
        values: dict[str, ColumnValue] = {}
        for column in shape.columns:
            if any(column.name in columns for _, columns in posted):
                items: list[Any] = []
                for (_, columns), size in zip(posted, sizes, strict=True):
                    items += columns.get(column.name) or [None] * size
                values[column.name] = column_of(column, items, sum(sizes))
            else:
                values[column.name] = column_of(column, None, sum(sizes))
        ranks = np.repeat(np.array([block.rank for block, _ in posted], dtype=np.int64), sizes)
        names = Texts.of([block.writer for block, _ in posted])
        writer = Texts(np.repeat(names.codes, sizes), names.values)
        return Events(shape, ranks, writer, values)

    @staticmethod
    def join(parts: Sequence["Events"]) -> "Events":
        """The events of all parts, one after another; there must be at least one part."""
        kind = parts[0].kind
        columns = {column.name: _join([part.columns[column.name] for part in parts]) for column in kind.columns}
        rank = np.concatenate([part.rank for part in parts])
        return Events(kind, rank, Texts.join([part.writer for part in parts]), columns)
