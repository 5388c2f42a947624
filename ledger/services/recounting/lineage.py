"""Which attempt grew out of which save: the order of attempts, the head, the trajectory, and where work lies against it.

An attempt resumes from the newest save of a name in an older attempt, unless it names the owner. While its resume point is unknown or
contradicted, it and what grows out of it are undecided: what their optimizers decided is held, and the trajectory is the one before.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ledger.services.recounting.facts import Opening
from ledger.services.recounting.groups import Group
from ledger.services.recounting.saving import Save, SaveKey

Declared = dict[str, Any]


@dataclass(slots=True)
class Step:
    """A stretch of the trajectory: an attempt, the update that it starts behind, and the save at which its child left it."""

    attempt: int
    after: int
    limit: Save | None


@dataclass(slots=True)
class Lineage:
    """All that follows from what was declared and saved; attempts are named by their ordinal."""

    openings: dict[int, Opening]
    saves: dict[SaveKey, Save] = field(default_factory=dict)
    named: dict[tuple[int, str], list[Save]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    parents: dict[int, int | None] = field(default_factory=dict)
    sources: dict[int, Save | None] = field(default_factory=dict)
    undecided: dict[int, str] = field(default_factory=dict)
    path: list[Step] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    accepted: Save | None = None

    def add(self, save: Save) -> None:
        """Takes a save in."""
        self.saves[save.key] = save
        self.named.setdefault((save.attempt, save.name), []).append(save)

    @property
    def head(self) -> int | None:
        """The attempt that the trajectory ends with."""
        return self.path[-1].attempt if self.path else None

    def outcome(self, group: Group) -> str:
        """The outcome as it counts."""
        decided = group.outcome in ("applied", "skipped", "abandoned")
        return "held" if decided and group.attempt in self.undecided else group.outcome

    def holds(self, group: Group) -> bool:
        """Whether a group lies on the trajectory."""
        place = self.places.get(group.attempt)
        if place is None:
            return False
        limit = self.path[place].limit
        return limit is None or limit.covers(group)

    def fate(self, group: Group) -> str:
        """Where a group lies against preserved progress."""
        outcome = self.outcome(group)
        if not self.holds(group) or (outcome == "open" and group.attempt != self.head):
            return "lost"
        if outcome in ("held", "open") or self.accepted is None:
            return "pending"
        if group.attempt == self.accepted.attempt:
            return "preserved" if self.accepted.covers(group) else "pending"
        return "preserved" if self.places[group.attempt] < self.places[self.accepted.attempt] else "pending"


def trace(openings: dict[int, Opening], saves: Iterable[Save], numbers: dict[int, set[int]], fork: Save | None, forked: bool) -> Lineage:
    """The lineage of a run. `numbers` are the updates that each attempt attempted, `fork` the save of the run it was forked from."""
    lineage = Lineage(openings)
    for save in saves:
        lineage.add(save)
    by_opening = by_date(openings)
    # Until it is found, an attempt's parent is the one that it names.
    lineage.parents = _named_owners(openings, by_opening)
    base = _children_last(by_opening, lineage.parents)
    for attempt in base:
        _find_source(lineage, base, attempt, numbers, fork, forked)
    lineage.order = _children_last(base, lineage.parents)
    for attempt in lineage.order:
        if lineage.parents[attempt] in lineage.undecided:
            lineage.undecided.setdefault(attempt, "unresolved")
    head = next((attempt for attempt in reversed(lineage.order) if attempt not in lineage.undecided), None)
    lineage.path = path_to(lineage, head, None)
    lineage.places = {step.attempt: place for place, step in enumerate(lineage.path)}
    lineage.accepted = newest_accepted(lineage)
    return lineage


def by_date(openings: dict[int, Opening]) -> list[int]:
    """Attempts oldest first: dated ones by date among the places that they were opened at, undated ones where they were opened."""
    opened = sorted(openings)
    dated = sorted((openings[a].started_at or 0, a) for a in opened if openings[a].started_at is not None)
    left = iter(dated)
    return [attempt if openings[attempt].started_at is None else next(left)[1] for attempt in opened]


def _named_owners(openings: dict[int, Opening], base: list[int]) -> dict[int, int | None]:
    """The attempt that each one names as the owner of its checkpoint, and so is older; a name that would close a circle is not heard."""
    ordinals = {opening.name: attempt for attempt, opening in openings.items()}
    owners: dict[int, int | None] = dict.fromkeys(base)
    for attempt in base:
        resume, _ = _agreed(openings[attempt])
        owner = ordinals.get(resume["attempt"]) if resume is not None and resume.get("attempt") is not None else None
        above = owner
        while above is not None and above != attempt:
            above = owners[above]
        if above is None:
            owners[attempt] = owner
    return owners


def _children_last(base: list[int], parents: dict[int, int | None]) -> list[int]:
    """The attempts oldest first, and no child before its parent."""
    order: list[int] = []
    waiting = list(base)
    placed: set[int | None] = {None}
    while waiting:
        # Sources are never circular, so that one is always free.
        free = next(attempt for attempt in waiting if parents[attempt] in placed)
        waiting.remove(free)
        order.append(free)
        placed.add(free)
    return order


def _agreed(opening: Opening) -> tuple[Declared | None, bool]:
    """The resume point that stands, and whether ranks contradict each other about it."""
    if opening.settled:
        return opening.settled[-1], False
    first = opening.declared[0]
    if any((other is None) != (first is None) for other in opening.declared):
        return None, True
    if first is None:
        return None, False
    agreed: Declared = {}
    for key in ("checkpoint", "attempt", "update"):
        said = {other[key] for other in opening.declared if other is not None and other.get(key) is not None}
        if len(said) > 1:
            return None, True
        if said:
            agreed[key] = said.pop()
    return agreed, False


def _find_source(lineage: Lineage, base: list[int], attempt: int, numbers: dict[int, set[int]], fork: Save | None, forked: bool) -> None:
    """Finds the save that an attempt resumed from; one that it proves readable is accepted by that."""
    resume, conflict = _agreed(lineage.openings[attempt])
    lineage.sources[attempt] = None
    if conflict:
        lineage.undecided[attempt] = "resume_conflict"
        return
    if resume is None:
        lineage.sources[attempt] = fork
        if forked and fork is None:
            lineage.undecided[attempt] = "unresolved"
        return
    older, later = _possible_owners(lineage, base, attempt, resume)
    save = _known(lineage, older, resume)
    if save is None and fork is not None and _means_fork(lineage, fork, resume):
        lineage.sources[attempt] = fork
        return
    save = save or _declared(lineage, older, resume, numbers) or _known(lineage, later, resume)
    if save is None:
        lineage.undecided[attempt] = "unresolved"
        return
    lineage.sources[attempt], lineage.parents[attempt] = save, save.attempt
    save.was_resumed = True


def _means_fork(lineage: Lineage, fork: Save, resume: Declared) -> bool:
    """Whether a resume point that no attempt of the run has saved is the one that the run was forked from."""
    is_own = any(opening.name == resume.get("attempt") for opening in lineage.openings.values())
    return not is_own and fork.name == resume["checkpoint"] and resume.get("update") in (None, fork.update)


def _possible_owners(lineage: Lineage, base: list[int], child: int, resume: Declared) -> tuple[list[int], list[int]]:
    """The attempts that may own the save: older ones, newest first; and those opened later that no date makes newer."""

    def descends(attempt: int | None) -> bool:
        while attempt is not None and attempt != child:
            attempt = lineage.parents[attempt]
        return attempt is not None

    if resume.get("attempt") is not None:
        return [a for a in base if lineage.openings[a].name == resume["attempt"] and not descends(a)], []
    place = base.index(child)
    moment = lineage.openings[child].started_at
    later = [a for a in base[place + 1 :] if None in (lineage.openings[a].started_at, moment)]
    return [a for a in reversed(base[:place]) if not descends(a)], [a for a in later if not descends(a)]


def _known(lineage: Lineage, owners: list[int], resume: Declared) -> Save | None:
    for owner in owners:
        named = [save for save in lineage.named.get((owner, resume["checkpoint"]), ()) if resume.get("update") in (None, save.update)]
        if named:
            return max(named, key=lambda save: save.update)
    return None


def _declared(lineage: Lineage, owners: list[int], resume: Declared, numbers: dict[int, set[int]]) -> Save | None:
    """The save that the resume itself declares, in the newest possible owner that holds its update."""
    update = resume.get("update")
    if update is None:
        return None
    for owner in owners:
        begins_there = update == 0 and lineage.parents[owner] is None
        if resume.get("attempt") is not None or update in numbers.get(owner, ()) or begins_there:
            save = Save(owner, resume["checkpoint"], update, is_declared=True)
            lineage.add(save)
            return save
    return None


def path_to(lineage: Lineage, attempt: int | None, limit: Save | None) -> list[Step]:
    """The way to an attempt, or to a save of it, oldest stretch first."""
    path: list[Step] = []
    while attempt is not None:
        source = lineage.sources[attempt]
        path.insert(0, Step(attempt, 0 if source is None else source.update, limit))
        attempt, limit = lineage.parents[attempt], source
    return path


def newest_accepted(lineage: Lineage) -> Save | None:
    """The newest accepted save on the trajectory."""
    standing: dict[int, list[Save]] = {}
    for save in lineage.saves.values():
        if save.stands:
            standing.setdefault(save.attempt, []).append(save)
    for step in reversed(lineage.path):
        own = [save for save in standing.get(step.attempt, ()) if step.limit is None or save.update <= step.limit.update]
        if own:
            return max(own, key=lambda save: save.newness)
    return None
