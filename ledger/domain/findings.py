"""What the ledger noticed: the closed list of kinds, and a sentence for each that says what disagrees and what to do."""

from typing import Any

MESSAGES: dict[str, str] = {
    "replica_mismatch": "Replicas of one shard posted different {quantity}: {expected} stands, rank {rank} posted {found}. The update is "
    "held until an operator says which rank stands.",
    "outcome_conflict": "Ranks disagree on the outcome: {expected} against {found} on rank {rank}. The update is held until an operator "
    "says which outcome stands.",
    "missing_rank": "Only {found} of {expected} shards have reported. What is known counts as held; drain the missing rank's spool.",
    "missing_count": "Shards that do not say {quantity}: {found}. Other updates of the attempt know it; totals are lower bounds.",
    "resume_conflict": "Ranks declared different resume points. The attempt's work is held until one of them is confirmed.",
    "sample_repeat": "Of stream {stream}, epoch {epoch}, {found} positions were drawn more than once.",
    "sample_gap": "Of stream {stream}, epoch {epoch}, {found} positions below the highest drawn were neither drawn nor passed over.",
    "resume_position_mismatch": "After the resume stream {stream} was drawn from position {found}; the checkpoint says {expected}.",
    "checkpoint_position_mismatch": "Checkpoint {checkpoint} declares position {found} of stream {stream}; {expected} were drawn.",
    "data_order_changed": "The data order's fingerprint was {expected} before the resume and is {found} after it.",
    "zero_target_update": "The update has no eligible target, so it has no token mean.",
    "nonfinite_loss": "Shards whose loss is not finite: {found}.",
    "loss_convention_mismatch": "The reported loss is {found}; the objective is declared as {expected}.",
    "schedule_clock_mismatch": "The schedule moved {found} steps where {expected} updates were applied: it counts skipped updates too.",
    "counter_drift": "The trainer's counter {quantity} stands at {found}, the ledger counts {expected}.",
    "skip_counter_mismatch": "The trainer's counter {quantity} says {found} skipped updates, the ledger counts {expected}.",
    "clock_skew": "The rank's clock is ahead of the service's by more than a minute.",
    "late_event": "Events of this attempt arrived after a newer attempt had been opened; they count in their own attempt.",
    "missing_events": "Rank {rank} lost the events {expected} to {found} before they could be sent.",
    "update_gap": "Update numbers {expected} to {found} were never attempted.",
    "valid_exceeds_slots": "The update has {found} valid targets in {expected} input slots.",
}
"""A sentence a kind; the keys are the closed list of kinds."""

KINDS = tuple(MESSAGES)


def finding(kind: str, attempt: str | None, update: int | None = None, retry: int | None = None, **values: Any) -> dict[str, Any]:
    """A finding as it is reported, with its sentence."""
    shown = {"rank": None, "quantity": None, "expected": None, "found": None, **values}
    item = {"kind": kind, "attempt": attempt, "update": update, "retry": retry}
    item |= {key: shown[key] for key in ("rank", "quantity", "expected", "found")}
    item |= {key: value for key, value in values.items() if key not in item and key != "open"}
    return item | {"message": MESSAGES[kind].format(**_Shown(shown)), "open": bool(values.get("open", True))}


class _Shown(dict[str, Any]):
    """Values for a sentence; one that is not known is shown as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
