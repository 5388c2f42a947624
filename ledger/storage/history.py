"""A run's projections, read back as values of the domain."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from ledger.domain.coverage import Drawn
from ledger.domain.errors import RunUnknown
from ledger.domain.exposure import ATTEMPTED_OUTCOMES, Early, Total
from ledger.domain.intervals import Intervals
from ledger.domain.quantities import QUANTITIES
from ledger.domain.trajectory import Save, Start, Tree, tree_of
from ledger.domain.updates import PART_OUTSIDE
from ledger.storage import registry
from ledger.storage.registry import Launch, Run
from ledger.storage.tables import attempt_states, drawn, early, saves, totals, updates

PAGE = 1024
"""Update numbers of an attempt that are summed together; a checkpoint cuts a page where it lies."""

PLAIN_LIMIT = 1024
KEYS_TOGETHER = 500
CLOSING = b"["


def pack(value: Any) -> bytes:
    """A structured value as bytes: plain JSON while it is short, compressed where it is long."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return text if len(text) <= PLAIN_LIMIT else zstandard.ZstdCompressor(level=3).compress(text)


def unpack(content: bytes | None) -> Any:
    """The value that was packed."""
    if content is None:
        return None
    return json.loads(content if content[:1] == CLOSING else zstandard.ZstdDecompressor().decompress(content))


def pack_ranges(start: NDArray[np.int64], stop: NDArray[np.int64]) -> bytes:
    """Sorted ranges as differences: a run of single sample ids takes about a byte each."""
    order = np.lexsort((stop, start))
    steps = np.diff(start[order], prepend=0)
    return zstandard.ZstdCompressor(level=3).compress(np.concatenate((steps, (stop - start)[order])).astype("<i8").tobytes())


def unpack_ranges(content: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranges that were packed: (starts, stops)."""
    values = np.frombuffer(zstandard.ZstdDecompressor().decompress(content), dtype="<i8").astype(np.int64)
    half = len(values) // 2
    start = np.cumsum(values[:half])
    return start, start + values[half:]


@dataclass(frozen=True, slots=True)
class AttemptState:
    """What a projection keeps of an attempt: the numbers it attempted, which of them were tried before, and where it is cut."""

    numbers: Intervals
    recomputed: Intervals
    cuts: tuple[int, ...]


def states(connection: Connection, run_id: int) -> dict[int, AttemptState]:
    """The kept state of each attempt."""
    return states_of_runs(connection, [run_id])[run_id]


def states_of_runs(connection: Connection, run_ids: Iterable[int]) -> dict[int, dict[int, AttemptState]]:
    """The kept state of each attempt of many runs."""
    found: dict[int, dict[int, AttemptState]] = {run_id: {} for run_id in run_ids}
    for row in connection.execute(select(attempt_states).where(attempt_states.c.run_id.in_(sorted(found)))):
        numbers, recomputed = Intervals.of(json.loads(row.numbers)), Intervals.of(json.loads(row.recomputed))
        found[row.run_id][row.attempt] = AttemptState(numbers, recomputed, tuple(json.loads(row.cuts)))
    return found


def _save(row: Row[Any]) -> Save:
    return Save(
        row.attempt,
        row.checkpoint,
        row.update,
        row.accepted,
        row.rejected,
        tuple(Start(*item) for item in json.loads(row.starts)),
        None if row.positions is None else json.loads(row.positions),
        row.uri,
        row.seconds,
    )


def saves_of(connection: Connection, run_id: int) -> list[Save]:
    """Every save that events speak of."""
    return saves_of_runs(connection, [run_id])[run_id]


def saves_of_runs(connection: Connection, run_ids: Iterable[int]) -> dict[int, list[Save]]:
    """Every save that events of many runs speak of."""
    found: dict[int, list[Save]] = {run_id: [] for run_id in run_ids}
    query = select(saves).where(saves.c.run_id.in_(sorted(found))).order_by(saves.c.attempt, saves.c.update, saves.c.checkpoint)
    for row in connection.execute(query):
        found[row.run_id].append(_save(row))
    return found


def fork_save(connection: Connection, run: Run, below: frozenset[int] = frozenset()) -> Save | None:
    """The other run's checkpoint that this run was forked from, as far as the ledger knows it."""
    found = fork_source(connection, run, below)
    return None if found is None else found[1]


def fork_source(connection: Connection, run: Run, below: frozenset[int] = frozenset()) -> tuple[Run, Save] | None:
    """The run that this one was forked from, and the save; a run that was forked from itself, over others perhaps, has no source.

    `below` are the runs that ask: those that were forked from this one.
    """
    source = run.forked_from
    if source is None:
        return None
    try:
        other = registry.find_run(connection, source["project"], source["run"])
    except RunUnknown:
        return None
    names = {launch.attempt.name: launch.attempt.ordinal for launch in registry.launches(connection, other.id)}
    if other.id == run.id or other.id in below:
        return None
    above = tree(connection, other, below | {run.id})
    found = [save for save in above.saves if save.checkpoint == source["checkpoint"]]
    if source.get("attempt") is not None:
        found = [save for save in found if save.attempt == names.get(source["attempt"])]
    place = {ordinal: index for index, ordinal in enumerate(above.order)}
    newest = max(found, key=lambda save: (place[save.attempt], save.update), default=None)
    return None if newest is None else (other, newest)


def tree(connection: Connection, run: Run, below: frozenset[int] = frozenset()) -> Tree:
    """The run's attempts and how they follow each other."""
    launches = registry.launches(connection, run.id)
    return tree_from(connection, run, launches, states(connection, run.id), saves_of(connection, run.id), below)


def tree_from(
    connection: Connection,
    run: Run,
    launches: Iterable[Launch],
    kept: Mapping[int, AttemptState],
    found: Iterable[Save],
    below: frozenset[int] = frozenset(),
) -> Tree:
    """The same, where all but what the run was forked from has been read already."""
    attempts = [
        replace(launch.attempt, numbers=kept[launch.attempt.ordinal].numbers) if launch.attempt.ordinal in kept else launch.attempt
        for launch in launches
    ]
    return tree_of(attempts, found, fork_save(connection, run, below), run.forked_from is not None)


def quantities_of(row: Any) -> tuple[dict[str, int], dict[str, int]]:
    """The known sums and the unknown counts of a row that has quantities."""
    return (
        {name: getattr(row, f"known_{name}") for name in QUANTITIES},
        {name: getattr(row, f"unknown_{name}") for name in QUANTITIES},
    )


def totals_of(connection: Connection, run_id: int) -> list[Total]:
    """The totals of all intervals of a run; as many as there are pages and checkpoints."""
    return totals_of_runs(connection, [run_id])[run_id]


def totals_of_runs(connection: Connection, run_ids: Iterable[int]) -> dict[int, list[Total]]:
    """The totals of all intervals of many runs."""
    found: dict[int, list[Total]] = {run_id: [] for run_id in run_ids}
    query = select(totals).where(totals.c.run_id.in_(sorted(found))).order_by(totals.c.attempt, totals.c.first)
    for row in connection.execute(query):
        place = (row.attempt, row.first, row.outcome, row.reason or None, row.recomputed, row.updates, row.attempts)
        found[row.run_id].append(Total(*place, *quantities_of(row), row.seconds, json.loads(row.extras)))
    return found


def is_attempt(outcome: str, part: int) -> bool:
    """Whether a group of rows is an attempted update."""
    return outcome in ATTEMPTED_OUTCOMES and part != PART_OUTSIDE


def total_of_row(row: Any, recomputed: bool) -> Total:
    """A single group as a total."""
    known, unknown = quantities_of(row)
    unknown = {name: min(count, 1) for name, count in unknown.items()}
    attempts = int(is_attempt(row.outcome, row.part))
    return Total(row.attempt, row.number, row.outcome, row.reason, recomputed, 1, attempts, known, unknown, row.seconds or 0.0)


GroupKey = tuple[int, int, int, int]
"""(attempt, number, part, retry)"""


SaveKey = tuple[int, str, int]
"""(attempt, checkpoint, update)"""


def early_keys(connection: Connection, run_id: int, saves_asked: Iterable[Save | None]) -> dict[GroupKey, frozenset[SaveKey]]:
    """The groups that lie before one of those saves though their number is higher, with those saves."""
    c = early.c
    found: dict[GroupKey, set[SaveKey]] = {}
    asked = {save.key for save in saves_asked if save is not None}
    owners = sorted({attempt for attempt, _, _ in asked})
    for row in connection.execute(select(early).where(c.run_id == run_id, c.attempt.in_(owners))):
        key = (row.attempt, row.checkpoint, row.update)
        if key in asked:
            found.setdefault((row.attempt, row.number, row.part, row.retry), set()).add(key)
    return {key: frozenset(named) for key, named in found.items()}


def rows_of_keys(connection: Connection, run_id: int, keys: Sequence[GroupKey]) -> list[Row[Any]]:
    """The rows of those groups."""
    c = updates.c
    rows: list[Row[Any]] = []
    wanted: dict[int, dict[int, set[tuple[int, int]]]] = {}
    for attempt, number, part, retry in keys:
        wanted.setdefault(attempt, {}).setdefault(number, set()).add((part, retry))
    # An attempt and its numbers are looked up by the key; whole keys in a list are not, on SQLite.
    for attempt, tries in wanted.items():
        numbers = sorted(tries)
        for begin in range(0, len(numbers), KEYS_TOGETHER):
            place = (c.run_id == run_id, c.attempt == attempt, c.number.in_(numbers[begin : begin + KEYS_TOGETHER]))
            found = connection.execute(select(updates).where(*place).order_by(c.number, c.part, c.retry))
            rows += [row for row in found if (row.part, row.retry) in tries[row.number]]
    return rows


def early_groups(
    connection: Connection, run_id: int, early_of: Mapping[GroupKey, frozenset[SaveKey]], recomputed: Mapping[int, Intervals]
) -> list[Early]:
    """The early groups as totals, a pair for each save."""
    result = []
    for row in rows_of_keys(connection, run_id, sorted(early_of)):
        total = total_of_row(row, recomputed.get(row.attempt, Intervals()).holds(row.number))
        result += [Early(save, total) for save in early_of[row.attempt, row.number, row.part, row.retry]]
    return result


@dataclass(frozen=True, slots=True)
class DrawnInterval:
    """The ranges that an attempt drew between two cuts, in one stream and epoch, with one effect."""

    attempt: int
    first: int
    drawn: Drawn


def drawn_of(connection: Connection, run_id: int, attempts: Iterable[int]) -> list[DrawnInterval]:
    """What the attempts drew, an interval at a time."""
    query = select(drawn).where(drawn.c.run_id == run_id, drawn.c.attempt.in_(sorted(set(attempts))))
    return [
        DrawnInterval(row.attempt, row.first, Drawn(row.stream, row.epoch, row.effect, *unpack_ranges(row.ranges)))
        for row in connection.execute(query.order_by(drawn.c.attempt, drawn.c.first))
    ]
