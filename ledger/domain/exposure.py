"""The exposure matrix and the balance: every count in exactly one cell of outcome x fate.

    attempted = preserved + pending + lost_to_restart + skipped + dropped

| bucket | cells of the matrix |
|---|---|
| preserved | applied, preserved |
| pending | applied, held and open, pending |
| lost_to_restart | applied, held and open, lost |
| skipped | skipped, any fate |
| dropped | abandoned and discarded, any fate |

It holds for each quantity at every moment. First cause wins: a skip stays a skip though a restart rolled past it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.domain.quantities import QUANTITIES, UNITS
from ledger.domain.trajectory import Save, Segment

FATES = ("preserved", "pending", "lost")
BUCKETS = ("preserved", "pending", "lost_to_restart", "skipped", "dropped")
MATRIX_OUTCOMES = ("applied", "skipped", "abandoned", "discarded", "held", "open")
ATTEMPTED_OUTCOMES = ("applied", "skipped", "abandoned", "held")
DECIDED_BY_OPTIMIZER = ("applied", "skipped", "abandoned")


@dataclass(slots=True)
class Total:
    """What the groups of one attempt between two cuts add up to, by outcome, reason and whether their numbers were tried before.

    `first` is the first update number of the interval: a cut either lies before it or behind all of the interval. `updates` counts
    groups, `attempts` those that are attempted updates. `known` sums what is known, `unknown` counts the groups that lack a quantity.
    """

    attempt: int
    first: int
    outcome: str
    reason: str | None
    recomputed: bool
    updates: int = 0
    attempts: int = 0
    known: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUANTITIES, 0))
    unknown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUANTITIES, 0))
    seconds: float = 0.0
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Early:
    """A group with a higher number that yet lies before a save: it did not advance the number and came first in its sequence."""

    save: tuple[int, str, int]
    total: Total


def bucket_of(outcome: str, fate: str) -> str:
    """The term of the balance that a cell of the matrix belongs to."""
    if outcome == "skipped":
        return "skipped"
    if outcome in ("abandoned", "discarded"):
        return "dropped"
    return "lost_to_restart" if fate == "lost" else "pending" if outcome != "applied" else fate


class Fates:
    """Where work lies against preserved progress, for one head: a lookup for totals and for single updates."""

    def __init__(self, path: Sequence[Segment], accepted: Save | None, undecided: Iterable[int]) -> None:
        self.place = {segment.attempt: index for index, segment in enumerate(path)}
        self.path = path
        self.head = path[-1].attempt if path else None
        self.accepted = accepted
        self.undecided = frozenset(undecided)

    def outcome(self, attempt: int, outcome: str) -> str:
        """The outcome as it counts: what an undecided attempt did is held."""
        return "held" if attempt in self.undecided and outcome in DECIDED_BY_OPTIMIZER else outcome

    def on_trajectory(self, attempt: int, number: int, early: frozenset[tuple[int, str, int]] = frozenset()) -> bool:
        """Whether work of that number lies on the trajectory; `early` names the saves that it lies before all the same."""
        index = self.place.get(attempt)
        if index is None:
            return False
        save = self.path[index].save
        return save is None or number <= save.update or save.key in early

    def covered(self, attempt: int, number: int, early: frozenset[tuple[int, str, int]] = frozenset()) -> bool:
        """Whether the newest accepted checkpoint on the trajectory contains work of that number."""
        if self.accepted is None or not self.on_trajectory(attempt, number, early):
            return False
        if attempt == self.accepted.attempt:
            return number <= self.accepted.update or self.accepted.key in early
        return self.place[attempt] < self.place[self.accepted.attempt]

    def fate(self, attempt: int, number: int, outcome: str, early: frozenset[tuple[int, str, int]] = frozenset()) -> str:
        """Preserved, pending or lost; held and open work is never preserved, open work of a succeeded attempt is lost."""
        if not self.on_trajectory(attempt, number, early) or (outcome == "open" and attempt != self.head):
            return "lost"
        if outcome in ("held", "open"):
            return "pending"
        return "preserved" if self.covered(attempt, number, early) else "pending"


class Matrix:
    """Sums by outcome and fate; exact integers."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], dict[str, int]] = {}
        self.unknown: dict[tuple[str, str], dict[str, int]] = {}
        self.updates: dict[tuple[str, str], int] = {}
        self.attempts: dict[tuple[str, str], int] = {}
        self.reasons: dict[str, dict[str, list[int]]] = {}
        self.recomputed_known = dict.fromkeys(QUANTITIES, 0)
        self.recomputed_unknown = dict.fromkeys(QUANTITIES, 0)
        self.recomputed_updates = 0

    def add(self, total: Total, outcome: str, fate: str, sign: int = 1) -> None:
        """Puts a total in a cell, or takes it out again."""
        cell = (outcome, fate)
        known = self.known.setdefault(cell, dict.fromkeys(QUANTITIES, 0))
        unknown = self.unknown.setdefault(cell, dict.fromkeys(QUANTITIES, 0))
        for quantity in QUANTITIES:
            known[quantity] += sign * total.known[quantity]
            unknown[quantity] += sign * total.unknown[quantity]
        self.updates[cell] = self.updates.get(cell, 0) + sign * total.updates
        self.attempts[cell] = self.attempts.get(cell, 0) + sign * total.attempts
        if outcome == "skipped":
            reason = self.reasons.setdefault(total.reason or "other", {quantity: [0, 0] for quantity in QUANTITIES})
            for quantity in QUANTITIES:
                reason[quantity][0] += sign * total.known[quantity]
                reason[quantity][1] += sign * total.unknown[quantity]
        if total.recomputed and total.attempts:
            self.recomputed_updates += sign * total.attempts
            for quantity in QUANTITIES:
                self.recomputed_known[quantity] += sign * total.known[quantity]
                self.recomputed_unknown[quantity] += sign * total.unknown[quantity]

    def cell(self, outcome: str, fate: str, quantity: str) -> tuple[int, int]:
        """What is known in a cell, and how many groups lack it."""
        return self.known.get((outcome, fate), {}).get(quantity, 0), self.unknown.get((outcome, fate), {}).get(quantity, 0)


def matrix_of(totals: Iterable[Total], early: Iterable[Early], fates: Fates) -> Matrix:
    """The exposure matrix of a run for one head."""
    matrix = Matrix()
    for total in totals:
        outcome = fates.outcome(total.attempt, total.outcome)
        matrix.add(total, outcome, fates.fate(total.attempt, total.first, outcome))
    grouped: dict[int, tuple[Total, set[tuple[int, str, int]]]] = {}
    for item in early:
        grouped.setdefault(id(item.total), (item.total, set()))[1].add(item.save)
    for total, saves in grouped.values():
        outcome = fates.outcome(total.attempt, total.outcome)
        plain = fates.fate(total.attempt, total.first, outcome)
        true = fates.fate(total.attempt, total.first, outcome, frozenset(saves))
        if true != plain:
            matrix.add(total, outcome, plain, -1)
            matrix.add(total, outcome, true)
    return matrix


def _known_or_null(pair: tuple[int, int]) -> int | None:
    return None if pair[1] else pair[0]


def _add(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    known = unknown = 0
    for pair in pairs:
        known, unknown = known + pair[0], unknown + pair[1]
    return known, unknown


def balance_of(matrix: Matrix, quantity: str) -> dict[str, Any]:
    """The balance of one quantity; a term is null where some update lacks the quantity, with what is known beside it.

    Law: attempted = preserved + pending + lost_to_restart + skipped + dropped.
    """
    terms: dict[str, tuple[int, int]] = dict.fromkeys(BUCKETS, (0, 0))
    for outcome in MATRIX_OUTCOMES:
        for fate in FATES:
            bucket = bucket_of(outcome, fate)
            terms[bucket] = _add((terms[bucket], matrix.cell(outcome, fate, quantity)))
    attempted = _add(terms.values())
    reasons = {reason: sums[quantity] for reason, sums in sorted(matrix.reasons.items()) if any(sums[quantity])}
    entry: dict[str, Any] = {"unit": UNITS[quantity], "attempted": _known_or_null(attempted)}
    entry |= {bucket: _known_or_null(pair) for bucket, pair in terms.items()}
    entry["skipped_by_reason"] = {reason: _known_or_null((sums[0], sums[1])) for reason, sums in reasons.items()}
    entry["complete"] = not attempted[1]
    entry["updates_unknown"] = attempted[1]
    if attempted[1]:
        entry["known"] = {"attempted": attempted[0]} | {bucket: pair[0] for bucket, pair in terms.items()}
    return entry


def updates_balance(matrix: Matrix) -> dict[str, Any]:
    """The balance in attempted updates; open groups and discards are no attempts."""
    terms = dict.fromkeys(BUCKETS, 0)
    for (outcome, fate), count in matrix.attempts.items():
        terms[bucket_of(outcome, fate)] += count
    entry: dict[str, Any] = {"unit": UNITS["updates"], "attempted": sum(terms.values()), **terms}
    return entry | {"complete": True, "updates_unknown": 0}


def update_counts(matrix: Matrix) -> dict[str, int]:
    """How many updates had which outcome; preserved, pending and lost count applied ones."""

    def number(outcome: str, *fates: str) -> int:
        return sum(matrix.attempts.get((outcome, fate), 0) for fate in fates or FATES)

    counts = {outcome: number(outcome) for outcome in ("applied", "skipped", "abandoned", "held")}
    return {
        "attempted": sum(counts.values()),
        **counts,
        "discarded_groups": sum(matrix.updates.get(("discarded", fate), 0) for fate in FATES),
        "open_groups": sum(matrix.updates.get(("open", fate), 0) for fate in FATES),
        "preserved": number("applied", "preserved"),
        "pending": number("applied", "pending"),
        "lost_to_restart": number("applied", "lost"),
        "recomputed": matrix.recomputed_updates,
    }


def exposure_of(matrix: Matrix) -> dict[str, Any]:
    """The counts of an exposure report: updates, balance, matrix and recomputed work."""
    cells = {
        quantity: {
            outcome: {fate: _known_or_null(matrix.cell(outcome, fate, quantity)) for fate in FATES} for outcome in MATRIX_OUTCOMES
        }
        for quantity in QUANTITIES
    }
    balance = {quantity: balance_of(matrix, quantity) for quantity in QUANTITIES}
    slots, valid = balance["input_slots"]["attempted"], balance["valid_targets"]["attempted"]
    return {
        "updates": update_counts(matrix),
        "balance": balance | {"updates": updates_balance(matrix)},
        "matrix": cells,
        "recomputed": {
            quantity: _known_or_null((matrix.recomputed_known[quantity], matrix.recomputed_unknown[quantity])) for quantity in QUANTITIES
        },
        "occupancy": {"valid_targets_per_input_slot": valid / slots if slots and valid is not None else None},
    }


def quantity_total(groups: Iterable[Total], quantity: str) -> int | None:
    """The exact sum of a quantity; null where one of the totals lacks it."""
    return _known_or_null(_add((group.known[quantity], group.unknown[quantity]) for group in groups))


def extras_counted(totals: Iterable[Total], name: str) -> Mapping[str, int]:
    """Counts by key that totals carry beside the quantities, added up."""
    result: dict[str, int] = {}
    for total in totals:
        for key, count in total.extras.get(name, {}).items():
            result[key] = result.get(key, 0) + count
    return result
