"""Which attempts lead to the head: the tree of attempts, and the path through it that was preserved.

The trajectory is the head, plus each ancestor up to the checkpoint that its child resumed from. It is a pure function of what was
declared and saved, so arrival order cannot matter. While an attempt's resume point is unknown or contradicted, the attempt and all
that descend from it are *undecided*: their work is held and the trajectory is the one before them.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ledger.domain.intervals import Intervals


@dataclass(frozen=True, slots=True)
class Resume:
    """The point that an attempt says it resumed from: a checkpoint's name, its owner and its update where they are given."""

    checkpoint: str
    attempt: str | None = None
    update: int | None = None

    @staticmethod
    def of(declared: Mapping[str, Any] | None) -> "Resume | None":
        """The declaration as posted; None is from scratch."""
        return None if declared is None else Resume(declared["checkpoint"], declared.get("attempt"), declared.get("update"))

    def agreed(self, other: "Resume") -> "Resume | None":
        """What both declarations say together; None where they contradict each other."""
        if self.checkpoint != other.checkpoint:
            return None
        if None not in (self.attempt, other.attempt) and self.attempt != other.attempt:
            return None
        if None not in (self.update, other.update) and self.update != other.update:
            return None
        return Resume(
            self.checkpoint,
            other.attempt if self.attempt is None else self.attempt,
            other.update if self.update is None else self.update,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a run as its ranks declared it, with the update numbers it has attempted so far."""

    ordinal: int
    name: str
    declared: tuple[Resume | None, ...] = (None,)
    resolved: tuple[Resume | None, ...] = ()
    started_at: int | None = None
    ended: str | None = None
    numbers: Intervals = field(default_factory=Intervals)

    def resume(self) -> tuple[Resume | None, bool]:
        """The resume point that stands and whether the ranks contradict each other about it."""
        if self.resolved:
            return self.resolved[-1], False
        agreed = self.declared[0]
        for other in self.declared[1:]:
            merged = agreed.agreed(other) if agreed is not None and other is not None else None
            if merged is None and (agreed is not None or other is not None):
                return None, True
            agreed = merged
        return agreed, False


@dataclass(frozen=True, slots=True)
class Start:
    """Where a save began: the place of its `started` row in the sequence of the rank and writer that posted it."""

    rank: int
    writer: str
    seq: int


@dataclass(frozen=True, slots=True)
class Save:
    """A saved state: (attempt, checkpoint, update), what became of it, and where it began."""

    attempt: int
    checkpoint: str
    update: int
    accepted: bool = False
    rejected: bool = False
    starts: tuple[Start, ...] = ()
    positions: Mapping[str, Any] | None = None
    uri: str | None = None
    seconds: float | None = None
    origin: str = "event"

    @property
    def key(self) -> tuple[int, str, int]:
        """What makes it this save and no other."""
        return self.attempt, self.checkpoint, self.update


@dataclass(frozen=True, slots=True)
class Node:
    """An attempt's place in the tree: its parent, the save it resumed from, and why it is undecided if it is."""

    attempt: Attempt
    parent: int | None
    save: Save | None
    after: int
    undecided: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the trajectory: an attempt's updates after `after` up to `through` (None: all of them, for the head)."""

    attempt: int
    after: int
    save: Save | None
    """The save that the next attempt resumed from; None for the head."""

    @property
    def through(self) -> int | None:
        """The last update of the attempt that lies on the trajectory; None for the head."""
        return None if self.save is None else self.save.update


@dataclass(frozen=True)
class Tree:
    """All attempts of a run, oldest first, each with its parent; `saves` includes those that only a resume declared."""

    nodes: dict[int, Node]
    order: tuple[int, ...]
    saves: tuple[Save, ...]

    @property
    def head(self) -> int | None:
        """The newest attempt whose path is known."""
        return next((ordinal for ordinal in reversed(self.order) if self.nodes[ordinal].undecided is None), None)

    def path(self, head: int | None) -> tuple[Segment, ...]:
        """The trajectory that ends in that attempt, oldest stretch first."""
        segments: list[Segment] = []
        save: Save | None = None
        while head is not None:
            node = self.nodes[head]
            segments.append(Segment(head, node.after, save))
            head, save = node.parent, node.save
        return tuple(reversed(segments))


def base_order(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts oldest first: dated ones by date among themselves, undated ones where the order of opening put them.

    Each lies behind the attempt that it names as the owner of its checkpoint, whatever their clocks say.
    """
    opened = sorted(attempts, key=lambda attempt: attempt.ordinal)
    dated = iter(sorted((a for a in opened if a.started_at is not None), key=lambda a: (a.started_at or 0, a.ordinal)))
    base = [next(dated) if attempt.started_at is not None else attempt for attempt in opened]
    known = {attempt.ordinal: attempt for attempt in base}
    return [known[ordinal] for ordinal in _ordered(base, _named_owners(base))]


def _named_owners(base: Sequence[Attempt]) -> dict[int, int | None]:
    """For each attempt the one that it names as the owner of its checkpoint; of names that go in a circle the last is not heard."""
    by_name = {attempt.name: attempt.ordinal for attempt in base}
    owners: dict[int, int | None] = dict.fromkeys((attempt.ordinal for attempt in base), None)
    for attempt in base:
        resume, _ = attempt.resume()
        owner = None if resume is None or resume.attempt is None else by_name.get(resume.attempt)
        at = owner
        while at is not None and at != attempt.ordinal:
            at = owners[at]
        if at is None:
            owners[attempt.ordinal] = owner
    return owners


def _ordered(base: Sequence[Attempt], parents: Mapping[int, int | None]) -> tuple[int, ...]:
    """The base order, with each child behind its parent."""
    children: dict[int | None, list[int]] = {}
    for place, attempt in enumerate(base):
        children.setdefault(parents[attempt.ordinal], []).append(place)
    free, order = children.get(None, []), []
    while free:
        ordinal = base[heapq.heappop(free)].ordinal
        order.append(ordinal)
        for place in children.get(ordinal, ()):
            heapq.heappush(free, place)
    return tuple(order)


class _Resolver:
    """Finds the save that each attempt resumed from; lives for one resolution."""

    def __init__(self, attempts: Sequence[Attempt], saves: Iterable[Save], fork: Save | None, forked: bool) -> None:
        self.base = base_order(attempts)
        self.place = {attempt.ordinal: index for index, attempt in enumerate(self.base)}
        self.by_name = {attempt.name: attempt for attempt in attempts}
        self.fork, self.forked = fork, forked
        self.saves = {save.key: save for save in saves}
        self.named: dict[str, list[Save]] = {}
        for save in self.saves.values():
            self.named.setdefault(save.checkpoint, []).append(save)
        # Until it is found, an attempt's parent is the one that it names.
        self.parents: dict[int, int | None] = _named_owners(self.base)

    def _descends(self, ordinal: int, ancestor: int) -> bool:
        at: int | None = ordinal
        while at is not None and at != ancestor:
            at = self.parents[at]
        return at is not None

    def _older(self, child: Attempt, resume: Resume) -> Iterator[Attempt]:
        """Attempts that may own the save, the newest first: the one that is named, else all that are older."""
        if resume.attempt is not None:
            named = self.by_name.get(resume.attempt)
            owners = [] if named is None else [named]
        else:
            owners = self.base[: self.place[child.ordinal]][::-1]
        return (owner for owner in owners if not self._descends(owner.ordinal, child.ordinal))

    def _later(self, child: Attempt, resume: Resume) -> Iterator[Attempt]:
        """Attempts that were opened later and may be the parent all the same, because no date says that they are newer."""
        for owner in self.base[self.place[child.ordinal] + 1 :] if resume.attempt is None else ():
            if None in (owner.started_at, child.started_at) and not self._descends(owner.ordinal, child.ordinal):
                yield owner

    def _known(self, owners: Iterable[Attempt], resume: Resume) -> Save | None:
        for owner in owners:
            own = [s for s in self.named.get(resume.checkpoint, ()) if s.attempt == owner.ordinal]
            if resume.update is not None:
                own = [save for save in own if save.update == resume.update]
            if own:
                return max(own, key=lambda save: save.update)
        return None

    def _declared(self, owners: Iterable[Attempt], resume: Resume) -> Save | None:
        """A save that the ledger only knows from the resume, in the newest older attempt that holds its update."""
        if resume.update is None:
            return None
        for owner in owners:
            node_after = 0 if self.parents[owner.ordinal] is None else None
            if resume.attempt is not None or owner.numbers.holds(resume.update) or resume.update == node_after:
                return Save(owner.ordinal, resume.checkpoint, resume.update, accepted=True, origin="declared_on_resume")
        return None

    def _forked(self, resume: Resume) -> Save | None:
        """The checkpoint that the run was forked from, where that is the one meant."""
        if self.fork is None or resume.attempt in self.by_name or resume.checkpoint != self.fork.checkpoint:
            return None
        return self.fork if resume.update in (None, self.fork.update) else None

    def save_of(self, child: Attempt, resume: Resume) -> Save | None:
        """The save that the attempt resumed from, as far as it can be told."""
        save = self._known(self._older(child, resume), resume) or self._forked(resume)
        save = save or self._declared(self._older(child, resume), resume)
        return save or self._known(self._later(child, resume), resume)

    def node(self, child: Attempt) -> Node:
        """The attempt's place in the tree."""
        resume, conflict = child.resume()
        if conflict:
            return Node(child, None, None, 0, "resume_conflict")
        if resume is None:
            if self.forked and self.fork is None:
                return Node(child, None, None, 0, "unresolved")
            return Node(child, None, self.fork, self.fork.update if self.fork else 0)
        save = self.save_of(child, resume)
        if save is None:
            return Node(child, None, None, 0, "unresolved")
        if save is self.fork:
            return Node(child, None, save, save.update)
        if save.origin == "event" and not save.accepted and not save.rejected:
            save = accepted_by_resume(save)
        if save.key not in self.saves:
            # Once declared it is known: a later attempt may resume from it by its name alone.
            self.named.setdefault(save.checkpoint, []).append(save)
        self.saves[save.key] = save
        self.parents[child.ordinal] = save.attempt
        return Node(child, save.attempt, save, save.update)


def accepted_by_resume(save: Save) -> Save:
    """The save, accepted because an attempt could read it."""
    return Save(
        save.attempt, save.checkpoint, save.update, True, save.rejected, save.starts, save.positions, save.uri, save.seconds, "resume"
    )


def tree_of(attempts: Sequence[Attempt], saves: Iterable[Save], fork: Save | None = None, forked: bool = False) -> Tree:
    """The tree of a run's attempts. `fork` is the other run's checkpoint that this run began from, `forked` whether there is one."""
    resolver = _Resolver(attempts, saves, fork, forked)
    nodes = {attempt.ordinal: resolver.node(attempt) for attempt in resolver.base}
    order = _ordered(resolver.base, resolver.parents)
    for ordinal in order:
        node = nodes[ordinal]
        above = None if node.parent is None else nodes[node.parent]
        if node.undecided is None and above is not None and above.undecided is not None:
            nodes[ordinal] = Node(node.attempt, node.parent, node.save, node.after, "unresolved")
    return Tree(nodes, order, tuple(resolver.saves.values()))


def accepted_on(path: Sequence[Segment], saves: Iterable[Save]) -> Save | None:
    """The newest accepted checkpoint on the trajectory."""
    place = {segment.attempt: index for index, segment in enumerate(path)}
    best: Save | None = None
    for save in saves:
        index = place.get(save.attempt)
        if index is None or not save.accepted or save.rejected:
            continue
        through = path[index].through
        if through is not None and save.update > through:
            continue
        if best is None or _newness(save, place) > _newness(best, place):
            best = save
    return best


def _newness(save: Save, place: Mapping[int, int]) -> tuple[int, int, int, str]:
    return place[save.attempt], save.update, max((start.seq for start in save.starts), default=0), save.checkpoint


def recomputed_numbers(order: Sequence[int], attempts: Mapping[int, Attempt]) -> dict[int, Intervals]:
    """For each attempt the update numbers that an older attempt had attempted before."""
    seen = Intervals()
    result: dict[int, Intervals] = {}
    for ordinal in order:
        result[ordinal] = seen
        seen = seen.union(attempts[ordinal].numbers)
    return result


def lies_before(save: Save, rank: np.ndarray[Any, Any], writer: Sequence[str | None], seq: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which rows lie before the save began, in the sequence of the rank and writer that started it."""
    before = np.zeros(len(seq), dtype=np.bool_)
    for start in save.starts:
        same = np.array([name == start.writer for name in writer], dtype=np.bool_) & (rank == start.rank)
        before |= same & (seq < start.seq)
    return before
