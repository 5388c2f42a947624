"""From rows about checkpoints to saves: (attempt, name, update), and what became of each."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ledger.services.recounting.groups import Group

Row = dict[str, Any]
SaveKey = tuple[int, str, int]


@dataclass(slots=True, eq=False)
class Save:
    """A saved state. `starts` is the place of its `started` row in each sequence that has one."""

    attempt: int
    name: str
    update: int
    accepted: bool = False
    rejected: bool = False
    starts: dict[tuple[int, str], int] = field(default_factory=dict)
    positions: dict[str, Any] | None = None
    uri: str | None = None
    seconds: float | None = None
    was_resumed: bool = False
    is_declared: bool = False
    """Whether only a resume speaks of it."""

    @property
    def key(self) -> SaveKey:
        """What makes it this save and no other."""
        return self.attempt, self.name, self.update

    @property
    def stands(self) -> bool:
        """Whether it is accepted: a rejection wins over every acceptance."""
        return (self.accepted or self.was_resumed or self.is_declared) and not self.rejected

    @property
    def newness(self) -> tuple[int, int, str]:
        """How late it is among the saves of its attempt."""
        return self.update, max(self.starts.values(), default=0), self.name

    def covers(self, group: Group) -> bool:
        """Whether it contains a group of its attempt: by number, or because the group lies before its start in a sequence."""
        if group.number <= self.update:
            return True
        return any(seq < self.starts.get((rank, writer), 0) for rank, writer, seq in group.marks)

    def covers_pass(self, row: Row) -> bool:
        """Whether it contains a pass of its attempt."""
        return bool(row["update"] <= self.update or row["seq"] < self.starts.get((row["rank"], row["writer"]), 0))


def saves_of(saved: Iterable[tuple[int, Row]], ordinals: dict[str, int]) -> list[Save]:
    """Every save that rows speak of, of attempts that were opened."""
    about: dict[tuple[int, str], list[tuple[int, Row]]] = {}
    for attempt, row in saved:
        owner = ordinals.get(row["attempt"]) if row.get("attempt") is not None else attempt
        if owner is not None:
            about.setdefault((owner, row["checkpoint"]), []).append((attempt, row))
    result: list[Save] = []
    for (owner, name), rows in about.items():
        rows.sort(key=lambda item: (item[0], item[1]["rank"], item[1]["writer"], item[1]["seq"]))
        result += [_save(owner, name, update, own) for update, own in _by_update(owner, rows).items()]
    return result


def _by_update(owner: int, rows: list[tuple[int, Row]]) -> dict[int, list[tuple[int, Row]]]:
    """The rows about one name by the save that each belongs to; a row that belongs to none yet is in none."""
    begun = [row for attempt, row in rows if row["state"] == "started" and attempt == owner]
    numbers = {row["update"] for row in begun}
    accepted = [row for attempt, row in rows if row["state"] == "accepted" and attempt == owner and row.get("update") is not None]
    begun += [row for row in accepted if row["update"] not in numbers]
    newest = max((row["update"] for _, row in rows if row.get("update") is not None), default=None)
    result: dict[int, list[tuple[int, Row]]] = {}
    for attempt, row in rows:
        update = row.get("update")
        if update is None:
            own = [other for other in begun if attempt == owner and (other["rank"], other["writer"]) == (row["rank"], row["writer"])]
            earlier = [other for other in own if other["seq"] < row["seq"]]
            # What was begun later cannot be meant; only a sequence that began none speaks of the newest.
            update = max(earlier, key=lambda other: other["seq"])["update"] if earlier else None if own else newest
        if update is not None:
            result.setdefault(update, []).append((attempt, row))
    return result


def _save(owner: int, name: str, update: int, rows: list[tuple[int, Row]]) -> Save:
    save = Save(owner, name, update)
    for _, row in rows:
        save.accepted |= row["state"] == "accepted"
        save.rejected |= row["state"] == "rejected"
        save.positions = row.get("positions") if save.positions is None else save.positions
        save.uri = row.get("uri") if save.uri is None else save.uri
        seconds = row.get("seconds")
        if seconds is not None and math.isfinite(seconds):
            save.seconds = seconds if save.seconds is None else max(save.seconds, seconds)
    own = [row for attempt, row in rows if attempt == owner]
    # An acceptance that says its update and was never started stands for both.
    starting = [row for row in own if row["state"] == "started"] or [
        row for row in own if row["state"] == "accepted" and row.get("update") is not None
    ]
    for row in starting:
        key = (row["rank"], row["writer"])
        save.starts[key] = max(row["seq"], save.starts.get(key, 0))
    return save
