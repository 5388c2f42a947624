"""Keeping projections caught up: each is folded again from the journal where new entries touch it.

A group of rows is folded from all of its rows at once, never added to, so no order of arrival can leave a trace. What is folded is
worked out from one moment of the database without holding a lock, then written in one transaction that first makes sure that nobody
else has written since.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import structlog

from ledger.domain.checkpoints import CheckpointRow, saves_of_owner
from ledger.domain.columns import Events
from ledger.domain.intervals import Intervals
from ledger.domain.trajectory import Save, Tree, recomputed_numbers, tree_of
from ledger.domain.updates import NON_ADVANCING, OUTCOME_NAMES, PART_DISCARD, PART_OUTSIDE, PART_UPDATE, Resolution
from ledger.services import folding
from ledger.storage import history, journal, projections, registry
from ledger.storage.history import PAGE, AttemptState
from ledger.storage.journal import Block
from ledger.storage.registry import Run
from ledger.storage.store import Connection, Store

FOLDED_ROWS = 32_768
"""Rows that are folded at once: it bounds memory."""

NEAR = 64
"""Update numbers that lie closer than this are folded together."""

log = structlog.get_logger("ledger.projection")


@dataclass(slots=True)
class Plan:
    """What will be written: worked out from one moment of the database."""

    run: Run
    base: int
    target: int
    groups: list[tuple[int, list[tuple[int, int]], tuple[int, ...], dict[str, list[dict[str, Any]]]]] = field(default_factory=list)
    evaluations: list[tuple[int, list[tuple[int, int]], list[dict[str, Any]]]] = field(default_factory=list)
    plain: list[tuple[int, Events]] = field(default_factory=list)
    checkpoint_rows: list[CheckpointRow] = field(default_factory=list)
    saves: dict[int, list[Save]] = field(default_factory=dict)
    states: dict[int, AttemptState] = field(default_factory=dict)
    changed_states: set[int] = field(default_factory=set)
    pages: set[tuple[int, int]] = field(default_factory=set)


class _Planner:
    """Works out a plan; lives for one catch-up of one run."""

    def __init__(self, connection: Connection, run: Run, base: int) -> None:
        self.connection, self.run = connection, run
        self.plan = Plan(run, base, run.entries)
        self.launches = {launch.attempt.ordinal: launch for launch in registry.launches(connection, run.id)}
        self.kept = history.states(connection, run.id)
        self.saves = history.saves_of(connection, run.id)
        self.dirty: dict[tuple[int, str], Intervals] = {}
        blocks = journal.blocks_between(connection, run.id, base, run.entries)
        self.blocks: dict[tuple[int, str], list[Block]] = {}
        for block in blocks:
            self.blocks.setdefault((block.attempt, block.kind), []).append(block)

    def touch(self, attempt: int, kind: str, numbers: Intervals) -> None:
        """Marks update numbers of an attempt as changed."""
        self.dirty[attempt, kind] = self.dirty.get((attempt, kind), Intervals()).union(numbers)

    def make(self) -> Plan:
        """The whole plan."""
        self._read_new()
        self._checkpoints()
        for (attempt, kind), numbers in sorted(self.dirty.items()):
            if kind == "evaluations":
                self._fold_evaluations(attempt, numbers)
            else:
                self._fold(attempt, kind, numbers)
        self._states()
        return self.plan

    def _read_new(self) -> None:
        for (attempt, kind), blocks in self.blocks.items():
            if kind == "resolution":
                numbers = [(item.number, item.number + 1) for item in self._resolutions(attempt, self.plan.base)]
                self.touch(attempt, "updates", Intervals.of(numbers))
            if kind in journal.DECLARATIONS:
                continue
            for begin in range(0, len(blocks), journal.FETCHED_TOGETHER):
                events = journal.events_of(self.connection, self.run.id, blocks[begin : begin + journal.FETCHED_TOGETHER])
                if events is None:
                    continue
                if kind in projections.PLAIN_KINDS:
                    self.plan.plain.append((attempt, events))
                elif kind == "checkpoints":
                    self.plan.checkpoint_rows += self._checkpoint_rows(attempt, events)
                else:
                    self.touch(attempt, kind, Intervals.of_numbers(events.counts("update")))

    def _resolutions(self, attempt: int, after: int = 0) -> list[Resolution]:
        return [
            Resolution(body["update"], body["retry"], body["rank"], body["outcome"])
            for body in journal.declarations(self.connection, self.run.id, attempt, "resolution", after, self.plan.target)
        ]

    def _checkpoint_rows(self, attempt: int, events: Events) -> Iterable[CheckpointRow]:
        own = self.launches[attempt].attempt.name
        for row in events.rows():
            yield CheckpointRow(
                attempt,
                row["rank"],
                row["writer"],
                row["seq"],
                row.get("attempt", own),
                row["checkpoint"],
                row["state"],
                row.get("update"),
                row.get("uri"),
                row.get("positions"),
                row.get("seconds"),
            )

    def _checkpoints(self) -> None:
        """Makes the saves again of each attempt that new rows speak of, or that was only now opened."""
        new = self.plan.checkpoint_rows
        opened = {self.launches[attempt].attempt.name for attempt, kind in self.blocks if kind == "attempt"}
        owners = {row.owner for row in new} | opened
        known = projections.checkpoint_rows_of(self.connection, self.run.id, owners) + new
        by_name = {launch.attempt.name: ordinal for ordinal, launch in self.launches.items()}
        for owner in owners & by_name.keys():
            ordinal = by_name[owner]
            found = saves_of_owner(ordinal, [row for row in known if row.owner == owner])
            if found != [save for save in self.saves if save.attempt == ordinal]:
                self.plan.saves[ordinal] = found
                self.saves = [save for save in self.saves if save.attempt != ordinal] + found
        for row in new:
            if row.state in ("started", "accepted") and row.update is not None:
                self._touch_early(row.attempt, row.update)

    def _touch_early(self, attempt: int, number: int) -> None:
        """A save may cover work of a higher number that came before it: such groups are folded again."""
        outcomes = [OUTCOME_NAMES[code] for code in NON_ADVANCING]
        beyond = projections.numbers_beyond(self.connection, self.run.id, attempt, number, outcomes)
        if beyond:
            self.touch(attempt, "updates", beyond)
            self.touch(attempt, "discards", beyond)

    def _windows(self, attempt: int, numbers: Intervals) -> list[tuple[int, int]]:
        """The numbers in windows of a bounded number of rows."""
        step = max(1, FOLDED_ROWS // self.launches[attempt].world_size)
        near: list[list[int]] = []
        for start, stop in numbers:
            if near and start - near[-1][1] <= NEAR:
                near[-1][1] = stop
            else:
                near.append([start, stop])
        return [(begin, min(begin + step, stop)) for start, stop in near for begin in range(start, stop, step)]

    def _fold(self, attempt: int, kind: str, numbers: Intervals) -> None:
        launch = self.launches[attempt]
        windows = self._windows(attempt, numbers)
        saves = [save for save in self.saves if save.attempt == attempt]
        resolutions = self._resolutions(attempt) if kind == "updates" else []
        rows: dict[str, list[dict[str, Any]]] = {"updates": [], "findings": [], "early": []}
        for start, stop in windows:
            found = journal.events_of_updates(self.connection, self.run.id, attempt, kind, start, stop, self.plan.target)
            if found is None:
                continue
            chosen = [item for item in resolutions if start <= item.number < stop]
            groups = folding.fold(kind, found[0], launch.shards(), chosen)
            folding.add_rows(rows, groups, self.run.id, launch, saves, found[1])
        parts = (PART_DISCARD,) if kind == "discards" else (PART_UPDATE, PART_OUTSIDE)
        self.plan.groups.append((attempt, windows, parts, rows))
        self.plan.pages |= {(attempt, page) for start, stop in windows for page in range(start // PAGE, (stop - 1) // PAGE + 1)}
        if kind == "updates":
            self._keep_numbers(attempt, windows, rows["updates"])

    def _keep_numbers(self, attempt: int, windows: Sequence[tuple[int, int]], rows: Sequence[dict[str, Any]]) -> None:
        tried = [row["number"] for row in rows if history.is_attempt(row["outcome"], row["part"])]
        state = self._state(attempt)
        numbers = state.numbers.minus(Intervals.of(windows)).union(Intervals.of_numbers(np.array(tried, dtype=np.int64)))
        self.plan.states[attempt] = replace(state, numbers=numbers)

    def _state(self, attempt: int) -> AttemptState:
        return self.plan.states.get(attempt) or self.kept.get(attempt) or AttemptState(Intervals(), Intervals(), ())

    def _fold_evaluations(self, attempt: int, numbers: Intervals) -> None:
        windows = self._windows(attempt, numbers)
        rows: list[dict[str, Any]] = []
        for start, stop in windows:
            found = journal.events_of_updates(self.connection, self.run.id, attempt, "evaluations", start, stop, self.plan.target)
            if found is not None:
                rows += folding.evaluation_rows(found[0], self.launches[attempt].shards(), self.run.id, attempt)
        self.plan.evaluations.append((attempt, windows, rows))

    def _tree(self) -> Tree:
        attempts = [
            replace(launch.attempt, numbers=self._state(ordinal).numbers) for ordinal, launch in sorted(self.launches.items())
        ]
        return tree_of(attempts, self.saves, history.fork_save(self.connection, self.run), self.run.forked_from is not None)

    def _cuts(self) -> dict[int, tuple[int, ...]]:
        """Where each attempt's totals are cut: at its saves, and at every update that a resume declared."""
        declared = {
            resume.update
            for launch in self.launches.values()
            for resume in (*launch.attempt.declared, *launch.attempt.resolved)
            if resume is not None and resume.update is not None
        }
        cuts: dict[int, set[int]] = {ordinal: set(declared) for ordinal in self.launches}
        for save in self.saves:
            cuts[save.attempt].add(save.update)
        return {ordinal: tuple(sorted(points)) for ordinal, points in cuts.items()}

    def _states(self) -> None:
        """Finds what new cuts, and numbers that older attempts tried before, change in pages that hold no new events."""
        tree, cuts = self._tree(), self._cuts()
        again = recomputed_numbers(tree.order, {ordinal: node.attempt for ordinal, node in tree.nodes.items()})
        for ordinal in self.launches:
            before, state = self.kept.get(ordinal), self._state(ordinal)
            recomputed = folding.common(again[ordinal], state.numbers)
            state = replace(state, recomputed=recomputed, cuts=cuts[ordinal])
            self.plan.states[ordinal] = state
            if before == state:
                continue
            self.plan.changed_states.add(ordinal)
            before = before or AttemptState(Intervals(), Intervals(), ())
            differs = recomputed.minus(before.recomputed).union(before.recomputed.minus(recomputed))
            touched = [*differs, *((cut, cut + 1) for cut in set(state.cuts) ^ set(before.cuts))]
            reach = Intervals.of((0, last + 1) for last in [self._last(ordinal, state)])
            for start, stop in folding.common(Intervals.of(touched), reach):
                self.plan.pages |= {(ordinal, page) for page in range(start // PAGE, (stop - 1) // PAGE + 1)}

    def _last(self, ordinal: int, state: AttemptState) -> int:
        """The highest number that an attempt may have groups of."""
        stops = [stop for attempt, windows, _, _ in self.plan.groups if attempt == ordinal for _, stop in windows]
        return max([state.numbers.last or 0, *stops, projections.last_number(self.connection, self.run.id, ordinal)])


def write(connection: Connection, plan: Plan) -> None:
    """Writes a plan."""
    run_id = plan.run.id
    for attempt, windows, parts, rows in plan.groups:
        projections.replace_groups(connection, run_id, attempt, windows, parts, rows)
    for attempt, windows, evaluated in plan.evaluations:
        projections.replace_evaluations(connection, run_id, attempt, windows, evaluated)
    for attempt, events in plan.plain:
        projections.add_plain(connection, run_id, attempt, events)
    projections.add_checkpoint_rows(connection, run_id, plan.checkpoint_rows)
    for attempt, found in plan.saves.items():
        projections.replace_saves(connection, run_id, attempt, found)
    projections.keep_states(connection, run_id, {ordinal: plan.states[ordinal] for ordinal in plan.changed_states})
    for attempt, page in sorted(plan.pages):
        projections.replace_page(connection, run_id, attempt, page, plan.states[attempt])
    projections.reflect(connection, run_id, plan.target)


def catch_up(store: Store, project: str, name: str) -> int:
    """Brings a run's projections to the last entry that is committed, and gives its offset; one caller a run and process works.

    Raises: RunUnknown.
    """
    with store.turn(project, name):
        while True:
            with store.read() as connection:
                run = registry.find_run(connection, project, name)
                base = projections.reflected(connection, run.id)
                if base >= run.entries:
                    return base
                plan = _Planner(connection, run, base).make()
            with store.write() as connection:
                if projections.reflected(connection, run.id, lock=True) == base:
                    write(connection, plan)
                    return plan.target


def rebuild(store: Store, project: str, name: str) -> int:
    """Makes a run's projections again from the journal alone, and gives the offset they reflect."""
    with store.write() as connection:
        projections.clear(connection, registry.find_run(connection, project, name).id)
    return catch_up(store, project, name)


class Projector:
    """The thread that keeps all runs caught up, so that a reader seldom has to wait; lives as long as the service."""

    def __init__(self, store: Store, clock: Callable[[], datetime], interval_seconds: float) -> None:
        self.store, self.clock, self.interval_seconds = store, clock, interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-projection", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is doing."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self.interval_seconds):
            try:
                with self.store.read() as connection:
                    waiting = projections.behind(connection, limit=100)
                for project, name in waiting:
                    if not self._stopping.is_set():
                        catch_up(self.store, project, name)
            except Exception:
                # A database or a schema that is away comes back; a thread that ended would leave every later event unprojected.
                log.exception("projection behind")

