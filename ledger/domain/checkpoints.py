"""From rows about checkpoints to saves: a save is (attempt, name, update), and a rejection wins over every acceptance of it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.domain.trajectory import Save, Start


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One event about a checkpoint: its place in its writer's sequence and what it says. `owner` is the attempt that saved it."""

    attempt: int
    rank: int
    writer: str
    seq: int
    owner: str
    checkpoint: str
    state: str
    update: int | None
    uri: str | None
    positions: Mapping[str, Any] | None
    seconds: float | None


def _says_update(row: CheckpointRow, ordinal: int) -> bool:
    return row.attempt == ordinal and row.update is not None


def _update_of(row: CheckpointRow, own: Sequence[CheckpointRow], updates: Sequence[int]) -> int | None:
    """The update of the save that the row means; None while that cannot be told.

    A row without one belongs to the nearest earlier row in its own sequence that began a save of the name, never to a later one; a
    row of another attempt, or of a sequence that began none, to the name's newest save.
    """
    if row.update is not None:
        return row.update
    mine = [item for item in own if (item.attempt, item.rank, item.writer) == (row.attempt, row.rank, row.writer)]
    if not mine:
        return max(updates, default=None)
    nearest = max((item for item in mine if item.seq < row.seq), key=lambda item: item.seq, default=None)
    return None if nearest is None else nearest.update


def saves_of_owner(ordinal: int, rows: Iterable[CheckpointRow]) -> list[Save]:
    """The saves of one attempt, from all rows that speak of its checkpoints.

    Law: the order of the rows does not matter.
    """
    names: dict[str, list[CheckpointRow]] = {}
    for row in rows:
        names.setdefault(row.checkpoint, []).append(row)
    found: list[Save] = []
    for name, about in sorted(names.items()):
        started = [row for row in about if row.state == "started" and row.attempt == ordinal]
        begun = {row.update for row in started}
        # An acceptance that names its update and has no `started` row stands for both.
        started += [row for row in about if _says_update(row, ordinal) and row.state == "accepted" and row.update not in begun]
        updates = sorted({row.update for row in about if row.update is not None})
        groups: dict[int, list[CheckpointRow]] = {}
        for row in about:
            update = _update_of(row, started, updates)
            if update is not None:
                groups.setdefault(update, []).append(row)
        found += [_save(ordinal, name, update, group) for update, group in sorted(groups.items())]
    return found


def _save(ordinal: int, name: str, update: int, rows: list[CheckpointRow]) -> Save:
    rows = sorted(rows, key=lambda row: (row.attempt, row.rank, row.writer, row.seq))
    began = [row for row in rows if row.state == "started" and row.attempt == ordinal]
    if not began:
        began = [row for row in rows if row.state == "accepted" and _says_update(row, ordinal)]
    latest: dict[tuple[int, str], int] = {}
    for row in began:
        latest[row.rank, row.writer] = max(row.seq, latest.get((row.rank, row.writer), 0))
    timed = [row.seconds for row in rows if row.seconds is not None and math.isfinite(row.seconds)]
    return Save(
        ordinal,
        name,
        update,
        accepted=any(row.state == "accepted" for row in rows),
        rejected=any(row.state == "rejected" for row in rows),
        starts=tuple(Start(rank, writer, seq) for (rank, writer), seq in sorted(latest.items())),
        positions=next((row.positions for row in rows if row.positions is not None), None),
        uri=next((row.uri for row in rows if row.uri is not None), None),
        seconds=max(timed, default=None),
    )
