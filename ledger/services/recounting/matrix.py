"""The numbers of an exposure report: every count in one cell of outcome and fate, and the balance that the cells fold into."""

from collections.abc import Iterable
from typing import Any

from ledger.domain.quantities import QUANTITIES, UNITS
from ledger.services.recounting.groups import DISCARDS, EVALUATIONS, UPDATES, Group
from ledger.services.recounting.lineage import Lineage

OUTCOMES = ("applied", "skipped", "abandoned", "discarded", "held", "open")
FATES = ("preserved", "pending", "lost")
COUNTERS = (
    *("attempted", "applied", "skipped", "abandoned", "held", "discarded_groups", "open_groups"),
    *("preserved", "pending", "lost_to_restart", "recomputed"),
)
TERMS = ("preserved", "pending", "lost_to_restart", "skipped", "dropped")


class Sum:
    """An exact sum of what is known, and how many groups lack something of it."""

    __slots__ = ("known", "lacking")

    def __init__(self) -> None:
        self.known = self.lacking = 0

    def add(self, count: int, lacks: bool) -> None:
        """Adds what a group knows."""
        self.known += count
        self.lacking += lacks

    @property
    def value(self) -> int | None:
        """The sum; null where something lacks."""
        return None if self.lacking else self.known


class Tally:
    """What becomes of one quantity."""

    def __init__(self) -> None:
        self.cells = {(outcome, fate): Sum() for outcome in OUTCOMES for fate in FATES}
        self.terms = {term: Sum() for term in TERMS}
        self.attempted, self.recomputed, self.evaluated = Sum(), Sum(), Sum()
        self.reasons: dict[str, Sum] = {}

    def balance(self, quantity: str) -> dict[str, Any]:
        """The balance, with what is known beside it where not all is."""
        entry: dict[str, Any] = {"unit": UNITS[quantity], "attempted": self.attempted.value}
        entry |= {term: total.value for term, total in self.terms.items()}
        reasons = {reason: total for reason, total in sorted(self.reasons.items()) if total.known or total.lacking}
        entry["skipped_by_reason"] = {reason: total.value for reason, total in reasons.items()}
        entry |= {"complete": not self.attempted.lacking, "updates_unknown": self.attempted.lacking}
        if self.attempted.lacking:
            entry["known"] = {"attempted": self.attempted.known} | {term: total.known for term, total in self.terms.items()}
        return entry

    def matrix(self) -> dict[str, Any]:
        """The cells."""
        return {outcome: {fate: self.cells[outcome, fate].value for fate in FATES} for outcome in OUTCOMES}


def term_of(outcome: str, fate: str) -> str:
    """The term of the balance for work of that outcome and fate; the first cause wins."""
    if outcome == "skipped":
        return outcome
    if outcome in ("abandoned", "discarded"):
        return "dropped"
    return "lost_to_restart" if fate == "lost" else fate


def recomputed_numbers(groups: Iterable[Group], lineage: Lineage) -> dict[int, int]:
    """For each update number the place of the oldest attempt that attempted it."""
    place = {attempt: index for index, attempt in enumerate(lineage.order)}
    oldest: dict[int, int] = {}
    for group in groups:
        if group.is_attempt:
            oldest[group.number] = min(place[group.attempt], oldest.get(group.number, len(place)))
    return oldest


def exposure(groups: list[Group], lineage: Lineage) -> dict[str, Any]:
    """Updates, balance, matrix, recomputed and evaluated work, as an exposure report has them."""
    tallies = {quantity: Tally() for quantity in QUANTITIES}
    updates = dict.fromkeys(COUNTERS, 0)
    terms = dict.fromkeys(TERMS, 0)
    oldest = recomputed_numbers(groups, lineage)
    place = {attempt: index for index, attempt in enumerate(lineage.order)}
    for group in groups:
        if group.kind == EVALUATIONS:
            for quantity, count, lacks in zip(QUANTITIES, group.counts, group.lacking, strict=True):
                tallies[quantity].evaluated.add(count, lacks > 0)
            continue
        outcome, fate = lineage.outcome(group), lineage.fate(group)
        term = term_of(outcome, fate)
        again = group.is_attempt and place[group.attempt] > oldest[group.number]
        _add(tallies, group, outcome, fate, term, again)
        updates["discarded_groups"] += group.kind == DISCARDS
        updates["open_groups"] += group.kind == UPDATES and outcome == "open"
        if group.is_attempt:
            terms[term] += 1
            for name in ("attempted", outcome, *([term] if outcome == "applied" else ()), *(["recomputed"] if again else ())):
                updates[name] += 1
    slots, targets = (tallies[quantity].attempted.value for quantity in ("input_slots", "valid_targets"))
    whole = {"complete": True, "updates_unknown": 0}
    return {
        "updates": updates,
        "balance": {quantity: tally.balance(quantity) for quantity, tally in tallies.items()}
        | {"updates": {"unit": UNITS["updates"], "attempted": sum(terms.values()), **terms, **whole}},
        "matrix": {quantity: tally.matrix() for quantity, tally in tallies.items()},
        "recomputed": {quantity: tally.recomputed.value for quantity, tally in tallies.items()},
        "evaluation": {quantity: tally.evaluated.value for quantity, tally in tallies.items()},
        "occupancy": {"valid_targets_per_input_slot": targets / slots if slots and targets is not None else None},
    }


def _add(tallies: dict[str, Tally], group: Group, outcome: str, fate: str, term: str, again: bool) -> None:
    for quantity, count, lacking in zip(QUANTITIES, group.counts, group.lacking, strict=True):
        tally, lacks = tallies[quantity], lacking > 0
        sums = [tally.attempted, tally.cells[outcome, fate], tally.terms[term]]
        if outcome == "skipped":
            sums.append(tally.reasons.setdefault(group.reason or "other", Sum()))
        if again:
            sums.append(tally.recomputed)
        for total in sums:
            total.add(count, lacks)


def trajectory(groups: list[Group], lineage: Lineage) -> list[dict[str, Any]]:
    """The stretches of the trajectory, each with the last update on it."""
    last: dict[int, int] = {}
    for group in groups:
        if group.is_attempt:
            last[group.attempt] = max(group.number, last.get(group.attempt, 0))
    return [
        {
            "attempt": lineage.openings[step.attempt].name,
            "after": step.after,
            "through": max(step.after, last.get(step.attempt, 0)) if step.limit is None else step.limit.update,
        }
        for step in lineage.path
    ]


def complete_through(groups: list[Group], lineage: Lineage) -> int | None:
    """The highest number up to which every update on the trajectory has been attempted and has all its shards.

    Work from scratch begins with its lowest number, for a trainer's numbers may begin anywhere. Where not even the first number of a
    stretch is whole, it is as far as the stretch's own beginning.
    """
    numbers: dict[int, set[int]] = {step.attempt: set() for step in lineage.path}
    lacking: dict[int, set[int]] = {step.attempt: set() for step in lineage.path}
    for group in groups:
        if group.is_attempt and group.attempt in numbers:
            numbers[group.attempt].add(group.number)
            if group.is_incomplete:
                lacking[group.attempt].add(group.number)
    reached: int | None = None
    for place, step in enumerate(lineage.path):
        own = numbers[step.attempt]
        last = max([step.after, *own]) if step.limit is None else step.limit.update
        begins = not place and lineage.sources[step.attempt] is None and own and min(own) <= last
        first = min(own) if begins else step.after + 1
        reached = last
        for number in range(first, last + 1):
            if number not in own or number in lacking[step.attempt]:
                return number - 1 if number > first else step.after
    return reached
