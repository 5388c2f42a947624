"""Which runs somebody works on, and what tells whether anything about them has changed."""

from dataclasses import dataclass
from datetime import datetime

from ledger.domain.columns import moment_of
from ledger.services.books import Reports
from ledger.storage import registry
from ledger.storage.registry import Run

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Active:
    """A run with its last offset, and those of the runs that it was forked from: the same again means that nothing was posted."""

    run: Run
    version: tuple[int, ...]
    is_behind: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The runs with an entry since a moment, newest first; how many there are in all; and how far reports lag behind the journal."""

    now: int
    runs: list[Active]
    in_all: int
    lag_events: int
    lag_seconds: float


def found(reports: Reports, since: datetime, most: int) -> Found:
    """The runs with an entry since a moment, and no more than asked for, in a number of reads that is that of the forks above them.

    Raises: DatabaseUnavailable.
    """
    now = moment_of(reports.clock())
    with reports.store.read() as connection:
        newest, in_all = registry.newest_runs(connection, moment_of(since), most)
        sources = registry.sources_of(connection, newest)
        behind = registry.behind(connection)
    late = {(item.project, item.name) for item in behind}

    def active(run: Run) -> Active:
        version, names, above = [run.entries], [(run.project, run.name)], run.forked_from
        while above is not None and (name := (above["project"], above["run"])) in sources and name not in names:
            version.append(sources[name].entries)
            names.append(name)
            above = sources[name].forked_from
        return Active(run, tuple(version), not late.isdisjoint(names))

    waiting = max((now - item.since for item in behind), default=0)
    return Found(now, [active(run) for run in newest], in_all, sum(item.entries for item in behind), max(0, waiting) / MICROSECONDS)
