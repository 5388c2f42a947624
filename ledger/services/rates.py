"""Rates of a run, numerator and denominator over the same window."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ledger.domain import rates as domain
from ledger.domain.errors import AttemptUnknown, InvalidRequest
from ledger.domain.exposure import Total, quantity_total
from ledger.domain.quantities import QUANTITIES
from ledger.domain.rates import Window
from ledger.services.books import Books
from ledger.storage import durations, history

MICROSECONDS = 1_000_000


def rate(books: Books, quantity: str, work: str, time: Sequence[str], window: str = "run", per: str = "job") -> dict[str, Any]:
    """A rate with all that it includes. Raises: AttemptUnknown, InvalidRequest."""
    domain.checked(quantity, work, time, per)
    span = domain.window_of(window)
    totals, attempts = _window(books, span)
    seconds = _seconds(books, totals, attempts, time, span)
    accelerators = {ordinal: _accelerators(books, ordinal) for ordinal in attempts}
    per_unit = {
        "job": math.fsum(seconds.values()),
        "accelerator": math.fsum(value * accelerators.get(ordinal, 1) for ordinal, value in seconds.items()),
    }
    return domain.rate(quantity, work, time, span, per, _numerator(books, totals, quantity, work), per_unit)


def _window(books: Books, span: Window) -> tuple[list[Total], list[int]]:
    """The totals that the window covers, and its attempts, oldest first."""
    if span.kind == "run":
        return books.totals, list(books.tree.order)
    if span.kind == "attempt":
        chosen = [ordinal for ordinal in books.tree.order if books.name(ordinal) == span.attempt]
        if not chosen:
            raise AttemptUnknown(f"no attempt {span.attempt} has been opened", attempt=span.attempt)
        return [total for total in books.totals if total.attempt == chosen[0]], chosen
    if span.kind == "last":
        rows = durations.latest(books.connection, books.run.id, int(span.seconds * MICROSECONDS))
    else:
        rows = durations.numbered(books.connection, books.run.id, span.first, span.last)
    found = [history.total_of_row(row, books.numbers(row.attempt).holds(row.number)) for row in rows]
    present = {total.attempt for total in found}
    return found, [ordinal for ordinal in books.tree.order if ordinal in present]


def _numerator(books: Books, totals: Iterable[Total], quantity: str, work: str) -> int | None:
    chosen = []
    for total in totals:
        outcome = books.fates.outcome(total.attempt, total.outcome)
        fate = books.fates.fate(total.attempt, total.first, outcome)
        applied = outcome == "applied"
        if work == "attempted" or (applied and (work == "applied" or fate == "preserved" or (work == "trajectory" and fate != "lost"))):
            chosen.append(total)
    return quantity_total(chosen, quantity) if quantity in QUANTITIES else sum(total.attempts for total in chosen)


def _accelerators(books: Books, ordinal: int) -> int:
    return int(books.conventions(ordinal).get("accelerators") or books.launches[ordinal].world_size)


def _seconds(books: Books, totals: Iterable[Total], attempts: list[int], time: Sequence[str], span: Window) -> dict[int, float]:
    """The time of each attempt in the window."""
    result: dict[int, list[float]] = {ordinal: [] for ordinal in attempts}
    for kind in time:
        if kind in ("idle", "downtime", "wall") and span.kind == "updates":
            raise InvalidRequest(f"{kind} time cannot be told for a span of updates", pointer="/time")
        if kind in ("checkpoint", "evaluation", "idle", "downtime") and span.kind == "last":
            raise InvalidRequest(f"{kind} time is not dated, so it cannot be told for the last seconds", pointer="/time")
        for ordinal, value in _time(books, totals, attempts, kind, span):
            if ordinal in result:
                result[ordinal].append(value)
    return {ordinal: math.fsum(values) for ordinal, values in result.items()}


def _time(books: Books, totals: Iterable[Total], attempts: list[int], kind: str, span: Window) -> Iterable[tuple[int, float]]:
    def within(number: int) -> bool:
        return span.kind != "updates" or span.first <= number <= span.last

    match kind:
        case "update":
            return [(total.attempt, total.seconds) for total in totals]
        case "checkpoint":
            return [(save.attempt, save.seconds) for save in books.tree.saves if save.seconds is not None and within(save.update)]
        case "evaluation":
            rows = durations.evaluated(books.connection, books.run.id)
            return [(row.attempt, row.seconds) for row in rows if row.seconds is not None and within(row.number)]
        case "idle":
            return list(durations.idle_seconds(books.connection, books.run.id).items())
        case "downtime":
            return _downtime(books) if span.kind == "run" else []
        case _:
            return [(attempts[-1], span.seconds)] if span.kind == "last" and attempts else _wall(books, attempts)


def _begin(books: Books, ordinal: int) -> int:
    launch = books.launches[ordinal]
    return launch.attempt.started_at if launch.attempt.started_at is not None else launch.opened_at


def _end(books: Books, ordinal: int) -> int:
    launch = books.launches[ordinal]
    return launch.ended_at or launch.last_event_at or _begin(books, ordinal)


def _downtime(books: Books) -> list[tuple[int, float]]:
    """From each attempt's end to the next one's start, booked on the later one."""
    order = books.tree.order
    return [
        (after, max(0, _begin(books, after) - _end(books, before)) / MICROSECONDS)
        for before, after in pairwise(order)
    ]


def _wall(books: Books, attempts: list[int]) -> list[tuple[int, float]]:
    """From the first start to the last end, each attempt until the next one starts."""
    result = []
    for place, ordinal in enumerate(attempts):
        end = _begin(books, attempts[place + 1]) if place + 1 < len(attempts) else _end(books, ordinal)
        result.append((ordinal, max(0, end - _begin(books, ordinal)) / MICROSECONDS))
    return result
