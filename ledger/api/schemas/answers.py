"""What the calls answer, described for people and for generators of clients; the values come from the use cases as they are.

Every total may be null: then it is not known for every update, and `known` beside it holds the sum of what is known.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Whole = Annotated[int, Field(ge=0)]
"""An exact count of any size."""
Total = Annotated[int | None, Field(ge=0)]
"""An exact sum; null where an update lacks the quantity."""
Measured = float | Literal["NaN", "Infinity", "-Infinity"] | None
"""A measured value; what is not finite is named."""
Cursor = Annotated[str | None, Field(description="give it back as `cursor` for the next page; null on the last")]
Span = Annotated[list[Whole], Field(min_length=2, max_length=2, description="half-open: [start, stop)")]
ENDED = Literal["completed", "crashed", "preempted", "stopped"]
OUTCOME = Literal["applied", "skipped", "abandoned", "held", "open"]
FATE = Literal["preserved", "pending", "lost"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="allow", json_schema_extra={"examples": [value]})


class Rejection(_Answer):
    """An event that was not taken, though the others of its batch were."""

    rank: Whole = Field(description="the training process that posted it")
    writer: str = Field(description="its writer")
    seq: Whole = Field(description="its place in the writer's sequence")
    code: str = Field(description="stable name of the reason, e.g. `event_conflict`")
    detail: str = Field(description="what is wrong, for people")


class Receipt(_Answer):
    """What became of a batch; everything accepted is committed."""

    model_config = _example({"accepted": 2, "duplicates": 0, "rejected": []})

    accepted: Whole = Field(description="events that are new, in events")
    duplicates: Whole = Field(description="events that the ledger already had, in events")
    rejected: list[Rejection] = Field(description="events that were not taken, each with its reason")


class AttemptAnswer(_Answer):
    """One launch of a run."""

    model_config = _example(
        {
            "attempt": "a2",
            "ordinal": 2,
            "resumed_from": {"checkpoint": "c4"},
            "layout": {"dp": 2, "tp": 2, "pp": 1, "cp": 1, "order": "tp-cp-dp-pp", "cp_counts": "shard"},
            "conventions": {},
            "started_at": "2026-11-29T12:00:00Z",
            "ended": None,
            "ended_at": None,
        }
    )

    attempt: str = Field(description="the launcher's own id")
    ordinal: Annotated[int, Field(ge=1, description="place in the order of opening, given once")]
    resumed_from: dict[str, Any] | None = Field(default=None, description="the checkpoint that it continues from; null: from scratch")
    layout: dict[str, Any] | None = Field(default=None, description="ranks and shards")
    conventions: dict[str, Any] = Field(default_factory=dict, description="lie over the run's")
    started_at: str | None = Field(default=None, description="RFC 3339")
    ended: ENDED | None = Field(default=None, description="how it ended; null while it has not")
    ended_at: str | None = Field(default=None, description="RFC 3339")


class RunAnswer(_Answer):
    """A run with its attempts, conventions and forks."""

    model_config = _example(
        {
            "project": "default",
            "run": "demo",
            "conventions": {"objective": "token_mean"},
            "forked_from": None,
            "attempts": [{"attempt": "a1", "ordinal": 1, "resumed_from": None, "conventions": {}, "ended": "crashed"}],
        }
    )

    project: str = Field(description="name of the project")
    run: str = Field(description="name of the run in its project")
    conventions: dict[str, Any] = Field(description="what the numbers of the run mean")
    forked_from: dict[str, Any] | None = Field(default=None, description="the checkpoint of another run that it began from; null: none")
    attempts: list[AttemptAnswer] = Field(default_factory=list, description="its launches in the order of opening")


class RunSummary(_Answer):
    """A run in a list."""

    project: str = Field(description="name of the project")
    run: str = Field(description="name of the run in its project")


class RunList(_Answer):
    """Runs, a page at a time."""

    model_config = _example({"items": [{"project": "default", "run": "demo"}], "next_cursor": None})

    items: list[RunSummary] = Field(description="runs in the order of their names")
    next_cursor: Cursor = None


class ChangeAnswer(_Answer):
    """An attempt after a change."""

    model_config = _example({"attempt": "a1", "ended": "crashed", "ended_at": "2026-11-29T15:00:00Z", "resumed_from": None})

    ended: ENDED | None = Field(default=None, description="how it ended; null while it has not")
    ended_at: str | None = Field(default=None, description="RFC 3339")
    resumed_from: dict[str, Any] | None = Field(default=None, description="the checkpoint that it continues from; null: from scratch")


class ResolutionAnswer(_Answer):
    """A settled update."""

    model_config = _example({"attempt": "a1", "update": 5, "retry": 0, "outcome": "applied", "by": "kim", "why": "stale flag"})

    attempt: str = Field(description="the launch whose update was held")
    update: Whole = Field(description="the number of that update")
    retry: Whole = Field(description="the try at that number")
    rank: Annotated[int | None, Field(ge=0)] = Field(default=None, description="the rank whose word stands")
    outcome: str | None = Field(default=None, description="the outcome that stands")
    by: str = Field(description="who settled it")
    why: str = Field(description="on what grounds")


class AsOf(_Answer):
    """The moment that a report reflects."""

    events: Whole = Field(description="offset in the run's journal: every entry up to it is in the report")
    at: str = Field(description="RFC 3339")
    head: str | None = Field(default=None, description="the attempt whose trajectory is shown")
    complete_through_update: Annotated[int | None, Field(ge=0)] = Field(
        default=None, description="highest number up to which every update on the trajectory has all its shards"
    )


class Segment(_Answer):
    """A stretch of the trajectory, in update numbers."""

    attempt: str = Field(description="the launch that the stretch belongs to")
    after: Annotated[int | None, Field(ge=0)] = Field(description="the last update before the stretch")
    through: Annotated[int | None, Field(ge=0)] = Field(description="the last update of the stretch")


class CheckpointPlace(_Answer):
    """A checkpoint and the last update that it contains."""

    checkpoint: str = Field(description="its name")
    attempt: str = Field(description="its owner")
    update: Whole = Field(description="the last update that it contains")


class UpdateCounts(_Answer):
    """Attempted updates by outcome; preserved, pending and lost count applied ones. In updates."""

    attempted: Whole = Field(description="applied + skipped + abandoned + held, in updates")
    applied: Whole = Field(description="committed by the optimizer, in updates")
    skipped: Whole = Field(description="computed but not applied, in updates")
    abandoned: Whole = Field(description="computed, never committed, in updates")
    held: Whole = Field(description="incomplete or contradicted, in updates")
    discarded_groups: Whole = Field(description="remainder groups that became no attempt")
    preserved: Whole = Field(description="applied, within an accepted checkpoint on the trajectory, in updates")
    pending: Whole = Field(description="applied, on the trajectory, not yet within one, in updates")
    lost_to_restart: Whole = Field(description="applied, off the trajectory, in updates")
    open_groups: Whole = Field(default=0, description="groups without an outcome yet, in groups; no attempts")
    recomputed: Whole = Field(description="updates whose number had been attempted before")


class Balance(_Answer):
    """attempted = preserved + pending + lost_to_restart + skipped + dropped, in `unit`."""

    unit: Literal["slots", "tokens", "targets", "samples", "updates", "seconds"] = Field(description="what every figure here counts")
    attempted: Total = Field(description="the sum of the five terms, in `unit`")
    preserved: Total = Field(description="applied, within an accepted checkpoint on the trajectory, in `unit`")
    pending: Total = Field(description="applied, held or open, on the trajectory, not yet within one, in `unit`")
    lost_to_restart: Total = Field(description="applied, held or open, off the trajectory, in `unit`")
    skipped: Total = Field(description="not applied by the optimizer, in `unit`")
    dropped: Total = Field(description="abandoned or discarded, in `unit`")
    skipped_by_reason: dict[str, Total] = Field(default_factory=dict, description="the skipped term by reason, in `unit`")
    complete: bool = Field(description="whether every update knows the quantity")
    updates_unknown: Whole = Field(description="updates that lack the quantity")
    known: dict[str, Whole] | None = Field(default=None, description="the same terms, as far as they are known")


class Exposure(_Answer):
    """Where the work of a run ended up."""

    model_config = _example(
        {
            "project": "default",
            "run": "demo",
            "as_of": {"events": 123, "at": "2026-11-29T15:00:00Z", "head": "a2", "complete_through_update": 7},
            "trajectory": [{"attempt": "a1", "after": 0, "through": 4}, {"attempt": "a2", "after": 4, "through": 7}],
            "accepted_checkpoint": {"checkpoint": "c7", "attempt": "a2", "update": 7},
            "updates": {
                "attempted": 10, "applied": 9, "skipped": 1, "abandoned": 0, "held": 0, "discarded_groups": 0,
                "preserved": 7, "pending": 0, "lost_to_restart": 2, "recomputed": 3,
            },
            "balance": {
                "valid_targets": {
                    "unit": "targets", "attempted": 360, "preserved": 252, "pending": 0, "lost_to_restart": 72,
                    "skipped": 36, "dropped": 0, "skipped_by_reason": {"overflow": 36}, "complete": True, "updates_unknown": 0,
                }
            },
            "matrix": {"valid_targets": {"applied": {"preserved": 252, "pending": 0, "lost": 72}}},
            "recomputed": {"valid_targets": 108},
            "evaluation": {"valid_targets": 0},
            "passed_over": {"samples": 0},
            "occupancy": {"valid_targets_per_input_slot": 0.976},
            "findings": {"missing_rank": 0},
        }
    )

    project: str = Field(description="name of the project")
    run: str = Field(description="name of the run in its project")
    as_of: AsOf = Field(description="the moment that the report reflects")
    trajectory: list[Segment] = Field(description="oldest stretch first")
    accepted_checkpoint: CheckpointPlace | None = Field(description="the newest accepted one on the trajectory; null: nothing is preserved")
    updates: UpdateCounts = Field(description="attempted updates by outcome, in updates")
    balance: dict[str, Balance] = Field(description="by quantity")
    matrix: dict[str, dict[str, dict[str, Total]]] = Field(description="quantity -> outcome -> fate")
    recomputed: dict[str, Total] = Field(description="by quantity: work whose update number had been attempted before")
    evaluation: dict[str, Total] = Field(description="by quantity: outside the balance")
    passed_over: dict[str, Whole] = Field(description="data jumped on purpose, in samples")
    occupancy: dict[str, float | None] = Field(description="shares between 0 and 1; null where a total is unknown")
    findings: dict[str, Whole] = Field(description="how many of each kind are open")


class UpdateAnswer(_Answer):
    """One attempted update, its shards added up."""

    attempt: str = Field(description="the launch that attempted it")
    update: Whole = Field(description="the trainer's number")
    retry: Whole = Field(description="which try at that number")
    outcome: OUTCOME = Field(description="what the optimizer did; `held` where that is not settled")
    reason: str | None = Field(description="why it was skipped or dropped")
    fate: FATE = Field(description="where it lies against preserved progress")
    recomputed: bool = Field(description="whether its number had been attempted before")
    shards_expected: Whole = Field(description="in shards")
    shards_reported: Whole = Field(description="in shards")
    input_slots: Total = Field(description="in slots; null: unknown")
    consumed_tokens: Total = Field(description="in tokens; null: unknown")
    valid_targets: Total = Field(description="in targets; null: unknown")
    samples: Total = Field(description="in samples; null: unknown")
    nominal_targets: Total = Field(description="ranks x microbatches x sequences x length, where the conventions give them; in targets")
    token_mean: Measured = Field(description="sum of losses / valid targets, in nats")
    mean_of_rank_means: Measured = Field(description="in nats")
    mean_of_microbatch_means: Measured = Field(description="in nats")
    nonfinite_ranks: Whole = Field(description="ranks whose loss is not finite")
    reported_loss: Measured = Field(description="as the trainer said it, in nats")
    loss_verdict: str | None = Field(description="which mean the reported loss equals")
    loss_scale: Measured = Field(description="R/T under a mean over R, as the conventions say")
    seconds: Measured = Field(description="duration of the slowest rank, in seconds")


class UpdateList(_Answer):
    """Updates, a page at a time, or spread over the whole range."""

    model_config = _example(
        {
            "items": [
                {
                    "attempt": "a1", "update": 5, "retry": 0, "outcome": "applied", "reason": None, "fate": "lost", "recomputed": False,
                    "shards_expected": 2, "shards_reported": 2, "input_slots": 64, "consumed_tokens": 40, "valid_targets": 36,
                    "samples": 8, "nominal_targets": 64, "token_mean": 2.5, "mean_of_rank_means": 3.0, "mean_of_microbatch_means": 3.0,
                    "nonfinite_ranks": 0, "reported_loss": 3.0, "loss_verdict": "mean_of_rank_means", "loss_scale": 0.0556,
                    "seconds": 0.9,
                }
            ],
            "next_cursor": None,
        }
    )

    items: list[UpdateAnswer] = Field(description="in the order of attempts and numbers")
    next_cursor: Cursor = None


class StreamCoverage(_Answer):
    """Which data of one stream and epoch the trajectory drew, in `unit`s."""

    stream: str = Field(description="name of the stream")
    epoch: Whole = Field(description="its epoch")
    unit: Literal["position", "id"] = Field(description="what a range counts: sampler positions or sample ids")
    effective_total: Whole = Field(description="drawn by applied updates, repeats counted, in `unit`s")
    effective_unique: Whole = Field(description="drawn by applied updates at least once, in `unit`s")
    times_seen: dict[str, Whole] = Field(description="how many positions were seen once, twice, …")
    repeated: list[Span] = Field(description="drawn more than once")
    gaps: list[Span] = Field(description="below the highest drawn, never drawn, not passed over")
    without_effect: list[Span] = Field(description="drawn only by work that was not applied")
    passed_over: list[Span] = Field(description="jumped on purpose")


class Coverage(_Answer):
    """Data exposure by stream and epoch."""

    model_config = _example(
        {
            "streams": [
                {
                    "stream": "train", "epoch": 0, "unit": "position", "effective_total": 24, "effective_unique": 16,
                    "times_seen": {"1": 8, "2": 8}, "repeated": [[0, 8]], "gaps": [], "without_effect": [], "passed_over": [],
                }
            ]
        }
    )

    streams: list[StreamCoverage] = Field(description="in the order of their names and epochs")
    next_cursor: Cursor = None


class Objective(_Answer):
    """The token mean against the other means, and what the reported loss is."""

    model_config = _example(
        {
            "updates_compared": 7,
            "token_mean_of_last": 2.5,
            "largest_gap": {"update": 3, "token_mean": 2.5, "mean_of_rank_means": 3.0},
            "reported_loss_is": "mean_of_rank_means",
            "factor": None,
            "loss_scale_rule": "R/T",
            "statement": "The reported loss is the mean of rank means.",
        }
    )

    updates_compared: Whole = Field(description="applied updates on the trajectory that report a loss, in updates")
    token_mean_of_last: Measured = Field(description="of the newest applied update, in nats")
    largest_gap: dict[str, Any] | None = Field(description="the update where the means differ most, in nats")
    reported_loss_is: str | None = Field(description="the mean that the reported losses equal")
    factor: str | float | None = Field(description="the whole factor by which they are off")
    loss_scale_rule: str | None = Field(
        description="the scale that gives the gradient of the global token mean; T is the sum of valid targets, R the number of shards"
    )
    statement: str = Field(description="the verdict in words")


class Rates(_Answer):
    """A rate with everything that it depends on."""

    model_config = _example(
        {
            "value": 40.0, "numerator": 360, "seconds": 9.0, "unit": "targets/s",
            "includes_skipped": False, "includes_recomputed": True,
            "statement": "40 applied valid targets per second of update time, over the run, for the job.",
        }
    )

    value: Measured = Field(description="in `unit`; null when the denominator is 0")
    numerator: Total = Field(description="exact count; null where an update lacks the quantity")
    seconds: Measured = Field(description="the denominator, in seconds")
    unit: str = Field(description="e.g. `targets/s`")
    includes_skipped: bool = Field(description="whether skipped work is in the numerator")
    includes_recomputed: bool = Field(description="whether work that was redone or lost is in the numerator")
    statement: str = Field(description="the rate in one sentence that a report can quote")


class Finding(_Answer):
    """Something that does not fit together, with the numbers that disagree."""

    kind: str = Field(description="one of the closed list of kinds")
    attempt: str | None = Field(default=None, description="where: the launch")
    update: Annotated[int | None, Field(ge=0)] = Field(default=None, description="where: the update's number")
    retry: Annotated[int | None, Field(ge=0)] = Field(default=None, description="where: the try at that number")
    rank: Annotated[int | None, Field(ge=0)] = Field(default=None, description="where: the training process")
    quantity: str | None = Field(default=None, description="what disagrees")
    expected: Any = Field(default=None, description="what it should be, or what others say")
    found: Any = Field(default=None, description="what it is")
    message: str = Field(description="what disagrees and what to do, in words")
    open: bool = Field(description="false once it is settled")


class FindingList(_Answer):
    """Findings, a page at a time."""

    model_config = _example(
        {
            "findings": [
                {
                    "kind": "replica_mismatch", "attempt": "a1", "update": 3, "retry": 0, "rank": 1, "quantity": "valid_targets",
                    "expected": 7, "found": 6, "message": "rank 1 counts 6 valid targets, its replica 7", "open": True,
                }
            ],
            "next_cursor": None,
        }
    )

    findings: list[Finding] = Field(description="by kind and place")
    next_cursor: Cursor = None


class Checkpoint(_Answer):
    """A saved state and what became of it."""

    checkpoint: str = Field(description="its name")
    attempt: str = Field(description="its owner")
    update: Annotated[int | None, Field(ge=0)] = Field(description="the last update that it contains")
    state: Literal["started", "accepted", "rejected"] = Field(description="what became of it")
    accepted_by: Literal["event", "resume"] | None = Field(description="an event, or an attempt that could resume from it")
    origin: str = Field(description="an event, or only the declaration of an attempt that resumed from it")
    on_trajectory: bool = Field(description="whether it lies on the path to the head")
    positions: dict[str, Any] | None = Field(description="declared data position by stream")
    uri: str | None = Field(description="where it was saved")


class CheckpointList(_Answer):
    """Checkpoints, a page at a time."""

    model_config = _example(
        {
            "checkpoints": [
                {
                    "checkpoint": "c4", "attempt": "a1", "update": 4, "state": "accepted", "accepted_by": "event",
                    "origin": "event", "on_trajectory": True, "positions": {}, "uri": None,
                }
            ],
            "next_cursor": None,
        }
    )

    checkpoints: list[Checkpoint] = Field(description="in the order of attempts and updates")
    next_cursor: Cursor = None


class PathStretch(_Answer):
    """A stretch of the path to a checkpoint, in update numbers."""

    project: str = Field(description="the run's project")
    run: str = Field(description="the run that the stretch belongs to")
    attempt: str = Field(description="the launch that the stretch belongs to")
    after: Annotated[int | None, Field(ge=0)] = Field(description="the last update before the stretch")
    through: Annotated[int | None, Field(ge=0)] = Field(description="the last update of the stretch")


class CheckpointExposure(Checkpoint):
    """All work that led to a checkpoint, across runs where one was forked from another."""

    model_config = _example(
        {
            "checkpoint": "c4", "attempt": "a1", "update": 4, "state": "accepted", "accepted_by": "event", "origin": "event",
            "on_trajectory": True, "positions": {}, "uri": None,
            "path": [{"project": "default", "run": "demo", "attempt": "a1", "after": 0, "through": 4}],
            "updates": {"applied": 4, "skipped": 0},
            "exposure": {"valid_targets": {"applied": 144, "skipped": 0}},
            "streams": [],
        }
    )  # fmt: skip

    path: list[PathStretch] = Field(description="oldest stretch first")
    updates: dict[str, Whole] = Field(description="by outcome, in updates")
    exposure: dict[str, dict[str, Total]] = Field(description="quantity -> outcome, each in the quantity's own unit")
    streams: list[StreamCoverage] = Field(description="the data that was drawn along the path")
