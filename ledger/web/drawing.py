"""The balance as one picture: a stacked bar whose lengths are the terms' shares of what was attempted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledger.domain.exposure import BUCKETS

BAR_WIDTH_UNITS = 1000
THINNEST_UNITS = 3
"""A term that is there is never drawn so thin that it cannot be seen."""


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
