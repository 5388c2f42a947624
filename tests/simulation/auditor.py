"""The independent auditor: the exposure of a set of facts, worked out slowly and plainly from the accounting page alone."""

from typing import Any

from tests.simulation import coverage
from tests.simulation.facts import Facts
from tests.simulation.groups import QUANTITIES, Group, collect
from tests.simulation.lineage import Lineage, Save, fate_of, newest_named, trace

OUTCOMES = ("applied", "skipped", "abandoned", "discarded", "held", "open")
FATES = ("preserved", "pending", "lost")
BUCKETS = ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")
Place = tuple[Any, ...]


def audit(facts: Facts, head: str | None = None) -> dict[str, Any]:
    """Everything that the reports of a run must say, given these facts."""
    fork, before = None, []
    if facts.parent is not None:
        parent_groups, parent_lineage = examine(facts.parent)
        fork = newest_named(parent_lineage, facts.fork_name)
        before = [] if fork is None else coverage.drawn_before(parent_lineage, parent_groups, fork)
    groups, lineage = examine(facts, fork, head)
    work = [group for group in groups if group.kind in ("updates", "discards", "outside")]
    again = recomputed_groups(work, lineage)
    accepted = lineage.accepted
    unit = facts.conventions.get("data", {}).get("unit", "position")
    streams = coverage.cover(lineage, groups, before if lineage.path else [], unit)
    return {
        "head": lineage.head,
        "order": lineage.order,
        "trajectory": trajectory(lineage, work),
        "accepted_checkpoint": None if accepted is None else dict(zip(("attempt", "checkpoint", "update"), accepted.key, strict=True)),
        "complete_through_update": complete_through(lineage, work),
        "balance": {quantity: balance(quantity, work, lineage) for quantity in QUANTITIES},
        "matrix": {quantity: matrix(quantity, work, lineage) for quantity in QUANTITIES},
        "updates": update_counts(work, lineage, again),
        "recomputed": {quantity: sum(g.known[quantity] for g in work if g.kind == "updates" and g.key in again) for quantity in QUANTITIES},
        "evaluation": evaluation(groups),
        "passed_over": {"samples": sum(stop - start for group in groups if group.kind == "passes" for _, _, start, stop in group.ranges)},
        "items": {group.key: item(group, lineage, again) for group in work if group.kind == "updates"},
        "streams": streams,
        "findings": findings(facts, lineage, groups, streams, (fork, before)),
        "checkpoints": {
            save.key: "rejected" if save.rejected else "accepted" if save.stands else "started"
            for save in lineage.saves.values()
            if save.key[0] in lineage.order  # word of a save may come before its attempt has been opened
        },
        "unsettled": set(lineage.order) - lineage.settled,
    }


def examine(facts: Facts, fork: Save | None = None, head: str | None = None) -> tuple[list[Group], Lineage]:
    """The groups of a run and its lineage; the work of an attempt whose origin is not settled is held."""
    layouts = {declaration.attempt: declaration.layout for declaration in reversed(facts.declarations)}
    groups = collect(facts, layouts)
    lineage = trace(facts, groups, fork, head)
    for group in groups:
        if (group.attempted or group.kind == "outside") and group.attempt not in lineage.settled:
            group.told, group.outcome, group.reason = group.outcome, "held", None
    return groups, lineage


def buckets_of(group: Group, fate: str) -> str:
    """The bucket of the balance that a cell of the matrix folds into; the first cause wins."""
    if group.outcome == "skipped":
        return "skipped"
    if group.outcome in ("abandoned", "discarded"):
        return "dropped"
    return "lost_to_restart" if fate == "lost" else fate


def balance(quantity: str, work: list[Group], lineage: Lineage) -> dict[str, Any]:
    """The one-line balance of a quantity: what is known of each bucket, and which buckets hold something unknown."""
    known = dict.fromkeys(BUCKETS, 0)
    unknown: set[str] = set()
    by_reason: dict[str, int] = {}
    updates_unknown = 0
    for group in work:
        bucket = buckets_of(group, fate_of(lineage, group))
        for name in ("attempted", bucket):
            known[name] += group.known[quantity]
            if quantity in group.unknown:
                unknown.add(name)
        if bucket == "skipped":
            by_reason[str(group.reason)] = by_reason.get(str(group.reason), 0) + group.known[quantity]
        if quantity in group.unknown:
            updates_unknown += 1
    parts = sum(known[name] for name in BUCKETS[1:])
    assert known["attempted"] == parts, f"the auditor's own balance of {quantity} is off: {known}"
    return {
        "known": known,
        "unknown": unknown,
        "skipped_by_reason": by_reason,
        "complete": updates_unknown == 0,
        "updates_unknown": updates_unknown,
    }


def matrix(quantity: str, work: list[Group], lineage: Lineage) -> dict[str, dict[str, int]]:
    """What is known of each cell of outcome and fate."""
    cells = {outcome: dict.fromkeys(FATES, 0) for outcome in OUTCOMES}
    for group in work:
        cells[group.outcome][fate_of(lineage, group)] += group.known[quantity]
    return cells


def recomputed_groups(work: list[Group], lineage: Lineage) -> set[tuple[str, int, int]]:
    """The attempted updates whose number an older attempt had attempted."""
    first: dict[int, int] = {}
    for group in work:
        if group.attempted:
            place = lineage.order.index(group.attempt)
            first[group.update] = min(first.get(group.update, place), place)
    return {g.key for g in work if g.attempted and lineage.order.index(g.attempt) > first[g.update]}


def update_counts(work: list[Group], lineage: Lineage, again: set[tuple[str, int, int]]) -> dict[str, int]:
    """The counters of updates."""
    counts = dict.fromkeys(("attempted", "applied", "skipped", "abandoned", "held", "preserved", "pending", "lost_to_restart"), 0)
    for group in work:
        if not group.attempted:
            continue
        counts["attempted"] += 1
        counts[group.outcome] += 1
        if group.outcome == "applied":
            fate = fate_of(lineage, group)
            counts["lost_to_restart" if fate == "lost" else fate] += 1
    counts["discarded_groups"] = sum(1 for group in work if group.kind == "discards")
    counts["recomputed"] = len(again)
    return counts


def evaluation(groups: list[Group]) -> dict[str, int | None]:
    """Evaluated counts; null where some rank could not know."""
    found: dict[str, int | None] = {}
    for quantity in QUANTITIES:
        own = [group for group in groups if group.kind == "evaluations"]
        unknown = any(quantity in group.unknown for group in own)
        found[quantity] = None if unknown else sum(group.known[quantity] for group in own)
    return found


def trajectory(lineage: Lineage, work: list[Group]) -> list[dict[str, Any]]:
    """The head, and each ancestor up to where its child left it."""
    steps = []
    for step in lineage.path:
        numbers = [group.update for group in work if group.attempt == step.attempt and group.attempted]
        through = step.limit.update if step.limit is not None else max([step.after, *numbers])
        steps.append({"attempt": step.attempt, "after": step.after, "through": through})
    return steps


def complete_through(lineage: Lineage, work: list[Group]) -> int | None:
    """The number before the first that is missing or lacks a shard on the trajectory; work from scratch begins where it begins."""
    reached = None
    for step in lineage.path:
        own = [group for group in work if group.attempted and group.attempt == step.attempt]
        own = [group for group in own if step.limit is None or group.update <= step.limit.update]
        whole = {group.update for group in own} - {group.update for group in own if group.incomplete}
        first = min((group.update for group in own), default=None)
        is_root = step is lineage.path[0] and step.after == 0
        reached = first - 1 if is_root and first in whole else step.after
        while reached + 1 in whole:
            reached += 1
        if reached < max([step.after if step.limit is None else step.limit.update, *(group.update for group in own)]):
            break
    return reached


def item(group: Group, lineage: Lineage, again: set[tuple[str, int, int]]) -> dict[str, Any]:
    """What the list of updates says of one."""
    return {
        "outcome": group.outcome,
        "reason": group.reason,
        "fate": fate_of(lineage, group),
        "recomputed": group.key in again,
        "shards_expected": len(group.expected),
        "shards_reported": len(group.reported & group.expected),
        "known": dict(group.known),
        "unknown": set(group.unknown),
        "losses": group.losses,
        "dp_ranks": group.dp_rank_count,
    }


def findings(
    facts: Facts, lineage: Lineage, groups: list[Group], streams: list[dict[str, Any]], origin: tuple[Save | None, list[Group]]
) -> dict[str, set[Place]]:
    """The places of each kind of finding that the auditor judges."""
    found: dict[str, set[Place]] = {}

    def note(kind: str, *place: Any) -> None:
        found.setdefault(kind, set()).add(place)

    ended = {ending.attempt for ending in facts.endings}
    updates = [group for group in groups if group.attempted]
    settled = [group for group in updates if not (group.incomplete or group.mismatched or group.conflict)]
    for group in updates:
        if group.mismatched:
            note("replica_mismatch", *group.key)
        if group.conflict:
            note("outcome_conflict", *group.key)
        if group.incomplete and (group.attempt in ended or group.attempt != lineage.head):
            note("missing_rank", *group.key)
        if not group.incomplete and "valid_targets" not in group.unknown and group.known["valid_targets"] == 0:
            note("zero_target_update", *group.key)
        for quantity in group.lacking if group in settled else ():
            if any(other.attempt == group.attempt and quantity not in other.unknown for other in settled):
                note("missing_count", *group.key)
    for attempt in lineage.conflicted:
        note("resume_conflict", attempt)
    judge_streams(facts, lineage, streams, note)
    if facts.conventions.get("data", {}).get("unit", "position") == "position":
        for attempt in coverage.misplaced_resumes(lineage, groups, origin[0]):
            note("resume_position_mismatch", attempt)
        for place in coverage.misplaced_saves(lineage, groups, origin[1]):
            note("checkpoint_position_mismatch", *place)
    return found


def judge_streams(facts: Facts, lineage: Lineage, streams: list[dict[str, Any]], note: Any) -> None:
    """Findings about the data drawn on the trajectory."""
    data = facts.conventions.get("data", {})
    completed = any(ending.attempt == lineage.head and ending.ended == "completed" for ending in facts.endings)
    for stream in streams:
        later = any(other["stream"] == stream["stream"] and other["epoch"] > stream["epoch"] for other in streams)
        if stream["repeated"] and not data.get("repeats_expected", False):
            note("sample_repeat", stream["stream"], stream["epoch"])
        if stream["gaps"] and (data.get("unit", "position") == "position" or later or completed):
            note("sample_gap", stream["stream"], stream["epoch"])
