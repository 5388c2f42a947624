"""The losses of runs at equal places: after equally many applied updates, valid targets or consumed tokens.

A short run is read update by update. A long one is read off its totals, whose stretches are a page of updates at most; a curve then has
no more points than there are stretches. The place of every point is exact either way: it is a sum of exact counts.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from ledger.domain.envelopes import Envelope, envelopes_of, joined, series_of
from ledger.domain.exposure import Total
from ledger.services.books import Books
from ledger.services.record import trajectory_totals
from ledger.storage import series
from ledger.storage.history import PAGE

AXES = {"applied_updates": "updates", "valid_targets": "targets", "consumed_tokens": "tokens"}
"""What runs can be laid side by side at, with the unit."""
LOSSES = ("token_mean", "reported_loss")
MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Applied updates that lie next to each other on a trajectory; a count that one of them lacks is None."""

    attempt: str
    last: int
    counts: dict[str, int | None]
    losses: dict[str, Envelope]


@dataclass(frozen=True, slots=True)
class Course:
    """A run along one axis as far as its counts are known: where each piece ends, in the axis' unit."""

    pieces: Sequence[Piece]
    ends: Sequence[int]
    exact: bool
    known_throughout: bool

    @property
    def reach(self) -> int:
        """The last place whose distance from the start is known."""
        return self.ends[-1] if self.ends else 0


def course_of(books: Books, at: str) -> Course:
    """What a run did along an axis, up to the first update whose count is unknown."""
    totals = trajectory_totals(books)
    exact = sum(total.attempts for total in totals) <= MOST_ROWS
    pieces = list(_from_rows(books) if exact else _from_totals(books, totals))
    lacking = next((place for place, piece in enumerate(pieces) if piece.counts[at] is None), len(pieces))
    counts = [piece.counts[at] or 0 for piece in pieces[:lacking]]
    return Course(pieces[:lacking], list(accumulate(counts)), exact, lacking == len(pieces))


def _from_rows(books: Books) -> Iterator[Piece]:
    for segment in books.path:
        name, through = str(books.name(segment.attempt)), books.through(segment)
        first = segment.after + 1 if segment.after else 0
        rows = series.between(books.connection, books.run.id, segment.attempt, first, through)
        applied = [row for row in rows if books.fates.outcome(segment.attempt, row.outcome) == "applied"]
        values = series_of(applied)
        for place, row in enumerate(applied):
            losses = envelopes_of({loss: values[loss][place : place + 1] for loss in LOSSES})
            valid = None if row.unknown_valid_targets else row.known_valid_targets
            consumed = None if row.unknown_consumed_tokens else row.known_consumed_tokens
            yield Piece(name, row.number, {"applied_updates": 1, "valid_targets": valid, "consumed_tokens": consumed}, losses)


def _from_totals(books: Books, totals: Iterable[Total]) -> Iterator[Piece]:
    place = {segment.attempt: index for index, segment in enumerate(books.path)}
    ordered = sorted(totals, key=lambda total: (place[total.attempt], total.first))
    ends = {
        (attempt, first): min(first // PAGE * PAGE + PAGE - 1, books.through(books.path[place[attempt]]), *(after - 1 for after in later))
        for attempt, group in groupby(ordered, key=lambda total: total.attempt)
        for first, *later in _each_with_next(sorted({total.first for total in group}))
    }
    for (attempt, first), group in groupby(ordered, key=lambda total: (total.attempt, total.first)):
        members, losses = list(group), dict[str, Envelope]()
        for total in members:
            kept = total.extras.get("envelopes", {})
            losses = joined(losses, {loss: kept[loss] for loss in LOSSES if loss in kept})
        counts: dict[str, int | None] = {"applied_updates": sum(total.attempts for total in members)}
        for quantity in ("valid_targets", "consumed_tokens"):
            lacking = any(total.unknown[quantity] for total in members)
            counts[quantity] = None if lacking else sum(total.known[quantity] for total in members)
        yield Piece(str(books.name(attempt)), ends[attempt, first], counts, losses)


def _each_with_next(firsts: Sequence[int]) -> Iterator[Sequence[int]]:
    """Each number with the one behind it; the last one alone."""
    return (firsts[place : place + 2] for place in range(len(firsts)))


def curves(courses: Sequence[Course], at: str, points: int) -> dict[str, Any]:
    """The losses of runs at equal places along an axis, over the range that all of them have come through.

    A point is the mean over the applied updates since the point before; null where a run has none there, or none with that loss.
    """
    places = _places(courses, points)
    return {"at": at, "unit": AXES[at], "places": places, "runs": [_points(course, places) for course in courses]}


def _places(courses: Sequence[Course], points: int) -> list[int]:
    """Where pieces of the run with the fewest of them end, so that it has a value at every place; so many of them at most."""
    reach = min((course.reach for course in courses), default=0)
    if not reach:
        return []
    fewest, course = min(((bisect_right(course.ends, reach), course) for course in courses), key=lambda pair: pair[0])
    ends = sorted({end for end in course.ends[:fewest] if end})
    count = min(points, len(ends))
    return [ends[len(ends) * (step + 1) // count - 1] for step in range(count)] or [reach]


def _points(course: Course, places: Sequence[int]) -> dict[str, Any]:
    before, updates = 0, []
    values: dict[str, list[float | None]] = {loss: [] for loss in LOSSES}
    for place in places:
        through = bisect_right(course.ends, place)
        found: dict[str, Envelope] = {}
        for piece in course.pieces[before:through]:
            found = joined(found, piece.losses)
        for loss in LOSSES:
            values[loss].append(found[loss][1] / found[loss][0] if loss in found else None)
        updates.append(course.pieces[through - 1].last if through else None)
        before = through
    return {"reach": course.reach, "known_throughout": course.known_throughout, "exact": course.exact, "last_update": updates, **values}
