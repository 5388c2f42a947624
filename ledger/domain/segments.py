"""Sums and extremes over runs of equal keys in sorted arrays, exact for any size of integer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.domain.columns import Booleans, Floats, Integers, Ranges, Texts

LARGEST = np.iinfo(np.int64).max
SAFE_BITS = 62


def starts_of(*keys: NDArray[Any]) -> Integers:
    """Where a new combination of keys begins; the keys are sorted together."""
    size = len(keys[0])
    if not size:
        return np.empty(0, dtype=np.int64)
    changed = np.zeros(size, dtype=np.bool_)
    changed[0] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)


def spread(values: NDArray[Any], starts: Integers, size: int) -> NDArray[Any]:
    """One value a segment, given to each of its entries."""
    return np.repeat(values, np.diff(np.append(starts, size)))


def parents(starts: Integers, outer: Integers) -> Integers:
    """Where each outer segment begins, counted in inner segments; outer segments begin where an inner one does."""
    return np.searchsorted(starts, outer).astype(np.int64)


def total(values: Integers, starts: Integers) -> NDArray[Any]:
    """Exact sum a segment: 64-bit where it must fit, else Python integers."""
    if not len(starts):
        return values[:0]
    longest = int(np.diff(np.append(starts, len(values))).max())
    if int(values.max()).bit_length() + longest.bit_length() > SAFE_BITS:
        return np.add.reduceat(values.astype(object), starts)
    return np.add.reduceat(values, starts)


def largest(values: NDArray[Any], starts: Integers) -> NDArray[Any]:
    """Maximum a segment."""
    return np.maximum.reduceat(values, starts) if len(starts) else values[:0]


def smallest_known(values: Integers, starts: Integers) -> Integers:
    """Minimum of the values that are not null a segment; LARGEST where all are null."""
    return np.minimum.reduceat(np.where(values < 0, LARGEST, values), starts) if len(starts) else values[:0]


def some(flags: Booleans, starts: Integers) -> Booleans:
    """Whether any entry of a segment is true."""
    return np.logical_or.reduceat(flags, starts) if len(starts) else flags[:0]


def count(flags: Booleans, starts: Integers) -> Integers:
    """How many entries of a segment are true."""
    return np.add.reduceat(flags.astype(np.int64), starts) if len(starts) else np.empty(0, np.int64)


def first_of(flags: Booleans, starts: Integers) -> Integers:
    """The place of the first true entry of a segment; -1 where none is."""
    places = np.where(flags, np.arange(len(flags)), LARGEST)
    found = np.minimum.reduceat(places, starts) if len(starts) else places[:0]
    return np.where(found == LARGEST, -1, found)


def pick(values: Floats, places: Integers) -> Floats:
    """The floats at those places; null where the place is -1."""
    if not len(values.values):
        return Floats(np.zeros(len(places)), np.zeros(len(places), dtype=np.bool_))
    return Floats(values.values[places], (places >= 0) & values.present[places])


def coalesce(ranges: Ranges, group: Integers, groups: int) -> Ranges:
    """The ranges of many rows gathered a group, those that touch end to start joined; positions drawn twice stay drawn twice."""
    owner = group[ranges.row]
    order = np.lexsort((ranges.stop, ranges.start, ranges.epoch, ranges.stream.codes, owner))
    owner, stream, epoch = owner[order], ranges.stream.codes[order], ranges.epoch[order]
    start, stop = ranges.start[order], ranges.stop[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    same = (owner[1:] == owner[:-1]) & (stream[1:] == stream[:-1]) & (epoch[1:] == epoch[:-1])
    fresh[1:] = ~(same & (start[1:] == stop[:-1]))
    heads = np.flatnonzero(fresh)
    tails = np.append(heads[1:], len(order)) - 1 if len(order) else heads
    present = np.zeros(groups, dtype=np.bool_)
    present[group[ranges.present]] = True
    return Ranges(
        present,
        np.bincount(owner[heads], minlength=groups).astype(np.int64),
        Texts(stream[heads], ranges.stream.values),
        epoch[heads],
        start[heads],
        stop[tails],
    )
