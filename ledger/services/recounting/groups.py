"""From what ranks posted to groups: replicas once, shards added, contradictions held.

| rows of a group | outcome |
|---|---|
| no rank says an outcome | open |
| a shard lacks, replicas differ, or outcomes differ | held |
| all agree | what they say |
| of shards beside the named participants | abandoned, a group of its own that is no attempt |
| discards | discarded |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.domain.quantities import QUANTITIES
from ledger.services.recounting.placing import Placement

Row = dict[str, Any]
Resolutions = Mapping[tuple[int, int, int], Sequence[Row]]
"""An operator's words, oldest first, by attempt, update and try."""
Range = tuple[str, int, int, int]
Mark = tuple[int, str, int]
"""(rank, writer, seq)"""

UPDATES, OUTSIDE, DISCARDS, EVALUATIONS = "updates", "outside", "discards", "evaluations"
ADVANCING = ("applied", "held")
OUTCOMES_GRAVEST_LAST = ("applied", "skipped", "abandoned")


@dataclass(slots=True)
class Group:
    """All rows of one kind, number and try of an attempt, and what they say together.

    `counts` and `lacking` follow the order of the quantities: what is known, and how many shards (data-parallel ranks for samples) do
    not say it. `marks` is the lowest place of the group in each sequence; kept only where it matters, of work that advanced no number.
    """

    kind: str
    attempt: int
    number: int
    retry: int
    name: str
    outcome: str
    reason: str | None
    expected: int
    reported: int
    counts: list[int]
    lacking: list[int]
    ranges: list[Range]
    marks: tuple[Mark, ...] = ()

    @property
    def is_attempt(self) -> bool:
        """Whether it is an attempted update."""
        return self.kind == UPDATES and self.outcome != "open"

    @property
    def is_incomplete(self) -> bool:
        """Whether it waits for a shard."""
        return self.is_attempt and self.reported < self.expected


def groups_of(attempt: int, kind: str, rows: Iterable[Row], place: Placement, resolutions: Resolutions) -> Iterator[Group]:
    """The groups that rows of one kind of an attempt make."""
    gathered: dict[tuple[int, int, str], list[Row]] = {}
    for row in rows:
        name = row.get("name") or "" if kind == EVALUATIONS else ""
        gathered.setdefault((row["update"], row.get("retry") or 0, name), []).append(row)
    for (number, retry, name), own in gathered.items():
        if kind != UPDATES:
            yield _undecided_group(kind, attempt, number, retry, name, own, place)
            continue
        chosen = resolutions.get((attempt, number, retry), ())
        yield from _updates(attempt, number, retry, _settled(own, place, chosen), place)


def _settled(rows: list[Row], place: Placement, resolutions: Sequence[Row]) -> list[Row]:
    """The rows once an operator's words are heard: an outcome is said outright, or by a rank that also speaks for its shard.

    What the chosen rank cannot know, its replicas may still tell. Of ranks that took no part nothing is settled.
    """
    named = {shard for row in rows for shard in row.get("participants") or ()}

    def stands(row: Row) -> bool:
        return row.get("outcome") != "open" and (not named or place.shard_of[row["rank"]] in named)

    for item in resolutions:
        closing = [row for row in rows if stands(row)]
        outcome = item["outcome"]
        if item["rank"] is not None:
            mine = [row for row in closing if row["rank"] == item["rank"]]
            if not mine:
                continue
            shard = place.shard_of[item["rank"]]
            others = {id(row) for row in closing if place.shard_of[row["rank"]] == shard and row["rank"] != item["rank"]}
            silenced = dict.fromkeys(_said_by(mine))
            rows = [{**row, **silenced} if id(row) in others else row for row in rows]
            said = [row["outcome"] for row in mine if row.get("outcome") is not None]
            outcome = max(said, key=OUTCOMES_GRAVEST_LAST.index) if said else None
        if outcome is not None:
            rows = [{**row, "outcome": outcome} if stands(row) else row for row in rows]
    return rows


def _said_by(rows: list[Row]) -> list[str]:
    """What rows know; samples and ranges are one matter."""
    said = [quantity for quantity in QUANTITIES[:3] if _known(rows, quantity)]
    return [*said, "samples", "ranges"] if any(samples_of(row) is not None for row in rows) else said


def _updates(attempt: int, number: int, retry: int, rows: list[Row], place: Placement) -> Iterator[Group]:
    """The update that the rows make, and beside it the work of shards that were not to take part."""
    named = [row["participants"] for row in rows if row.get("participants") is not None]
    if not named:
        yield _update(attempt, number, retry, rows, place, set(place.owner_of))
        return
    participants = {shard for shards in named for shard in shards if shard in place.owner_of}
    inside = [row for row in rows if place.shard_of[row["rank"]] in participants]
    outside = [row for row in rows if place.shard_of[row["rank"]] not in participants]
    if inside:
        yield _update(attempt, number, retry, inside, place, participants)
    if outside:
        shards = _standing(outside, place)
        group = _counted(OUTSIDE, attempt, number, retry, "", shards, place, set(shards))
        group.outcome, group.marks = "abandoned", _marks(shards)
        yield group


def _standing(rows: list[Row], place: Placement) -> dict[int, list[Row]]:
    """The rows that stand, by shard: those that close the group; failing any in a shard, each rank's newest open one."""
    by_shard: dict[int, list[Row]] = {}
    for row in rows:
        by_shard.setdefault(place.shard_of[row["rank"]], []).append(row)
    result: dict[int, list[Row]] = {}
    for shard, own in sorted(by_shard.items()):
        closing = [row for row in own if row.get("outcome") != "open"]
        if not closing:
            newest: dict[int, Row] = {}
            for row in own:
                other = newest.get(row["rank"])
                if other is None or (row["seq"], row["writer"]) > (other["seq"], other["writer"]):
                    newest[row["rank"]] = row
            closing = list(newest.values())
        result[shard] = sorted(closing, key=_place_of)
    return result


def _place_of(row: Row) -> tuple[int, str, int]:
    return row["rank"], row["writer"], row["seq"]


def _marks(shards: dict[int, list[Row]]) -> tuple[Mark, ...]:
    lowest: dict[tuple[int, str], int] = {}
    for rows in shards.values():
        for row in rows:
            key = (row["rank"], row["writer"])
            lowest[key] = min(row["seq"], lowest.get(key, row["seq"]))
    return tuple((rank, writer, seq) for (rank, writer), seq in lowest.items())


def _update(attempt: int, number: int, retry: int, rows: list[Row], place: Placement, expected: set[int]) -> Group:
    shards = _standing(rows, place)
    said = {row["outcome"] for own in shards.values() for row in own if row.get("outcome") not in (None, "open")}
    if not said:
        group = _counted(UPDATES, attempt, number, retry, "", shards, place, set(shards))
        group.expected = len(expected)
        group.outcome, group.marks = "open", _marks(shards)
        return group
    group = _counted(UPDATES, attempt, number, retry, "", shards, place, expected)
    if len(said) > 1 or group.reported < group.expected or _replicas_differ(shards, place):
        group.outcome = "held"
        return group
    (group.outcome,) = said
    if group.outcome == "skipped":
        group.reason = _reason(shards)
    if group.outcome not in ADVANCING:
        group.marks = _marks(shards)
    return group


def _undecided_group(kind: str, attempt: int, number: int, retry: int, name: str, rows: list[Row], place: Placement) -> Group:
    """Work that no optimizer decides on: whoever reports it took part in it."""
    shards: dict[int, list[Row]] = {}
    for row in sorted(rows, key=_place_of):
        shards.setdefault(place.shard_of[row["rank"]], []).append(row)
    group = _counted(kind, attempt, number, retry, name, shards, place, set(shards))
    group.outcome = "discarded" if kind == DISCARDS else "evaluated"
    if kind == DISCARDS:
        group.reason, group.marks = _reason(shards), _marks(shards)
    return group


def _reason(shards: dict[int, list[Row]]) -> str:
    """The reason that the lowest rank gives."""
    giving = [row for rows in shards.values() for row in rows if row.get("reason") is not None]
    return str(min(giving, key=_place_of)["reason"]) if giving else "other"


def _counted(
    kind: str, attempt: int, number: int, retry: int, name: str, shards: dict[int, list[Row]], place: Placement, expected: set[int]
) -> Group:
    """The counts of a group: the largest of each shard's replicas, added; samples and ranges once a data-parallel rank."""
    closed = sum(any(row.get("outcome") != "open" for row in rows) for rows in shards.values())
    group = Group(kind, attempt, number, retry, name, "", None, len(expected), closed, [], [], [])
    for quantity in QUANTITIES[:3]:
        stand = [max(values) for values in (_known(rows, quantity) for rows in shards.values()) if values]
        group.counts.append(sum(stand))
        group.lacking.append(len(expected) - len(stand))
    owners = _by_owner(shards, place)
    stand = [max(values) for values in ([n for n in map(samples_of, rows) if n is not None] for rows in owners.values()) if values]
    group.counts.append(sum(stand))
    group.lacking.append(len({place.owner_of[shard] for shard in expected}) - len(stand))
    for rows in owners.values():
        drawing = [row for row in rows if row.get("ranges") is not None]
        if drawing:
            # The first of the longest: rows are in the order of shards and ranks.
            group.ranges += [_range(item) for item in max(drawing, key=_positions)["ranges"]]
    return group


def _known(rows: Iterable[Row], quantity: str) -> list[int]:
    return [row[quantity] for row in rows if row.get(quantity) is not None]


def _by_owner(shards: dict[int, list[Row]], place: Placement) -> dict[int, list[Row]]:
    owners: dict[int, list[Row]] = {}
    for shard in sorted(shards):
        owners.setdefault(place.owner_of[shard], []).extend(shards[shard])
    return owners


def _range(item: Sequence[Any]) -> Range:
    return item[0], item[1], item[2], item[3]


def _positions(row: Row) -> int:
    return sum(stop - start for _, _, start, stop in row["ranges"])


def samples_of(row: Row) -> int | None:
    """The samples that a row drew, as it says or as its ranges do."""
    if row.get("samples") is not None:
        return int(row["samples"])
    return None if row.get("ranges") is None else _positions(row)


def _replicas_differ(shards: dict[int, list[Row]], place: Placement) -> bool:
    """Whether ranks that hold the same say different counts, samples or ranges."""
    for rows in shards.values():
        closing = [row for row in rows if row.get("outcome") != "open"]
        if any(len(set(_known(closing, quantity))) > 1 for quantity in QUANTITIES[:3]):
            return True
    for rows in _by_owner(shards, place).values():
        closing = [row for row in rows if row.get("outcome") != "open"]
        if len({samples_of(row) for row in closing} - {None}) > 1:
            return True
        drawn = {tuple(sorted(_range(item) for item in row["ranges"])) for row in closing if row.get("ranges") is not None}
        if len(drawn) > 1:
            return True
    return False
