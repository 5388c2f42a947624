"""Sets of integers as sorted, disjoint half-open intervals: 10^12 consecutive positions are one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of integers.

    Shape: `spans` are half-open [start, stop), sorted, neither empty nor touching.
    """

    spans: tuple[tuple[int, int], ...] = field(default=())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def last(self) -> int | None:
        """The largest member."""
        return self.spans[-1][1] - 1 if self.spans else None

    @property
    def first(self) -> int | None:
        """The smallest member."""
        return self.spans[0][0] if self.spans else None

    def holds(self, value: int) -> bool:
        """Whether the value is a member."""
        return any(start <= value < stop for start, stop in self.spans)

    def mask(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the values are members."""
        if not self.spans:
            return np.zeros(len(values), dtype=np.bool_)
        edges = np.array(self.spans, dtype=np.int64)
        place = np.searchsorted(edges[:, 0], values, side="right") - 1
        inside: NDArray[np.bool_] = (place >= 0) & (values < edges[np.maximum(place, 0), 1])
        return inside

    def union(self, other: "Intervals") -> "Intervals":
        """Members of either."""
        return Intervals.of([*self.spans, *other.spans])

    def minus(self, other: "Intervals") -> "Intervals":
        """Members of this that are not members of the other."""
        left: list[tuple[int, int]] = []
        taken, at = other.spans, 0
        for start, stop in self.spans:
            while at < len(taken) and taken[at][1] <= start:
                at += 1
            rest = start
            for hole in range(at, len(taken)):
                if taken[hole][0] >= stop:
                    break
                if taken[hole][0] > rest:
                    left.append((rest, taken[hole][0]))
                rest = taken[hole][1]
            if rest < stop:
                left.append((rest, stop))
        return Intervals(tuple(left))

    def to_list(self) -> list[list[int]]:
        """The intervals as lists."""
        return [[start, stop] for start, stop in self.spans]

    @staticmethod
    def of(spans: Iterable[Any]) -> "Intervals":
        """The set that any intervals cover together.

        >>> Intervals.of([(5, 7), (0, 3), (3, 5)]).to_list()
        [[0, 7]]
        """
        merged: list[list[int]] = []
        for start, stop in sorted((int(span[0]), int(span[1])) for span in spans):
            if start >= stop:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([start, stop])
        return Intervals(tuple((start, stop) for start, stop in merged))

    @staticmethod
    def of_numbers(numbers: NDArray[np.int64]) -> "Intervals":
        """The set of those integers."""
        values = np.unique(numbers)
        if not len(values):
            return Intervals()
        breaks = np.flatnonzero(np.diff(values) > 1)
        starts = values[np.append(0, breaks + 1)].tolist()
        stops = (values[np.append(breaks, len(values) - 1)] + 1).tolist()
        return Intervals(tuple(zip(starts, stops, strict=True)))
