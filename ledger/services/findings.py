"""Findings: contradictions kept with the updates, and what only the whole trajectory shows."""

import json
from collections.abc import Iterator
from typing import Any

from ledger.domain import conventions, objective
from ledger.domain.conventions import data_unit, repeats_expected
from ledger.domain.coverage import StreamCoverage
from ledger.domain.exposure import DECIDED_BY_OPTIMIZER, extras_counted
from ledger.domain.findings import finding
from ledger.domain.intervals import Intervals
from ledger.domain.quantities import QUANTITIES
from ledger.services import counting, data
from ledger.services.books import Books
from ledger.storage import incomplete, noticed, passing

LARGEST_SCAN = 100_000
"""Rows of one kind that are looked at for a count; beyond it a count is a lower bound."""


def _width(spans: Intervals) -> int:
    return sum(stop - start for start, stop in spans)


def _about_data(books: Books) -> Iterator[dict[str, Any]]:
    declared = books.conventions(books.head)
    streams = books.once(data.covered)
    head = books.name(books.head)
    for item in streams:
        place: dict[str, Any] = {"stream": item.stream, "epoch": item.epoch}
        if item.repeated and not repeats_expected(declared):
            yield finding("sample_repeat", head, found=_width(item.repeated), ranges=item.repeated.to_list()[:10], **place)
        if item.gaps and (data_unit(declared) == "position" or _epoch_over(books, item, streams)):
            yield finding("sample_gap", head, found=_width(item.gaps), ranges=item.gaps.to_list()[:10], **place)
    if data_unit(declared) != "position":
        return
    for mismatch in data.resume_mismatches(books):
        attempt = books.name(mismatch.pop("attempt"))
        yield finding("resume_position_mismatch", attempt, mismatch.pop("update"), quantity="position", **mismatch)
    for mismatch in data.checkpoint_mismatches(books, lambda save: books.incomplete.get(save.attempt, save.update + 1) > save.update):
        save = mismatch.pop("save")
        yield finding(
            "checkpoint_position_mismatch",
            books.name(save.attempt),
            save.update,
            quantity="position",
            checkpoint=save.checkpoint,
            **mismatch,
        )


def _epoch_over(books: Books, item: StreamCoverage, streams: list[StreamCoverage]) -> bool:
    later = any(other.stream == item.stream and other.epoch > item.epoch for other in streams)
    return later or (books.head is not None and books.launches[books.head].attempt.ended == "completed")


def _about_attempts(books: Books) -> Iterator[dict[str, Any]]:
    opened = None
    for ordinal in reversed(books.tree.order):
        launch, node, name = books.launches[ordinal], books.tree.nodes[ordinal], books.name(ordinal)
        if node.undecided == "resume_conflict":
            yield finding("resume_conflict", name)
        if opened is not None and (launch.last_event_at or 0) > opened:
            yield finding("late_event", name)
        opened = min(opened or launch.opened_at, launch.opened_at)
        yield from _update_gaps(books, ordinal)
        yield from _about_objective(books, ordinal)
        if node.parent is not None:
            before, after = (
                (books.conventions(attempt).get("data") or {}).get("order_fingerprint") for attempt in (node.parent, ordinal)
            )
            if before is not None and after is not None and before != after:
                yield finding("data_order_changed", name, expected=before, found=after)


def _update_gaps(books: Books, ordinal: int) -> Iterator[dict[str, Any]]:
    numbers, launch = books.numbers(ordinal), books.launches[ordinal]
    if not numbers:
        return
    node = books.tree.nodes[ordinal]
    start = node.after + 1 if node.save is not None else numbers.first or 0
    for first, stop in Intervals.of([(start, (numbers.last or 0) + 1)]).minus(numbers):
        if not (books.succeeded(ordinal) or books.overdue(launch.last_event_at or 0)):
            return
        yield finding("update_gap", books.name(ordinal), first, expected=first, found=stop - 1)


def _about_objective(books: Books, ordinal: int) -> Iterator[dict[str, Any]]:
    declared = books.conventions(ordinal)
    own = [total for total in books.totals if total.attempt == ordinal]
    name, factor = objective.common(extras_counted([total for total in own if total.outcome == "applied"], "verdicts"))
    wanted = declared.get("objective") if declared.get("objective") in conventions.LOSS_NAMES else None
    if name is not None and (factor is not None or (wanted is not None and name != wanted)):
        found = name if factor is None else f"{name} x {factor:g}"
        yield finding("loss_convention_mismatch", books.name(ordinal), expected=wanted or "token_mean", found=found)
    if declared.get("schedule_clock") != "applied_updates":
        return
    steps = sorted((number, step, total.outcome) for total in own for number, step in total.extras.get("schedule", ()))
    if not steps or steps[0][0] == steps[-1][0]:
        return
    # A held update may turn out to be applied: it may have moved the clock.
    applied = sum(total.attempts for total in own if total.outcome in ("applied", "held")) - (steps[0][2] in ("applied", "held"))
    moved = steps[-1][1] - steps[0][1]
    if moved > applied:
        yield finding("schedule_clock_mismatch", books.name(ordinal), steps[-1][0], expected=applied, found=moved)


def derived(books: Books) -> list[dict[str, Any]]:
    """Findings that follow from the whole trajectory; as many as there are attempts, streams and checkpoints."""
    found = [*_about_data(books), *_about_attempts(books), *counting.drifts(books)]
    found += [
        finding("missing_events", books.name(row.attempt), rank=row.rank, expected=row.first, found=row.last, reason=row.reason)
        for row in passing.gaps_of(books.connection, books.run.id, LARGEST_SCAN)
    ]
    return found


def _missing_ranks(books: Books) -> list[dict[str, Any]]:
    """Updates that can no longer be completed soon: the attempt is over, or a later update is complete and the grace has passed."""
    found = []
    for row in incomplete.rows(books.connection, books.run.id, LARGEST_SCAN):
        later = (books.numbers(row.attempt).last or 0) > row.number
        if books.succeeded(row.attempt) or (later and books.overdue(row.received_at)):
            found.append(
                finding(
                    "missing_rank",
                    books.name(row.attempt),
                    row.number,
                    row.retry,
                    quantity="shards",
                    expected=row.shards_expected,
                    found=row.shards_reported,
                )
            )
    return found


def _missing_count_cells(books: Books) -> dict[tuple[int, str], int]:
    """How many updates of an attempt lack a quantity that others of its updates know."""
    cells: dict[tuple[int, str], int] = {}
    for quantity in QUANTITIES:
        unknown: dict[int, int] = {}
        knowing: dict[int, int] = {}
        for total in books.totals:
            if total.outcome in DECIDED_BY_OPTIMIZER and total.attempts:
                unknown[total.attempt] = unknown.get(total.attempt, 0) + total.unknown[quantity]
                knowing[total.attempt] = knowing.get(total.attempt, 0) + total.attempts - total.unknown[quantity]
        cells |= {(attempt, quantity): count for attempt, count in unknown.items() if count and knowing[attempt]}
    return cells


def counts(books: Books) -> dict[str, int]:
    """How many open findings there are of each kind that occurs."""
    result: dict[str, int] = dict(noticed.count_by_kind(books.connection, books.run.id))
    for item in [*books.once(derived), *books.once(_missing_ranks)]:
        result[item["kind"]] = result.get(item["kind"], 0) + 1
    missing = sum(_missing_count_cells(books).values())
    if missing:
        result["missing_count"] = missing
    return dict(sorted(result.items()))


def _missing_counts(books: Books) -> list[dict[str, Any]]:
    found = []
    for attempt, quantity in sorted(_missing_count_cells(books)):
        rows = incomplete.rows_unknown(books.connection, books.run.id, attempt, quantity, LARGEST_SCAN)
        found += [finding("missing_count", books.name(attempt), row.number, row.retry, quantity=quantity, found=row.shards) for row in rows]
    return found


def _kept(books: Books, after: Any, limit: int, kind: str | None) -> list[tuple[Any, dict[str, Any]]]:
    rows = noticed.rows(books.connection, books.run.id, after, limit, kind)
    return [
        (
            noticed.key(row),
            finding(
                row.kind,
                books.name(row.attempt),
                row.number,
                row.retry,
                rank=row.rank,
                quantity=row.quantity,
                expected=_number(row.expected),
                found=_number(row.found),
                open=row.open,
            ),
        )
        for row in rows
    ]


def _number(text: str | None) -> Any:
    return int(text) if text is not None and text.lstrip("-").isdigit() else text


def findings(books: Books, cursor: str | None = None, limit: int = 100, kind: str | None = None) -> dict[str, Any]:
    """The findings of a run, a page at a time: what the trajectory shows first, then what single updates show."""
    source, after = json.loads(cursor) if cursor else (0, None)
    items: list[tuple[list[Any], dict[str, Any]]] = []
    listed = (derived, _missing_ranks, _missing_counts)
    for place in range(source, len(listed)):
        found = [item for item in books.once(listed[place]) if kind in (None, item["kind"])]
        start = after or 0
        items += [([place, index + 1], item) for index, item in enumerate(found) if index >= start][: limit + 1 - len(items)]
        after = None
        if len(items) > limit:
            break
    if len(items) <= limit:
        items += [([len(listed), key], item) for key, item in _kept(books, after, limit + 1 - len(items), kind)]
    page = items[:limit]
    return {"findings": [item for _, item in page], "next_cursor": json.dumps(page[-1][0]) if len(items) > limit else None}
