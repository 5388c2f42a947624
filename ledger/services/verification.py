"""`ledger verify`: a run's reports against the same numbers counted again from its raw journal.

What is compared, in this order: the journal with itself and with the table of streams; the exposure report; the coverage; the
checkpoints; then row by row what the projections keep, so that a damaged row is found before a report shows it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.domain.errors import LedgerError, RunUnknown
from ledger.services import comparing, projection, reports
from ledger.services.comparing import Difference
from ledger.services.recount import Recount, recount
from ledger.services.recounting import facts
from ledger.services.recounting.facts import JournalFault
from ledger.services.reports import Reports
from ledger.storage import kept, projections, registry
from ledger.storage.registry import Run
from ledger.storage.store import Connection, Store

__all__ = ["Difference", "Progress", "rebuild", "verify"]

Progress = Callable[[int, int], None]

TRIES = 5
"""A run that grows while it is read is read again so often; then each part is compared at the offset that it was read at."""

PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Reported:
    """What the reports say at an offset."""

    offset: int
    exposure: dict[str, Any]
    streams: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]


def verify(store: Store, project: str, run: str, progress: Progress) -> Difference | None:
    """Names the first difference between the projections and a recount; None where there is none. Raises: RunUnknown."""
    source = Reports(store, lambda: datetime.now(UTC))
    difference: Difference | None = None
    for attempt in range(TRIES):
        is_last = attempt == TRIES - 1
        with store.read() as connection:
            before = _moments(connection, project, run)
        try:
            reported = _reported(source, project, run)
        except LedgerError:
            raise
        except Exception as error:  # noqa: BLE001 - damaged rows may raise anything on their way through a report
            # What a report stumbles over lies in the journal, or else in what was made of it.
            return _fault_in_journal(store, project, run, progress) or _unreadable("/projections", error)
        with store.read() as connection:
            at_rest = _moments(connection, project, run) == before and reported.offset == before[0][1]
            if at_rest or is_last:
                difference = _compare(connection, project, run, reported, progress)
                if difference is None or at_rest or is_last:
                    return difference
    return difference


def _moments(connection: Connection, project: str, run: str) -> list[tuple[int, int]]:
    """The run and those that it was forked from, each with its last offset."""
    found: list[tuple[int, int]] = []
    at: tuple[str, str] | None = (project, run)
    while at is not None:
        try:
            one = registry.find_run(connection, *at)
        except RunUnknown:
            if not found:
                raise
            break
        if any(one.id == run_id for run_id, _ in found):
            break
        found.append((one.id, one.entries))
        source = one.forked_from
        at = None if source is None else (source["project"], source["run"])
    return found


def _reported(source: Reports, project: str, run: str) -> _Reported:
    with reports.open_books(source, project, run) as books:
        streams = [item for page in _pages(lambda cursor: reports.coverage(books, cursor, PAGE)) for item in page["streams"]]
        saves = [item for page in _pages(lambda cursor: reports.checkpoints(books, cursor, PAGE)) for item in page["checkpoints"]]
        return _Reported(books.offset, reports.exposure(books), streams, saves)


def _pages(page_after: Callable[[str | None], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    page = page_after(None)
    yield page
    while page["next_cursor"] is not None:
        page = page_after(page["next_cursor"])
        yield page


def _unreadable(place: str, error: Exception) -> Difference:
    return Difference(place, "rows that can be read", f"{type(error).__name__}: {error}")


def _fault_in_journal(store: Store, project: str, run: str, progress: Progress) -> Difference | None:
    try:
        with store.read() as connection:
            found = registry.find_run(connection, project, run)
            recount(connection, project, run, found.entries, progress)
    except JournalFault as fault:
        return Difference(fault.place, fault.found, fault.expected, "an intact journal")
    return None


def _compare(connection: Connection, project: str, run: str, reported: _Reported, progress: Progress) -> Difference | None:
    """The first difference, all of it as of one moment of the database."""
    try:
        found = registry.find_run(connection, project, run)
        now = recount(connection, project, run, found.entries, progress)
        then = now if reported.offset == found.entries else recount(connection, project, run, reported.offset, progress)
        return next(_differences(connection, found, reported, now, then), None)
    except JournalFault as fault:
        return Difference(fault.place, fault.found, fault.expected, "an intact journal")
    except kept.Damaged as error:
        return Difference(f"/{error.table}", "rows that can be read", str(error))


def _differences(connection: Connection, run: Run, reported: _Reported, now: Recount, then: Recount) -> Iterator[Difference]:
    yield from comparing.streams(now, kept.journalled_streams(connection, run.id))
    yield from comparing.report("/exposure", then.exposure(), reported.exposure)
    yield from comparing.coverage(then.coverage(), reported.streams)
    yield from comparing.report("/checkpoints", then.checkpoints(), reported.checkpoints)
    if projections.reflected(connection, run.id) != run.entries:
        return
    yield from comparing.numbers(now, kept.numbers_of_attempts(connection, run.id))
    yield from comparing.groups(now, kept.groups(connection, run.id))
    yield from comparing.evaluations(now, kept.evaluated(connection, run.id))
    yield from comparing.plain_rows(connection, run.id, now)


def rebuild(store: Store, project: str, run: str, progress: Progress) -> None:
    """Makes the projections again, unless the journal is damaged: then they are the last that is known of it.

    Raises: RunUnknown.
    """
    with store.read() as connection:
        found = registry.find_run(connection, project, run)
        try:
            facts.read(connection, found.id, found.entries, lambda entries: progress(entries, 2 * found.entries))
        except JournalFault:
            return
    reached = projection.rebuild(store, project, run)
    progress(2 * reached, 2 * reached)
