"""The course of a run along its trajectory, in so many stretches, for charts: the cost is that of the totals, or of so many rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ledger.domain.envelopes import Envelope, envelopes_of, joined, series_of
from ledger.services.books import Books
from ledger.storage import series
from ledger.storage.history import PAGE

MOST_ROWS = 20_000
"""Updates that are read one by one; a longer range is drawn from the totals, whose stretches are never longer than a page."""


@dataclass(slots=True)
class Stretch:
    """Updates of one attempt that lie next to each other on the trajectory and have the same fate."""

    attempt: int
    fate: str
    first: int
    last: int
    counts: dict[str, int] = field(default_factory=dict)
    envelopes: dict[str, Envelope] = field(default_factory=dict)

    def take(self, outcome: str, updates: int, envelopes: dict[str, Envelope]) -> None:
        """Adds updates with one outcome; only what was applied is in the envelopes."""
        self.counts[outcome] = self.counts.get(outcome, 0) + updates
        if outcome == "applied":
            self.envelopes = joined(self.envelopes, envelopes)

    def as_dict(self, books: Books) -> dict[str, Any]:
        """The stretch as a report gives it."""
        return {
            "attempt": books.name(self.attempt),
            "first": self.first,
            "last": self.last,
            "fate": self.fate,
            "updates": {outcome: self.counts.get(outcome, 0) for outcome in ("applied", "skipped", "abandoned", "held")},
            "series": {
                name: {"updates": count, "mean": total / count, "lowest": low, "highest": high}
                for name, (count, total, low, high) in self.envelopes.items()
            },
        }


def course(books: Books, first: int | None = None, last: int | None = None, points: int = 400) -> dict[str, Any]:
    """Valid-token batch, occupancy and losses along the trajectory, about so many stretches over a range of update numbers.

    A stretch ends where its attempt, its fate or its share of the range ends. `exact` says whether the range was read update by update;
    else stretches lie whole pages of updates apart, and the first and the last may reach beyond the range.
    """
    spans = [span for segment in books.path for span in _spans(books, segment.attempt, segment.after, books.through(segment))]
    whole = (spans[0][1], spans[-1][2]) if spans else (0, 0)
    low, high = (whole[0] if first is None else first), (whole[1] if last is None else last)
    inside = [(attempt, max(start, low), min(stop, high)) for attempt, start, stop in spans if start <= high and stop >= low]
    size = sum(stop - start + 1 for _, start, stop in inside)
    width = max(1, -(-(high - low + 1) // points))
    exact = size <= MOST_ROWS
    found = _from_rows(books, inside, low, width) if exact else _from_totals(books, inside, low, width)
    return {
        "as_of": books.as_of(),
        "first": low,
        "last": high,
        "exact": exact,
        "trajectory": {"first": whole[0], "last": whole[1]} if spans else None,
        "stretches": [stretch.as_dict(books) for stretch in found],
    }


def _spans(books: Books, attempt: int, after: int, through: int) -> Iterator[tuple[int, int, int]]:
    """What an attempt did of its part of the trajectory: (attempt, first, last)."""
    for start, stop in books.numbers(attempt):
        begin, end = max(start, after + 1) if after else start, min(stop - 1, through)
        if begin <= end:
            yield attempt, begin, end


def _from_rows(books: Books, inside: Sequence[tuple[int, int, int]], low: int, width: int) -> Iterable[Stretch]:
    for attempt, start, stop in inside:
        rows = series.between(books.connection, books.run.id, attempt, start, stop)
        if not rows:
            continue
        outcomes = np.array([books.fates.outcome(attempt, row.outcome) for row in rows])
        numbers = np.array([row.number for row in rows], dtype=np.int64)
        covered = np.array([books.fates.covered(attempt, int(number)) for number in (start, stop)])
        edge = books.accepted.update if books.accepted is not None and covered[0] != covered[1] else None
        key = 2 * ((numbers - low) // width) + (0 if edge is None else (numbers > edge))
        values = series_of(rows)
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(key)) + 1):
            begin, end = int(numbers[part[0]]), int(numbers[part[-1]])
            stretch = Stretch(attempt, books.fates.fate(attempt, begin, "applied"), begin, end)
            for outcome in np.unique(outcomes[part]).tolist():
                mine = part[outcomes[part] == outcome]
                stretch.take(outcome, len(mine), envelopes_of({name: column[mine] for name, column in values.items()}))
            yield stretch


def _from_totals(books: Books, inside: Sequence[tuple[int, int, int]], low: int, width: int) -> list[Stretch]:
    totals = [total for total in books.totals if total.attempts]
    firsts: dict[int, list[int]] = {}
    for total in totals:
        own = firsts.setdefault(total.attempt, [])
        if not own or own[-1] != total.first:
            own.append(total.first)
    ends = {(attempt, first): min(after - 1, first // PAGE * PAGE + PAGE - 1)
            for attempt, own in firsts.items() for first, after in zip(own, [*own[1:], own[-1] + PAGE], strict=True)}  # fmt: skip
    found: dict[tuple[int, int, str], Stretch] = {}
    wanted: dict[int, list[tuple[int, int]]] = {}
    for attempt, start, stop in inside:
        wanted.setdefault(attempt, []).append((start, stop))
    for total in totals:
        outcome = books.fates.outcome(total.attempt, total.outcome)
        fate = books.fates.fate(total.attempt, total.first, "applied")
        end = ends[total.attempt, total.first]
        near = [(start, stop) for start, stop in wanted.get(total.attempt, ()) if total.first <= stop and end >= start]
        if not near or fate == "lost":
            continue
        begin, end = max(total.first, near[0][0]), min(end, near[-1][1])
        stretch = found.setdefault((total.attempt, (begin - low) // width, fate), Stretch(total.attempt, fate, begin, end))
        stretch.last = max(stretch.last, end)
        stretch.take(outcome, total.attempts, total.extras.get("envelopes", {}))
    place = {segment.attempt: index for index, segment in enumerate(books.path)}
    return sorted(found.values(), key=lambda stretch: (place[stretch.attempt], stretch.first))
