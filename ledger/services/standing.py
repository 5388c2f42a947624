"""How runs stand, for a list of many: what one line says of each, kept until something changes it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ledger.domain.columns import moment_of, moment_text
from ledger.domain.errors import ProjectionBehind
from ledger.services import reports
from ledger.services.reports import Books, Reports
from ledger.storage import registry
from ledger.storage.registry import Run

STALLED_MICROSECONDS = 900_000_000
"""A run that has posted nothing for so long, though its newest attempt has not ended, is stalled."""
MOST_KEPT = 10_000
LISTED = "valid_targets"


def status(books: Books) -> str:
    """Running, stalled or ended, by the head's end and by how long the run has been silent."""
    if books.head is not None and books.launches[books.head].attempt.ended is not None:
        return "ended"
    return "stalled" if books.now - books.run.last_entry_at > STALLED_MICROSECONDS else "running"


def standing(books: Books) -> dict[str, Any]:
    """What a list says of a run."""
    exposure = reports.exposure(books)
    head = None if books.head is None else books.launches[books.head]
    return {
        "project": books.run.project,
        "run": books.run.name,
        "as_of": exposure["as_of"],
        "status": status(books),
        "head": exposure["as_of"]["head"],
        "ended": None if head is None else head.attempt.ended,
        "attempts": len(books.launches),
        "head_update": exposure["trajectory"][-1]["through"] if exposure["trajectory"] else None,
        "accepted_checkpoint": exposure["accepted_checkpoint"],
        "updates": exposure["updates"],
        "balance": exposure["balance"][LISTED],
        "findings": sum(exposure["findings"].values()),
    }


def changes_at(books: Books) -> int | None:
    """When a grace ends or a silence becomes long: nothing else depends on the clock."""
    moments = [] if books.due is None else [books.due]
    if status(books) == "running":
        moments.append(books.run.last_entry_at + STALLED_MICROSECONDS + 1)
    return min(moments, default=None)


@dataclass(frozen=True, slots=True)
class _Kept:
    entries: int
    changes_at: int | None
    value: dict[str, Any]


class Standings:
    """The standings of runs, each read again only when its journal has grown or the clock has changed it; lives as long as the service."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._lock = threading.Lock()

    def of(self, source: Reports, runs: Sequence[Run], wait_seconds: float) -> list[dict[str, Any] | None]:
        """What to say of each run; None of one whose projections are still behind after that time."""
        hasty = replace(source, wait_seconds=wait_seconds)
        return [self._one(hasty, run) for run in runs]

    def _one(self, source: Reports, run: Run) -> dict[str, Any] | None:
        now = moment_of(source.clock())
        kept = self._kept.get(run.id)
        # What a forked run stands at may change with the run that it was forked from.
        if kept is not None and run.forked_from is None and kept.entries == run.entries and (kept.changes_at or now + 1) > now:
            return kept.value
        try:
            with reports.open_books(source, run.project, run.name) as books:
                value = standing(books)
                with self._lock:
                    if len(self._kept) >= MOST_KEPT:
                        self._kept.clear()
                    self._kept[run.id] = _Kept(books.offset, changes_at(books), value)
        except ProjectionBehind:
            return None
        return value


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a list of runs."""

    runs: list[Run]
    projects: list[str]
    in_all: int
    pages: int


def listed(source: Reports, project: str | None, newest_first: bool, page: int, size: int) -> Listed:
    """The runs of one page, newest entry first or by name; pages are counted from 1."""
    with source.store.read() as connection:
        projects = registry.projects(connection)
        found, in_all = registry.ordered_runs(connection, project, newest_first, (page - 1) * size, size)
    return Listed(found, projects, in_all, max(1, -(-in_all // size)))


def age_seconds(now: datetime, run: Run) -> float:
    """How long ago the run's last entry was received."""
    return max(0.0, (moment_of(now) - run.last_entry_at) / 1e6)


def last_entry(run: Run) -> str:
    """When the run's last entry was received, RFC 3339."""
    return moment_text(run.last_entry_at)
