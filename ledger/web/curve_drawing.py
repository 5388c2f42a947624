"""Curves of several runs as one drawing, made here so that a page, or a file that is mailed, needs no script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH_UNITS, HEIGHT_UNITS = 720, 300
LEFT_UNITS, RIGHT_UNITS, TOP_UNITS, BOTTOM_UNITS = 64, 708, 14, 262
TICKS = 5
DOTTED_POINTS = 60
"""Where there are more points, dots would only thicken the line."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    place_units: float
    words: str


@dataclass(frozen=True, slots=True)
class Line:
    """One run's curve: its unbroken parts as paths, and its points."""

    paths: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Curves with their axes, in the units of the drawing."""

    lines: tuple[Line, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


def steps(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers that span a range, about so many.

    >>> steps(1.7, 3.9), steps(2.5, 2.5)
    ([1.5, 2.0, 2.5, 3.0, 3.5, 4.0], [2.0, 2.5, 3.0])
    """
    if high <= low:
        spread = abs(low) * 0.2 or 1.0
        return [low - spread, low, low + spread]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def short(count: float) -> str:
    """A number for the mark of an axis.

    >>> short(0), short(1500), short(2_500_000), short(7.2e12), short(0.30000000000000004)
    ('0', '1,500', '2.5 M', '7.2 T', '0.3')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(count) >= size:
            return f"{count / size:.4g} {letter}"
    return f"{count:,.0f}" if abs(count) >= 1000 else f"{count:.4g}"


def draw(places: Sequence[int], curves: Sequence[Sequence[float | None]]) -> Drawing | None:
    """The curves over those places; nothing where none has a value.

    Shape: each curve has one entry a place; null breaks its line.
    """
    values = [value for curve in curves for value in curve if value is not None]
    if not values:
        return None
    up = steps(min(values), max(values))
    low, high, far = up[0], up[-1], max(places)

    def x(place: float) -> float:
        return round(LEFT_UNITS + (RIGHT_UNITS - LEFT_UNITS) * place / far, 2)

    def y(value: float) -> float:
        return round(BOTTOM_UNITS - (BOTTOM_UNITS - TOP_UNITS) * (value - low) / (high - low), 2)

    dotted = len(places) <= DOTTED_POINTS
    lines = []
    for curve in curves:
        parts: list[list[tuple[float, float]]] = [[]]
        for place, value in zip(places, curve, strict=True):
            if value is None:
                parts.append([])
            else:
                parts[-1].append((x(place), y(value)))
        paths = tuple("M" + " L".join(f"{across} {down}" for across, down in part) for part in parts if len(part) > 1)
        # A point that stands alone is on no line: it is always a dot.
        dots = [point for part in parts for point in part if dotted or len(part) == 1]
        lines.append(Line(paths, tuple(dots)))
    across = tuple(Tick(x(place), short(place)) for place in steps(0, far) if place <= far)
    return Drawing(tuple(lines), across, tuple(Tick(y(value), short(value)) for value in up))
