"""Which data a trajectory drew: coverage along the whole path that leads to a checkpoint or a head, across forks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ledger.domain.coverage import CLASS_OF_OUTCOME, EFFECTIVE, HELD, PASSED, UNUSED, Drawn, StreamCoverage, coverage_of
from ledger.domain.exposure import Fates
from ledger.domain.trajectory import Save, Segment, Tree
from ledger.services.books import Books
from ledger.storage import history, passing, registry
from ledger.storage.history import DrawnInterval
from ledger.storage.registry import Run
from ledger.storage.store import Row


@dataclass(frozen=True)
class Stretch:
    """One run's part of a lineage: the path through its attempts, the last stretch cut at `end` where a checkpoint ends it."""

    run: Run
    tree: Tree
    path: tuple[Segment, ...]
    names: Mapping[int, str]


def lineage(books: Books, path: tuple[Segment, ...]) -> list[Stretch]:
    """The path with all that lies before it in the runs that this one was forked from, oldest first."""
    stretches = [Stretch(books.run, books.tree, path, {ordinal: launch.attempt.name for ordinal, launch in books.launches.items()})]
    run, seen = books.run, {books.run.id}
    while stretches[0].path and _starts_at_fork(stretches[0]):
        source = history.fork_source(books.connection, run)
        if source is None or source[0].id in seen:
            break
        run, save = source
        seen.add(run.id)
        tree = history.tree(books.connection, run)
        names = {launch.attempt.ordinal: launch.attempt.name for launch in registry.launches(books.connection, run.id)}
        stretches.insert(0, Stretch(run, tree, path_to(tree, save), names))
    return stretches


def _starts_at_fork(stretch: Stretch) -> bool:
    node = stretch.tree.nodes[stretch.path[0].attempt]
    return stretch.run.forked_from is not None and node.parent is None and node.save is not None


def path_to(tree: Tree, save: Save) -> tuple[Segment, ...]:
    """The trajectory that ends in a save."""
    *before, last = tree.path(save.attempt)
    return (*before, Segment(last.attempt, last.after, save))


def _early_of(books: Books, stretch: Stretch) -> tuple[Mapping[history.GroupKey, frozenset[history.SaveKey]], list[Row[Any]]]:
    keys = history.early_keys(books.connection, stretch.run.id, (segment.save for segment in stretch.path))
    return keys, history.rows_of_keys(books.connection, stretch.run.id, sorted(keys))


def drawn_along(books: Books, stretches: Iterable[Stretch]) -> Iterator[tuple[Stretch, DrawnInterval]]:
    """What was drawn on a lineage, passes included, oldest stretch first."""
    for stretch in stretches:
        fates = Fates(stretch.path, None, ())
        undecided = {ordinal for ordinal, node in stretch.tree.nodes.items() if node.undecided is not None}
        for item in history.drawn_of(books.connection, stretch.run.id, fates.place):
            if fates.on_trajectory(item.attempt, item.first):
                yield stretch, _held(item) if item.attempt in undecided else item
        keys, rows = _early_of(books, stretch)
        for row in rows:
            saves = keys[row.attempt, row.number, row.part, row.retry]
            if fates.on_trajectory(row.attempt, row.number, saves) and not fates.on_trajectory(row.attempt, row.number):
                found = [DrawnInterval(row.attempt, row.number, drawn) for drawn in _row_drawn(row)]
                yield from ((stretch, _held(item) if item.attempt in undecided else item) for item in found)
        for jump in passing.passes_of(books.connection, stretch.run.id, fates.place):
            save = stretch.path[fates.place[jump.attempt]].save
            if save is None or jump.number <= save.update or jump.before(save):
                yield stretch, DrawnInterval(jump.attempt, jump.number, _span(jump.stream, jump.epoch, PASSED, [(jump.start, jump.stop)]))


def _held(item: DrawnInterval) -> DrawnInterval:
    """What an undecided attempt drew: held like its updates, so neither trained on nor a gap; only what is never held stays."""
    return item if item.drawn.effect == UNUSED else replace(item, drawn=replace(item.drawn, effect=HELD))


def _span(stream: str, epoch: int, effect: str, spans: list[tuple[int, int]]) -> Drawn:
    values = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return Drawn(stream, epoch, effect, values[:, 0], values[:, 1])


def _row_drawn(row: Row[Any]) -> Iterator[Drawn]:
    cells: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for stream, epoch, start, stop in history.unpack(row.ranges) or ():
        cells.setdefault((stream, epoch), []).append((start, stop))
    for (stream, epoch), spans in cells.items():
        yield _span(stream, epoch, CLASS_OF_OUTCOME[row.outcome], spans)


def _drawn(books: Books) -> list[tuple[Stretch, DrawnInterval]]:
    """What was drawn on the trajectory, across forks."""
    return list(drawn_along(books, lineage(books, books.path)))


def covered(books: Books) -> list[StreamCoverage]:
    """How the positions of each stream were seen on the trajectory, across forks."""
    return coverage_of(item.drawn for _, item in books.once(_drawn))


@dataclass
class Cursors:
    """The highest positions drawn and trained on, by stream and epoch."""

    drawn: dict[tuple[str, int], int]
    trained: dict[tuple[str, int], int]

    def move(self, drawn: Drawn) -> None:
        """Takes ranges into account."""
        key, stop = (drawn.stream, drawn.epoch), int(drawn.stop.max(initial=0))
        self.drawn[key] = max(stop, self.drawn.get(key, 0))
        if drawn.effect in (EFFECTIVE, PASSED):
            self.trained[key] = max(stop, self.trained.get(key, 0))


def checkpoint_mismatches(books: Books, is_checked: Callable[[Save], bool]) -> Iterator[dict[str, Any]]:
    """Checkpoints on the trajectory whose declared position is neither the drawn nor the trained cursor."""
    through = {segment.attempt: segment.through for segment in books.path}
    wanted = [
        save
        for save in books.tree.saves
        if save.positions and save.attempt in through and is_checked(save) and _within(save, through[save.attempt])
    ]
    if not wanted:
        return
    place = {segment.attempt: index for index, segment in enumerate(books.path)}
    wanted.sort(key=lambda save: (place[save.attempt], save.update))
    items = [(stretch.run.id, item) for stretch, item in books.once(_drawn)]
    own = sorted((item for run_id, item in items if run_id == books.run.id), key=lambda item: (place[item.attempt], item.first))
    cursors = Cursors({}, {})
    for run_id, item in items:
        if run_id != books.run.id:
            cursors.move(item.drawn)
    streams = {item.drawn.stream for _, item in items}
    early = _drawn_early(books, wanted)
    at = 0
    for save in wanted:
        while at < len(own) and (place[own[at].attempt], own[at].first) <= (place[save.attempt], save.update):
            cursors.move(own[at].drawn)
            at += 1
        yield from _compare(save, cursors, early.get(save.key, []), streams)


def _within(save: Save, through: int | None) -> bool:
    return through is None or save.update <= through


def _drawn_early(books: Books, saves: Sequence[Save]) -> dict[history.SaveKey, list[Drawn]]:
    """For each save what groups and passes of higher numbers drew before it began."""
    found: dict[history.SaveKey, list[Drawn]] = {}
    keys = history.early_keys(books.connection, books.run.id, saves)
    for row in history.rows_of_keys(books.connection, books.run.id, sorted(keys)):
        for key in keys[row.attempt, row.number, row.part, row.retry]:
            found.setdefault(key, []).extend(_row_drawn(row))
    jumps = passing.passes_of(books.connection, books.run.id, {save.attempt for save in saves})
    for save in saves:
        for jump in jumps:
            if jump.attempt == save.attempt and jump.number > save.update and jump.before(save):
                found.setdefault(save.key, []).append(_span(jump.stream, jump.epoch, PASSED, [(jump.start, jump.stop)]))
    return found


def _compare(save: Save, before: Cursors, early: Iterable[Drawn], streams: set[str]) -> Iterator[dict[str, Any]]:
    cursors = Cursors(dict(before.drawn), dict(before.trained))
    for drawn in early:
        cursors.move(drawn)
    for stream, declared in sorted((save.positions or {}).items()):
        key = (stream, declared["epoch"])
        reached = cursors.drawn.get(key, 0)
        if stream in streams and declared["position"] not in (reached, cursors.trained.get(key, 0)):
            yield {"save": save, "stream": stream, "expected": reached, "found": declared["position"]}


def resume_mismatches(books: Books) -> Iterator[dict[str, Any]]:
    """Attempts on the trajectory whose first range does not start where the checkpoint's declared position is."""
    passed: dict[int, list[passing.Passed]] = {}
    for jump in passing.passes_of(books.connection, books.run.id, [segment.attempt for segment in books.path]):
        passed.setdefault(jump.attempt, []).append(jump)
    for segment in books.path:
        node = books.tree.nodes[segment.attempt]
        if node.save is None or not node.save.positions:
            continue
        rows = passing.first_groups(books.connection, books.run.id, segment.attempt)
        moved = passed.get(segment.attempt, [])
        for stream, declared in sorted(node.save.positions.items()):
            found = _first_start(rows, stream)
            if found is None or found[0] < declared["epoch"]:
                continue
            expected = 0 if found[0] > declared["epoch"] else declared["position"]
            for item in sorted(moved, key=lambda one: (one.number, one.start)):
                # A pass that begins further on came after what was drawn at the expected position.
                if (item.stream, item.epoch) == (stream, found[0]) and item.number <= found[2] and item.start <= expected < item.stop:
                    expected = item.stop
            if found[1] != expected:
                yield {"attempt": segment.attempt, "update": found[2], "stream": stream, "expected": expected, "found": found[1]}


def _first_start(rows: Iterable[Row[Any]], stream: str) -> tuple[int, int, int] | None:
    """The first epoch and position that an attempt drew from a stream, and the update that did: None while it is not certain.

    All that bears the number counts, in whatever order its tries and discards were drawn.
    """
    first: tuple[int, int, int] | None = None
    for row in rows:
        if first is not None and row.number > first[2]:
            break
        if row.outcome == "held" and row.shards_reported < row.shards_expected:
            return None
        for name, epoch, start, _ in history.unpack(row.ranges) or ():
            if name == stream and (first is None or (epoch, start) < first[:2]):
                first = (epoch, start, row.number)
    return first
