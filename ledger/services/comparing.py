"""Where what the ledger keeps and reports differs from a recount: each difference with its place, the first one first."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ledger.domain.quantities import QUANTITIES
from ledger.services.recount import Recount
from ledger.services.recounting import seen
from ledger.services.recounting.facts import Spans, Stream
from ledger.services.recounting.groups import DISCARDS, EVALUATIONS, OUTSIDE, UPDATES, Group
from ledger.services.recounting.matrix import recomputed_numbers
from ledger.storage import kept, raw
from ledger.storage.raw import STANDING_ALONE
from ledger.storage.store import Connection

PARTS = {UPDATES: 0, DISCARDS: 1, OUTSIDE: 2}
ABSENT = "nothing"
REPORT = "the projection"


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where something says something else than the journal."""

    place: str
    journal: Any
    projection: Any
    against: str = REPORT

    def __str__(self) -> str:
        """The difference as one line."""
        return f"{self.place} is {self.journal!r} by the journal, {self.projection!r} by {self.against}"


def report(place: str, right: Any, found: Any) -> Iterator[Difference]:
    """The differences between two records, depth first, each named by a JSON pointer.

    At the top and in `as_of` only what the recount knows is compared; everywhere else all must be equal.
    """
    if isinstance(right, dict) and isinstance(found, dict):
        is_partial = place.count("/") == 1 or place.endswith("/as_of")
        for key in [*right, *([] if is_partial else [key for key in found if key not in right])]:
            yield from report(f"{place}/{_escaped(key)}", right.get(key, ABSENT), found.get(key, ABSENT))
    elif isinstance(right, list) and isinstance(found, list):
        for index in range(max(len(right), len(found))):
            yield from report(f"{place}/{index}", _at(right, index), _at(found, index))
    elif right != found or isinstance(right, bool) != isinstance(found, bool):
        yield Difference(place, right, found)


def _escaped(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _at(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else ABSENT


def streams(counted: Recount, table: dict[Stream, Spans]) -> Iterator[Difference]:
    """Sequences of which the table of streams says something else than the journal holds."""
    for stream in sorted(counted.facts.sequences.keys() | table.keys()):
        attempt, rank, writer = stream
        held, said = counted.facts.sequences.get(stream, []), table.get(stream, [])
        if held != said:
            name = counted.name(attempt) if attempt in counted.lineage.openings else attempt
            yield Difference(f"/journal/sequences/{name}/{rank}/{_escaped(writer)}", held, said, "the table of streams")


def coverage(right: list[dict[str, Any]], found: list[dict[str, Any]]) -> Iterator[Difference]:
    """Differences of the coverage; of range lists that the report cuts, the part that it shows is compared."""
    names = [(item["stream"], item["epoch"]) for item in right]
    shown = [(item["stream"], item["epoch"]) for item in found]
    yield from report("/coverage/streams", [list(name) for name in names], [list(name) for name in shown])
    for expected, item in zip(right, found, strict=False):
        for key, value in expected.items():
            place = f"/coverage/streams/{_escaped(expected['stream'])}/{expected['epoch']}/{key}"
            cut = len(item[key]) if item["truncated"] and isinstance(value, list) else None
            yield from report(place, value[:cut] if cut else value, item[key])


def _spans(numbers: Iterable[int]) -> list[list[int]]:
    result: list[list[int]] = []
    for number in sorted(numbers):
        if result and result[-1][1] == number:
            result[-1][1] = number + 1
        else:
            result.append([number, number + 1])
    return result


def numbers(counted: Recount, table: dict[int, tuple[list[list[int]], list[list[int]]]]) -> Iterator[Difference]:
    """Attempts that are kept to have attempted other updates, or others again, than the journal shows."""
    oldest = recomputed_numbers(counted.groups, counted.lineage)
    tried = counted.numbers()
    for index, attempt in enumerate(counted.lineage.order):
        own = tried.get(attempt, set())
        again = [number for number in own if oldest[number] < index]
        said = table.get(attempt, ([], []))
        for what, right, found in (("numbers", own, said[0]), ("recomputed", again, said[1])):
            if _spans(right) != found:
                yield Difference(f"/attempts/{counted.name(attempt)}/{what}", _spans(right), found)
    for attempt in sorted(table.keys() - set(counted.lineage.order)):
        yield Difference(f"/attempts/{attempt}", ABSENT, "an attempt")


def groups(counted: Recount, table: Iterable[dict[str, Any]]) -> Iterator[Difference]:
    """Groups that are kept otherwise than their rows make them."""
    own = {(g.attempt, g.number, PARTS[g.kind], g.retry): g for g in counted.groups if g.kind in PARTS}
    for row in table:
        key = tuple(row[name] for name in kept.GROUP_KEY)
        group = own.pop(key, None)
        place = _place_of_group(counted, key)
        if group is None:
            yield Difference(place, ABSENT, "a group")
            continue
        for name, right in _as_row(group).items():
            if row[name] != right:
                yield Difference(f"{place}/{name}", right, row[name])
        drawn = [(stream, epoch, start, stop) for stream, epoch, start, stop in row["ranges"]]
        if drawn != group.ranges and seen.profile(drawn) != seen.profile(group.ranges):
            yield Difference(f"{place}/ranges", seen.profile(group.ranges), seen.profile(drawn))
    for key in sorted(own):
        yield Difference(_place_of_group(counted, key), "a group", ABSENT)


def _place_of_group(counted: Recount, key: tuple[Any, ...]) -> str:
    attempt, number, part, retry = key
    kind = next((kind for kind, code in PARTS.items() if code == part), part)
    name = counted.name(attempt) if attempt in counted.lineage.openings else attempt
    return f"/{kind}/{name}/{number}/{retry}"


def _as_row(group: Group) -> dict[str, Any]:
    row: dict[str, Any] = {"outcome": group.outcome, "reason": group.reason}
    row |= {"shards_expected": group.expected, "shards_reported": group.reported}
    return row | _counts(group)


def _counts(group: Group) -> dict[str, int]:
    row = {f"known_{name}": count for name, count in zip(QUANTITIES, group.counts, strict=True)}
    return row | {f"unknown_{name}": count for name, count in zip(QUANTITIES, group.lacking, strict=True)}


def evaluations(counted: Recount, table: Iterable[Any]) -> Iterator[Difference]:
    """Evaluations that are kept otherwise than their rows make them."""
    own = {(g.attempt, g.number, g.name, g.retry): g for g in counted.groups if g.kind == EVALUATIONS}
    for row in table:
        key = (row.attempt, row.number, row.name, row.retry)
        place = _place_of_evaluation(counted, key)
        group = own.pop(key, None)
        if group is None:
            yield Difference(place, ABSENT, "an evaluation")
            continue
        for name, right in _counts(group).items():
            if getattr(row, name) != right:
                yield Difference(f"{place}/{name}", right, getattr(row, name))
    for key in sorted(own):
        yield Difference(_place_of_evaluation(counted, key), "an evaluation", ABSENT)


def _place_of_evaluation(counted: Recount, key: tuple[int, int, str, int]) -> str:
    attempt, number, name, retry = key
    owner = counted.name(attempt) if attempt in counted.lineage.openings else attempt
    return f"/evaluations/{owner}/{number}/{_escaped(name)}/{retry}"


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def plain_rows(connection: Connection, run_id: int, counted: Recount) -> Iterator[Difference]:
    """Events that stand each for itself and are kept otherwise than they were posted, a block of the journal at a time."""
    journalled = dict.fromkeys(STANDING_ALONE, 0)
    for block, content in raw.contents(connection, run_id, counted.facts.plain):
        posted = content.rows
        journalled[block.kind] += len(posted)
        seqs = [row["seq"] for row in posted]
        table = kept.plain_rows(connection, run_id, block.kind, block.attempt, (min(seqs), max(seqs)))
        own = counted.lineage.openings[block.attempt].name
        for row in posted:
            found = table.get((row["rank"], row["writer"], row["seq"]))
            place = f"/{block.kind}/{own}/{row['rank']}/{_escaped(row['writer'])}/{row['seq']}"
            if found is None:
                yield Difference(place, "a row", ABSENT)
                continue
            for name, value in found.items():
                right = row.get("attempt", own) if name == "owner" else row.get(name)
                if _is_nonfinite(right) and (_is_nonfinite(value) or value is None):
                    continue
                if right != value:
                    yield Difference(f"{place}/{name}", right, value)
    for kind, rows in journalled.items():
        found_rows = kept.plain_count(connection, run_id, kind)
        if found_rows != rows:
            yield Difference(f"/{kind}", f"{rows} rows", f"{found_rows} rows")
