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

ADVICE: dict[str, str] = {
    "replica_mismatch": "Find out which rank counts wrongly, then settle the update with a resolution that names the rank that stands.",
    "outcome_conflict": "Look at the ranks' logs of that update, then settle it with a resolution that names the outcome that stands.",
    "missing_rank": "Send what the rank left behind with `ledger-client drain`. If it is gone for good, the update stays held.",
    "missing_count": "Count the quantity on a rank that can know it, one with labels say. Until then totals are lower bounds.",
    "resume_conflict": "Ask each rank which checkpoint it loaded, then name the right one as the attempt's `resumed_from`.",
    "sample_repeat": "If repeats are meant, declare `data.repeats_expected`. If not, look at how the sampler is set up after a resume.",
    "sample_gap": "If the jump was meant, post it as a pass. If not, train on these positions, or say that the model has not seen them.",
    "resume_position_mismatch": "Restore the data position from the checkpoint on resume; compare what the sampler was given with what "
    "it used.",
    "checkpoint_position_mismatch": "Save the position of what was trained on, not that of what was prefetched; check the order of the "
    "two.",
    "data_order_changed": "Seed, sharding or shuffling differ after the resume: what was drawn can no longer be compared by position.",
    "zero_target_update": "Look at the masks of that batch. Skip such an update outright, so that no mean is divided by zero.",
    "nonfinite_loss": "Look at that update's batch and gradients. If the trainer skipped it, nothing is left to do.",
    "loss_convention_mismatch": "Either declare the objective that the trainer really uses, or scale each rank's loss as the objective "
    "needs.",
    "schedule_clock_mismatch": "Step the schedule only after an applied update, or declare `schedule_clock` as attempted updates.",
    "counter_drift": "Trust neither yet: compare both over one attempt. Trainers often count padding, or samples that were drawn twice.",
    "skip_counter_mismatch": "Record the outcome where the optimizer decides it; a step hook also fires on a skipped step.",
    "clock_skew": "Synchronise the rank's clock. Counts are not touched by it; rates over the last seconds are.",
    "late_event": "Nothing to do: late events count in their own attempt. Many of them mean that spools are drained late.",
    "missing_events": "The spool was full or broken. Give it more room; the updates that lack these events stay held.",
    "update_gap": "Check that each attempted update is recorded, and that the trainer's numbers do not jump on resume.",
    "valid_exceeds_slots": "One of the two is counted wrongly: slots count every position of the tensor, targets only those that are "
    "scored.",
}
"""What to do about each kind."""


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
