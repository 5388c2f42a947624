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

QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")

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
    missing for a group that was interrupted.
    """

    groups: dict[tuple[int, int], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    loss_sums: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    outcomes: dict[tuple[int, int], str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_groups: set[tuple[int, int]] = field(default_factory=set)
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
            self.dropped.update(counts)
            self.dropped_groups.add(group)
        elif what == "evaluation":
            self.evaluated.update(counts)
        elif what == "start":
            self.resumed_at[attempt] = line["update"]
        elif what == "saved":
            self.saved.add(group)

    def last_kept(self, attempt: int) -> float:
        """The last update of an attempt that no later attempt went back behind."""
        return min((update for later, update in self.resumed_at.items() if later > attempt), default=float("inf"))

    def bucket(self, attempt: int, update: int) -> str:
        """Where the work of one group ended up: first cause wins, so a skipped update stays skipped though a restart undid it."""
        if self.outcomes.get((attempt, update)) == "skipped":
            return "skipped"
        if update > self.last_kept(attempt):
            return "lost_to_restart"
        if (attempt, update) not in self.outcomes:
            return "pending"
        accepted = max((saved for owner, saved in self.saved if saved <= self.last_kept(owner)), default=0)
        return "preserved" if update <= accepted else "pending"

    def balance(self) -> dict[str, dict[str, int]]:
        """For each quantity, attempted and the five buckets.

        Law: attempted = preserved + pending + lost_to_restart + skipped + dropped
        """
        buckets: dict[str, Counter[str]] = defaultdict(Counter, {"dropped": self.dropped})
        for (attempt, update), counts in self.groups.items():
            buckets[self.bucket(attempt, update)].update(counts)
        names = ("preserved", "pending", "lost_to_restart", "skipped", "dropped")
        balance = {quantity: {name: buckets[name][quantity] for name in names} for quantity in QUANTITIES}
        return {quantity: {"attempted": sum(parts.values()), **parts} for quantity, parts in balance.items()}

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
            "discarded_groups": len(self.dropped_groups),
            "preserved": ends["preserved"],
            "pending": ends["pending"],
            "lost_to_restart": ends["lost_to_restart"],
            "recomputed": sum(self.is_recomputed(*group) for group in self.outcomes),
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


def differences(account: Account, report: dict[str, Any]) -> list[str]:
    """Each number in which the ledger's exposure report differs from the tally, as a sentence."""
    expected: list[tuple[str, int, Any]] = []
    for quantity, buckets in account.balance().items():
        shown = report["balance"][quantity]
        expected += [(f"{quantity} {bucket}", count, shown[bucket]) for bucket, count in buckets.items()]
        expected.append((f"{quantity} skipped for overflow", buckets["skipped"], shown["skipped_by_reason"].get("overflow", 0)))
        expected.append((f"{quantity} recomputed", account.recomputed()[quantity], report["recomputed"][quantity]))
    expected += [(f"{quantity} evaluated", count, report["evaluation"][quantity]) for quantity, count in account.evaluated.items()]
    expected += [(f"updates {name}", count, report["updates"][name]) for name, count in account.updates().items()]
    return [f"{name}: the tally says {count:,}, the ledger {shown}" for name, count, shown in expected if count != shown]
