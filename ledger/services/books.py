"""A run's books at one offset: everything that a report is made from, read in one transaction.

The cost is that of the attempts, the checkpoints and the pages of updates; never that of the events.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from ledger.domain import conventions
from ledger.domain.columns import moment_of, moment_text
from ledger.domain.errors import AttemptUnknown, ProjectionBehind, RunUnknown
from ledger.domain.exposure import Fates, Matrix, Total, matrix_of
from ledger.domain.intervals import Intervals
from ledger.domain.trajectory import Save, Segment, Tree, accepted_on
from ledger.services.projection import catch_up
from ledger.storage import history, incomplete, projections, registry
from ledger.storage.history import AttemptState, GroupKey
from ledger.storage.registry import Launch, Run
from ledger.storage.store import Connection, Store

INLINE_ENTRIES = 100_000
"""A reader folds so many new entries itself; for more it waits for the projector."""

POLL_SECONDS = 0.02
FRESH_TRIES = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Reports:
    """What every report needs: the store, a clock, and how long a reader waits.

    `wait_seconds` None: no projector runs beside, so the reader folds whatever is new, however long that takes.
    """

    store: Store
    clock: Callable[[], datetime]
    grace_seconds: float = 60.0
    wait_seconds: float | None = None


@dataclass
class Books:
    """A run's facts and projections at one offset, for one head."""

    connection: Connection
    run: Run
    offset: int
    now: int
    grace: int
    launches: dict[int, Launch]
    tree: Tree
    states: dict[int, AttemptState]
    head: int | None
    due: int | None = None
    kept: dict[Callable[["Books"], Any], Any] = field(default_factory=dict)

    def once(self, read: Callable[["Books"], T]) -> T:
        """What that function reads off these books, read once however many reports need it."""
        if read not in self.kept:
            self.kept[read] = read(self)
        found: T = self.kept[read]
        return found

    def overdue(self, moment: int) -> bool:
        """Whether the grace that began at a moment is over; `due` is when the first of those that are not will be."""
        end = moment + self.grace
        if self.now > end:
            return True
        self.due = end + 1 if self.due is None else min(self.due, end + 1)
        return False

    @cached_property
    def path(self) -> tuple[Segment, ...]:
        """The trajectory, oldest stretch first."""
        return self.tree.path(self.head)

    @cached_property
    def accepted(self) -> Save | None:
        """The newest accepted checkpoint on the trajectory."""
        return accepted_on(self.path, self.tree.saves)

    @cached_property
    def undecided(self) -> frozenset[int]:
        """Attempts whose resume point is unknown or contradicted."""
        return frozenset(ordinal for ordinal, node in self.tree.nodes.items() if node.undecided is not None)

    @cached_property
    def fates(self) -> Fates:
        """Where work lies against preserved progress."""
        return Fates(self.path, self.accepted, self.undecided)

    @cached_property
    def totals(self) -> list[Total]:
        """The totals of all intervals."""
        return history.totals_of(self.connection, self.run.id)

    @cached_property
    def recomputed(self) -> dict[int, Intervals]:
        """For each attempt the numbers that an older one tried before."""
        return {ordinal: state.recomputed for ordinal, state in self.states.items()}

    @cached_property
    def early_keys(self) -> dict[GroupKey, frozenset[tuple[int, str, int]]]:
        """Groups that lie before a save of the trajectory though their number is higher: their fate is not that of their number."""
        return history.early_keys(self.connection, self.run.id, [*(segment.save for segment in self.path), self.accepted])

    @cached_property
    def matrix(self) -> Matrix:
        """The exposure matrix."""
        return matrix_of(self.totals, history.early_groups(self.connection, self.run.id, self.early_keys, self.recomputed), self.fates)

    @cached_property
    def incomplete(self) -> dict[int, int]:
        """For each attempt that has updates whose shards have not all reported, the lowest of their numbers."""
        return incomplete.first_of_attempts(self.connection, self.run.id)

    def name(self, ordinal: int | None) -> str | None:
        """The launcher's own name of an attempt."""
        return None if ordinal is None else self.launches[ordinal].attempt.name

    def conventions(self, ordinal: int | None) -> dict[str, Any]:
        """The conventions that hold in an attempt, or in the run where there is none."""
        own = self.launches[ordinal].conventions if ordinal is not None else None
        return conventions.effective(self.run.conventions, own)

    def numbers(self, ordinal: int) -> Intervals:
        """The update numbers that an attempt has attempted."""
        return self.states[ordinal].numbers if ordinal in self.states else Intervals()

    def succeeded(self, ordinal: int) -> bool:
        """Whether another attempt is the head, or this one has ended."""
        return ordinal != self.head or self.launches[ordinal].attempt.ended is not None

    def through(self, segment: Segment) -> int:
        """The last update of a stretch of the trajectory."""
        if segment.through is not None:
            return segment.through
        last = self.numbers(segment.attempt).last
        return segment.after if last is None else max(last, segment.after)

    def complete_through(self) -> int | None:
        """The highest number up to which every update on the trajectory has all its shards."""
        complete: int | None = None
        for place, segment in enumerate(self.path):
            numbers = self.numbers(segment.attempt)
            last, first = self.through(segment), numbers.first
            # Work from scratch begins at whatever number it begins with.
            scratch = not place and self.tree.nodes[segment.attempt].save is None and first is not None and first <= last
            start = first if scratch and first is not None else segment.after + 1
            holes = Intervals.of([(start, last + 1)]).minus(numbers).first
            missing = self.incomplete.get(segment.attempt)
            stops = [stop for stop in (holes, missing) if stop is not None and stop <= last]
            complete = min(stops) - 1 if stops else last
            if stops:
                # Where nothing is complete, it is as far as the stretch's own beginning.
                complete = segment.after if complete < start else complete
                break
        return complete

    def as_of(self) -> dict[str, Any]:
        """The moment that a report speaks of."""
        return {
            "events": self.offset,
            "at": moment_text(self.run.last_entry_at),
            "head": self.name(self.head),
            "complete_through_update": self.complete_through(),
        }


def wait_for_lineage(reports: Reports, project: str, run: str) -> None:
    """Waits for a run and for all that it was forked from. Raises: RunUnknown, ProjectionBehind."""
    found = _wait(reports, project, run)
    seen = {(project, run)}
    while (source := found.forked_from) is not None and (source["project"], source["run"]) not in seen:
        seen.add((source["project"], source["run"]))
        try:
            found = _wait(reports, source["project"], source["run"])
        except RunUnknown:
            return


def _wait(reports: Reports, project: str, run: str) -> Run:
    """Makes sure that the projections reflect every event acknowledged so far. Raises: RunUnknown, ProjectionBehind."""
    with reports.store.read() as connection:
        found = registry.find_run(connection, project, run)
        behind = found.entries - projections.reflected(connection, found.id)
    if reports.wait_seconds is None or behind <= INLINE_ENTRIES:
        catch_up(reports.store, project, run)
        return found
    deadline = time.monotonic() + reports.wait_seconds
    while time.monotonic() < deadline:
        with reports.store.read() as connection:
            reached = projections.reflected(connection, found.id)
        if reached >= found.entries:
            return found
        time.sleep(POLL_SECONDS)
    raise ProjectionBehind(f"{found.entries - reached} entries of {project}/{run} are not folded yet", entries=found.entries - reached)


@contextmanager
def open_books(reports: Reports, project: str, run: str, head: str | None = None) -> Iterator[Books]:
    """A run's books, reflecting every event that was acknowledged before.

    Raises: RunUnknown, AttemptUnknown, ProjectionBehind.
    """
    for _ in range(FRESH_TRIES):
        wait_for_lineage(reports, project, run)
        with reports.store.read() as connection:
            found = registry.find_run(connection, project, run)
            offset = projections.reflected(connection, found.id)
            if offset < found.entries:
                # Declarations are read as they stand: take a moment at which the projections stand there too.
                continue
            yield _books(reports, connection, found, offset, head)
            return
    with reports.store.read() as connection:
        found = registry.find_run(connection, project, run)
        yield _books(reports, connection, found, projections.reflected(connection, found.id), head)


@contextmanager
def open_together(reports: Reports, run_ids: Iterable[int]) -> Iterator[Iterator[Books]]:
    """The books of many runs at one moment, in few reads; a run whose projections are behind at that moment is left out.

    Raises: DatabaseUnavailable.
    """
    with reports.store.read() as connection:
        found = [run for run, offset in registry.runs_reflected(connection, run_ids) if offset == run.entries]
        ids = [run.id for run in found]
        launches, states = registry.launches_of_runs(connection, ids), history.states_of_runs(connection, ids)
        saves, totals = history.saves_of_runs(connection, ids), history.totals_of_runs(connection, ids)

        def opened() -> Iterator[Books]:
            for run in found:
                tree = history.tree_from(connection, run, launches[run.id], states[run.id], saves[run.id])
                books = _opened(reports, connection, run, run.entries, launches[run.id], tree, states[run.id])
                books.totals = totals[run.id]
                yield books

        yield opened()


def _books(reports: Reports, connection: Connection, run: Run, offset: int, head: str | None) -> Books:
    launches = registry.launches(connection, run.id)
    states = history.states(connection, run.id)
    tree = history.tree_from(connection, run, launches, states, history.saves_of(connection, run.id))
    books = _opened(reports, connection, run, offset, launches, tree, states)
    if head is not None:
        named = [ordinal for ordinal, launch in books.launches.items() if launch.attempt.name == head]
        if not named:
            raise AttemptUnknown(f"no attempt {head} of {run.project}/{run.name} has been opened", attempt=head)
        books.head = named[0]
    return books


def _opened(
    reports: Reports,
    connection: Connection,
    run: Run,
    offset: int,
    launches: Iterable[Launch],
    tree: Tree,
    states: dict[int, AttemptState],
) -> Books:
    now, grace = moment_of(reports.clock()), int(reports.grace_seconds * 1_000_000)
    return Books(connection, run, offset, now, grace, {item.attempt.ordinal: item for item in launches}, tree, states, tree.head)
