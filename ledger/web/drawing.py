"""Geometry of the drawings, in units that a page stretches to its own width; words stay outside of the drawings, so they never distort.

| drawing | is |
|---|---|
| stacked bar | the terms of a balance from left to right, as shares of what was attempted |
| steps | a value that holds over a stretch, drawn level: a slope would invent what lies between |
| band | the lowest to the highest of many values |
| cells | ranges of positions, each touched cell filled, so that no range is too short to be seen |
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.domain.exposure import BUCKETS

BAR_WIDTH_UNITS = 1000
THINNEST_UNITS = 3
"""A term that is there is never drawn so thin that it cannot be seen."""
WIDTH_UNITS = 1000
HEIGHT_UNITS = 100
CELLS = 500
MANY_NUMBERS = 100
NICE_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Piece:
    """One term of the bar, in the units of the drawing."""

    term: str
    start_units: float
    width_units: float


def stacked_bar(balance: Mapping[str, Any]) -> list[Piece]:
    """The terms of a balance from left to right, drawn from what is known; nothing where nothing is known.

    >>> [(p.term, p.width_units) for p in stacked_bar({"preserved": 3, "pending": 1, "lost_to_restart": 0, "skipped": 0, "dropped": 0})]
    [('preserved', 750.0), ('pending', 250.0)]
    """
    known = balance.get("known") or balance
    counts = {term: known[term] for term in BUCKETS if known[term]}
    whole = sum(counts.values())
    widths = {term: max(BAR_WIDTH_UNITS * count / whole, THINNEST_UNITS) for term, count in counts.items()}
    scale = BAR_WIDTH_UNITS / sum(widths.values()) if widths else 1
    pieces, start = [], 0.0
    for term, width in widths.items():
        pieces.append(Piece(term, round(start, 3), round(width * scale, 3)))
        start += width * scale
    return pieces


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values and the evenly spaced ones of it that are written beside a drawing."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def x(self, value: float) -> float:
        """Units from the left."""
        return round(WIDTH_UNITS * self.share(value), 2)

    def y(self, value: float) -> float:
        """Units from the top."""
        return round(HEIGHT_UNITS * (1 - self.share(value)), 2)


def axis_of(low: float, high: float, most: int = 5) -> Axis:
    """An axis with round numbers that holds all values between two.

    >>> axis_of(3.2, 9.7).ticks
    (2.0, 4.0, 6.0, 8.0, 10.0)
    """
    if not high > low:
        low, high = low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5)
    rough = (high - low) / (most - 1)
    size = 10 ** math.floor(math.log10(rough))
    for nice in (*NICE_STEPS, 20.0):
        step = nice * size
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < most:
            break
    return Axis(first * step, last * step, tuple(round(place * step, 12) for place in range(first, last + 1)))


def evenly(low: int, high: int) -> Axis:
    """An axis from one whole number to another, with whole numbers evenly spaced, or so nearly that nobody sees it.

    >>> evenly(1, 7).ticks
    (1, 4, 7)
    """
    if high <= low:
        return Axis(low, low + 1, (low,))
    count = next(count for count in (5, 3, 2) if high - low >= MANY_NUMBERS or (high - low) % (count - 1) == 0)
    return Axis(low, high, tuple(round(low + (high - low) * place / (count - 1)) for place in range(count)))


def steps(levels: Iterable[tuple[float, float, float | None]]) -> str:
    """A path through levels (from, to, y), each drawn level; broken where there is none.

    >>> steps([(0, 1, 5), (1, 2, 7), (2, 3, None), (3, 4, 1)])
    'M0 5H1V7H2M3 1H4'
    """
    path, is_open = [], False
    for start, stop, level in levels:
        if level is None:
            is_open = False
            continue
        path.append(f"V{level:g}H{stop:g}" if is_open else f"M{start:g} {level:g}H{stop:g}")
        is_open = True
    return "".join(path)


def band(levels: Iterable[tuple[float, float, float, float]]) -> str:
    """A path around (from, to, lowest y, highest y), one box a stretch."""
    return "".join(f"M{start:g} {high:g}H{stop:g}V{low:g}H{start:g}Z" for start, stop, low, high in levels)


def cells(spans: Iterable[Sequence[int]], extent: int) -> str:
    """A path that fills every cell that one of the ranges touches.

    >>> cells([(0, 250), (999, 1000)], 1000)
    'M0 0h125v10h-125zM499 0h1v10h-1z'
    """
    touched: list[list[int]] = []
    for start, stop in spans:
        first, last = start * CELLS // extent, min(CELLS, max(start * CELLS // extent + 1, -(-stop * CELLS // extent)))
        if touched and first <= touched[-1][1]:
            touched[-1][1] = max(touched[-1][1], last)
        else:
            touched.append([first, last])
    return "".join(f"M{first} 0h{last - first}v10h-{last - first}z" for first, last in touched)


def tick_words(value: float, percent: bool = False) -> str:
    """A number beside an axis.

    >>> tick_words(12000), tick_words(2500000), tick_words(0.25, percent=True), tick_words(-0.015)
    ('12,000', '2.5 M', '25 %', '-0.015')
    """
    if percent:
        return f"{100 * value:g} %"
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g} {name}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
