"""A run's report, recounted from its raw journal: every number of the exposure and of the coverage by another path.

It is slow and plain on purpose. What it holds in memory is one small record an update; rows of ranks are read a window at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ledger.domain.errors import RunUnknown
from ledger.services.recounting import facts, matrix, seen
from ledger.services.recounting.facts import Facts, JournalFault
from ledger.services.recounting.groups import EVALUATIONS, Group, groups_of
from ledger.services.recounting.lineage import Lineage, Step, path_to, trace
from ledger.services.recounting.placing import placement
from ledger.services.recounting.saving import Save, saves_of
from ledger.services.recounting.seen import Draw
from ledger.storage import registry
from ledger.storage.raw import Unreadable
from ledger.storage.store import Connection

Progress = Callable[[int, int], None]
Entries = dict[tuple[str, str], int]
"""(project, run) -> the offset up to which a run is read."""


@dataclass(slots=True)
class Recount:
    """A run counted again up to an offset; `before` is the run that it was forked from, `fork` the save that it began from there."""

    facts: Facts
    groups: list[Group]
    lineage: Lineage
    before: "Recount | None"
    fork: Save | None

    def exposure(self) -> dict[str, Any]:
        """What an exposure report must say."""
        lineage, accepted = self.lineage, self.lineage.accepted
        jumps = {(a, r["update"], r["stream"], r["epoch"], r["start"], r["stop"]) for a, r in self.facts.passed}
        return {
            "as_of": {"head": self.name(lineage.head), "complete_through_update": matrix.complete_through(self.groups, lineage)},
            "trajectory": matrix.trajectory(self.groups, lineage),
            "accepted_checkpoint": None
            if accepted is None
            else {"checkpoint": accepted.name, "attempt": self.name(accepted.attempt), "update": accepted.update},
            **matrix.exposure(self.groups, lineage),
            "passed_over": {"samples": sum(stop - start for *_, start, stop in jumps)},
            "undecided": {lineage.openings[attempt].name: why for attempt, why in lineage.undecided.items()},
        }

    def coverage(self) -> list[dict[str, Any]]:
        """What a coverage report must say of each stream and epoch."""
        return seen.coverage(self.drawn(self.lineage.path), self._unit())

    def checkpoints(self) -> list[dict[str, Any]]:
        """What must be said of each save, in the order of attempts and updates."""
        limits = {step.attempt: step.limit for step in self.lineage.path}
        items = []
        for save in sorted(self.lineage.saves.values(), key=lambda save: (save.attempt, save.update, save.name)):
            limit = limits.get(save.attempt)
            state = "rejected" if save.rejected else "accepted" if save.stands else "started"
            by = "event" if save.accepted else "resume"
            items.append(
                {
                    "checkpoint": save.name,
                    "attempt": self.name(save.attempt),
                    "update": save.update,
                    "state": state,
                    "accepted_by": by if state == "accepted" else None,
                    "origin": "declared_on_resume" if save.is_declared else "event",
                    "on_trajectory": save.attempt in limits and (limit is None or save.update <= limit.update),
                    "positions": save.positions or {},
                    "uri": save.uri,
                    "seconds": save.seconds,
                }
            )
        return items

    def name(self, attempt: int | None) -> str | None:
        """The launcher's own name of an attempt."""
        return None if attempt is None else self.lineage.openings[attempt].name

    def numbers(self) -> dict[int, set[int]]:
        """The update numbers that each attempt attempted."""
        return _numbers(self.groups)

    def _unit(self) -> str:
        head = self.lineage.head
        declared = [self.facts.declaration.get("conventions")] + ([] if head is None else [self.lineage.openings[head].conventions])
        units = [((one or {}).get("data") or {}).get("unit") for one in declared]
        return next((unit for unit in reversed(units) if unit is not None), "position")

    def drawn(self, path: list[Step]) -> Iterator[Draw]:
        """What was drawn on a path, and on the way to the checkpoint of another run that it began from."""
        if self.before is not None and self.fork is not None and path and self.lineage.sources[path[0].attempt] is self.fork:
            yield from self.before.drawn(path_to(self.before.lineage, self.fork.attempt, self.fork))
        limits = {step.attempt: step.limit for step in path}
        for group in self.groups:
            if group.kind == EVALUATIONS or group.attempt not in limits:
                continue
            limit = limits[group.attempt]
            if limit is None or limit.covers(group):
                effect = seen.EFFECTS.get(self.lineage.outcome(group), seen.IDLE)
                yield from ((stream, epoch, start, stop, effect) for stream, epoch, start, stop in group.ranges)
        for attempt, row in self.facts.passed:
            if attempt in limits:
                limit = limits[attempt]
                if limit is None or limit.covers_pass(row):
                    yield row["stream"], row["epoch"], row["start"], row["stop"], seen.PASSED


def _numbers(groups: list[Group]) -> dict[int, set[int]]:
    numbers: dict[int, set[int]] = {}
    for group in groups:
        if group.is_attempt:
            numbers.setdefault(group.attempt, set()).add(group.number)
    return numbers


def recount(connection: Connection, project: str, run: str, through: int, progress: Progress) -> Recount:
    """Counts a run again from its first entry to an offset.

    Raises: RunUnknown, JournalFault.
    """
    return _recount(connection, project, run, through, progress, frozenset())


def _recount(
    connection: Connection, project: str, run: str, through: int | None, progress: Progress, below: frozenset[tuple[str, str]]
) -> Recount:
    found = registry.find_run(connection, project, run)
    through = found.entries if through is None else through
    total = 2 * through
    known = facts.read(connection, found.id, through, lambda entries: progress(entries, total))
    groups = _groups(connection, found.id, known, through, lambda rows: progress(through + rows, total))
    origin = known.declaration.get("forked_from")
    before, fork = None, None
    if origin is not None and (origin["project"], origin["run"]) not in below | {(project, run)}:
        before, fork = _origin(connection, origin, progress, below | {(project, run)})
    ordinals = {opening.name: attempt for attempt, opening in known.openings.items()}
    lineage = trace(known.openings, saves_of(known.saved, ordinals), _numbers(groups), fork, origin is not None)
    progress(total, total)
    return Recount(known, groups, lineage, before, fork)


def _origin(
    connection: Connection, origin: dict[str, Any], progress: Progress, below: frozenset[tuple[str, str]]
) -> tuple[Recount | None, Save | None]:
    """The run that another was forked from, and the newest save there of the name that the fork declares."""
    try:
        before = _recount(connection, origin["project"], origin["run"], None, progress, below)
    except RunUnknown:
        return None, None
    lineage = before.lineage
    place = {attempt: index for index, attempt in enumerate(lineage.order)}
    named = [save for save in lineage.saves.values() if save.name == origin["checkpoint"]]
    named = [save for save in named if origin.get("attempt") in (None, before.name(save.attempt))]
    return before, max(named, key=lambda save: (place[save.attempt], save.update), default=None)


def _groups(connection: Connection, run_id: int, known: Facts, through: int, folded: Callable[[int], None]) -> list[Group]:
    groups: list[Group] = []
    rows_folded = 0
    for (attempt, kind), pages in sorted(known.pages.items()):
        place = placement(known.openings[attempt].layout)
        try:
            for rows in facts.rows_in_windows(connection, run_id, attempt, kind, pages, through):
                groups += groups_of(attempt, kind, rows, place, known.resolutions)
                rows_folded += len(rows)
                folded(rows_folded)
        except Unreadable as error:
            place_of_fault = f"/journal/{known.openings[attempt].name}/{kind}"
            raise JournalFault(place_of_fault, str(error), "blocks that can be read") from error
    return groups


__all__ = ["Recount", "recount"]
