"""What each rank counts for itself, apart from the ledger, and the balance that follows from those files alone.

A rank appends one JSON line for each thing that happens to it, before it tells the ledger. Nothing here imports the ledger's
domain or its client: when both accounts agree, two independent programs have counted the same work.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNITS = {"input_slots": "slots", "consumed_tokens": "tokens", "valid_targets": "targets", "samples": "samples", "updates": "updates"}
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")
BUCKETS = ("preserved", "pending", "lost_to_restart", "skipped", "dropped")
OUTCOMES = ("applied", "skipped", "abandoned", "discarded", "held", "open")
FATES = ("preserved", "pending", "lost")

Line = dict[str, Any]


class Tally:
    """One rank's own account: appended in whole lines, on disk before the rank goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **values: Any) -> None:
        """Append one line; one write, so that a thread that saves and the thread that trains never mix theirs."""
        os.write(self._file, (json.dumps({"what": what, **values}) + "\n").encode())
        if what != "microbatch":
            # A microbatch line outlives SIGKILL by the write alone; what decides its place is made durable as well.
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(slots=True)
class Account:
    """The lines of all ranks of all attempts, folded into counts.

    `groups` holds, for each (attempt, update), what its microbatches counted; `outcomes` what the optimizer did with them, which is
    missing for a group that was interrupted; `dropped` what was processed before that update and thrown away.
    """

    groups: dict[tuple[int, int], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    loss_sums: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    outcomes: dict[tuple[int, int], str] = field(default_factory=dict)
    dropped: dict[tuple[int, int], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    evaluated: Counter[str] = field(default_factory=Counter)
    resumed_at: dict[int, int] = field(default_factory=dict)
    saved: set[tuple[int, int]] = field(default_factory=set)
    positions: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))

    def take(self, attempt: int, line: Line) -> None:
        """Fold one line in."""
        what, group = line["what"], (attempt, line["update"])
        counts = {quantity: line[quantity] for quantity in QUANTITIES if quantity in line}
        if what == "microbatch":
            self.groups[group].update(counts)
            self.loss_sums[group] += line["loss_sum"]
            self.positions[group].update((line["epoch"], position) for position in range(line["start"], line["stop"]))
        elif what == "outcome":
            if self.outcomes.setdefault(group, line["outcome"]) != line["outcome"]:
                raise ValueError(f"the ranks disagree about update {line['update']} of attempt {attempt}")
        elif what == "dropped":
            self.dropped[group].update(counts)
        elif what == "evaluation":
            self.evaluated.update(counts)
        elif what == "start":
            self.resumed_at[attempt] = line["update"]
        elif what == "saved":
            self.saved.add(group)

    def last_kept(self, attempt: int) -> float:
        """The last update of an attempt that no later attempt went back behind."""
        return min((update for later, update in self.resumed_at.items() if later > attempt), default=float("inf"))

    def outcome(self, attempt: int, update: int) -> str:
        """What the optimizer did with a group; `open` where the group was interrupted."""
        return self.outcomes.get((attempt, update), "open")

    def fate(self, attempt: int, update: int) -> str:
        """Where a place in an attempt lies: behind the newest checkpoint that was kept, after it, or undone by a restart."""
        if update > self.last_kept(attempt):
            return "lost"
        accepted = max((saved for owner, saved in self.saved if saved <= self.last_kept(owner)), default=0)
        return "preserved" if update <= accepted else "pending"

    def bucket(self, attempt: int, update: int) -> str:
        """Where the work of one group ended up: first cause wins, so a skipped update stays skipped though a restart undid it."""
        if self.outcome(attempt, update) == "skipped":
            return "skipped"
        fate = self.fate(attempt, update)
        if fate == "lost":
            return "lost_to_restart"
        return fate if self.outcome(attempt, update) == "applied" else "pending"

    def balance(self) -> dict[str, dict[str, int]]:
        """For each quantity, attempted and the five buckets.

        Law: attempted = preserved + pending + lost_to_restart + skipped + dropped
        """
        buckets: dict[str, Counter[str]] = defaultdict(Counter)
        for group, counts in self.groups.items():
            buckets[self.bucket(*group)].update(counts)
        for counts in self.dropped.values():
            buckets["dropped"].update(counts)
        for group in self.outcomes:
            buckets[self.bucket(*group)]["updates"] += 1
        balance = {quantity: {name: buckets[name][quantity] for name in BUCKETS} for quantity in UNITS}
        return {quantity: {"attempted": sum(parts.values()), **parts} for quantity, parts in balance.items()}

    def matrix(self) -> dict[str, dict[str, dict[str, int]]]:
        """For each quantity, what the optimizer did against where it ended up."""
        cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for group, counts in self.groups.items():
            cells[self.outcome(*group), self.fate(*group)].update(counts)
        for group, counts in self.dropped.items():
            cells["discarded", self.fate(*group)].update(counts)
        return {
            quantity: {outcome: {fate: cells[outcome, fate][quantity] for fate in FATES} for outcome in OUTCOMES} for quantity in QUANTITIES
        }

    def is_recomputed(self, attempt: int, update: int) -> bool:
        """Whether an older attempt had carried an update of this number to its end."""
        return (attempt, update) in self.outcomes and any((older, update) in self.outcomes for older in range(1, attempt))

    def recomputed(self) -> Counter[str]:
        """What was processed by updates whose number an older attempt had attempted."""
        total: Counter[str] = Counter()
        for group, counts in self.groups.items():
            if self.is_recomputed(*group):
                total.update(counts)
        return total

    def updates(self) -> dict[str, int]:
        """Updates by what the optimizer did and by where they ended up."""
        ends = Counter(self.bucket(*group) for group, outcome in self.outcomes.items() if outcome == "applied")
        done = Counter(self.outcomes.values())
        return {
            "attempted": done.total(),
            "applied": done["applied"],
            "skipped": done["skipped"],
            "abandoned": 0,
            "held": 0,
            "discarded_groups": len(self.dropped),
            "open_groups": len(self.groups.keys() - self.outcomes.keys()),
            "preserved": ends["preserved"],
            "pending": ends["pending"],
            "lost_to_restart": ends["lost_to_restart"],
            "recomputed": sum(self.is_recomputed(*group) for group in self.outcomes),
        }

    def report(self) -> dict[str, Any]:
        """Everything that the ledger's exposure report should say, in its shape."""
        balance: dict[str, dict[str, Any]] = {}
        for quantity, buckets in self.balance().items():
            balance[quantity] = {"unit": UNITS[quantity], **buckets, "complete": True, "updates_unknown": 0}
            if quantity != "updates":
                # Half precision that overflows is the only cause for which this trainer withholds an update.
                balance[quantity]["skipped_by_reason"] = {"overflow": buckets["skipped"]} if buckets["skipped"] else {}
        return {
            "updates": self.updates(),
            "balance": balance,
            "matrix": self.matrix(),
            "recomputed": {quantity: self.recomputed()[quantity] for quantity in QUANTITIES},
            "evaluation": {quantity: self.evaluated[quantity] for quantity in QUANTITIES},
            "passed_over": {"samples": 0},
        }

    def trained_positions(self) -> set[tuple[int, int]]:
        """The (epoch, sampler position) of every document whose gradient is in the final weights."""
        kept = (group for group, outcome in self.outcomes.items() if outcome == "applied" and self.bucket(*group) != "lost_to_restart")
        return set().union(*(self.positions[group] for group in kept))

    def curve(self) -> list[float]:
        """The token mean of each update of the trajectory, in order; a redone update counts once, as it was redone.

        Units: nats
        """
        kept = {update: (attempt, update) for attempt, update in sorted(self.outcomes) if update <= self.last_kept(attempt)}
        return [self.loss_sums[group] / self.groups[group]["valid_targets"] for _, group in sorted(kept.items())]


def read_account(tallies: Iterable[tuple[int, Path]]) -> Account:
    """Fold the files of all ranks; each comes with the number of its attempt."""
    account = Account()
    for attempt, path in tallies:
        for text in path.read_text(encoding="utf-8").splitlines():
            account.take(attempt, json.loads(text))
    return account


def figures(document: Any, path: str = "") -> dict[str, Any]:
    """Every value in a document that is not a document itself, under the names that lead to it.

    >>> figures({"updates": {"applied": 9, "held": 0}, "findings": {}})
    {'updates applied': 9, 'updates held': 0}
    """
    if not isinstance(document, dict):
        return {path: document}
    return {name: value for key, part in document.items() for name, value in figures(part, f"{path} {key}".lstrip()).items()}


def differences(account: Account, report: dict[str, Any]) -> list[str]:
    """Each figure in which the ledger's exposure report differs from the tally, or that only one of them has, as a sentence."""
    tallied = account.report()
    expected, shown = figures(tallied), figures({section: report.get(section) for section in tallied})
    names = [*expected, *(name for name in shown if name not in expected)]
    return [
        f"{name}: the tally says {expected.get(name, 'nothing')}, the ledger {shown.get(name, 'nothing')}"
        for name in names
        if expected.get(name, "nothing") != shown.get(name, "nothing")
    ]
