"""What the calls answer that keep an experiment together: its record, and records side by side."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ledger.api.schemas.answers import AsOf, Balance, CheckpointPlace, Measured, Rates, Segment, Total, UpdateCounts, Whole

AS_OF = {"events": 20, "at": "2026-11-29T12:00:07Z", "head": "a1", "complete_through_update": 4}
DIGEST = "sha256:" + 64 * "0"
OFFSET: dict[str, Any] = {"project": "default", "run": "demo", "as_of": AS_OF, "digest": DIGEST}
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Number = Annotated[int | None, Field(ge=0)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class RecordTopology(_Answer):
    """How the ranks of an attempt held its updates."""

    data_parallel_ranks: Whole = Field(description="R, in ranks")
    shards: Whole = Field(description="distinct parts of an update, in shards")
    ranks: Whole = Field(description="training processes, in ranks")
    accelerators: Number = Field(description="as declared; null: not declared")


class RecordAttempt(_Answer):
    """What held in one attempt."""

    attempt: str = Field(description="the launcher's own id")
    on_trajectory: bool = Field(description="whether the path to the head goes through it")
    after: Number = Field(description="the last update before its stretch of the trajectory; null: off it")
    through: Number = Field(description="the last update of its stretch; null: off it")
    conventions: dict[str, Any] = Field(description="the run's with the attempt's over them")
    loss_scale_rule: Literal["R/T", "1/T"] = Field(description="the scale that gives the gradient of the global token mean")
    sequence_length: Any = Field(description="as declared, in tokens; null: not declared")
    topology: RecordTopology = Field(description="its ranks")


class RecordStream(_Answer):
    """A stream's share of the data that applied updates of the trajectory drew."""

    stream: str = Field(description="name of the stream")
    unit: Literal["position", "id"] = Field(description="what is counted: sampler positions or sample ids")
    epochs: Whole = Field(description="epochs that anything was drawn from")
    effective_total: Whole = Field(description="drawn, repeats counted, in `unit`s")
    effective_unique: Whole = Field(description="drawn at least once in an epoch, in `unit`s")
    share: Annotated[float | None, Field(ge=0, le=1)] = Field(description="of all streams together, a share between 0 and 1")


class ValidTokenBatch(_Answer):
    """How the valid-token batch of applied updates on the trajectory is distributed."""

    unit: Literal["targets"] = Field(description="what every figure counts")
    updates: Whole = Field(description="applied updates on the trajectory, in updates")
    updates_unknown: Whole = Field(description="of them those whose batch is unknown, in updates; they are in no figure here")
    lowest: Total = Field(description="in targets; null: unknown")
    highest: Total = Field(description="in targets; null: unknown")
    mean: float | None = Field(description="in targets; null: unknown")
    quantiles: dict[str, Total] = Field(description="by share, nearest rank, in targets; null: unknown")
    quantiles_from: Whole = Field(description="updates that the quantiles were read from, in updates")
    quantiles_exact: bool = Field(description="whether that is every update with a known batch; else they are spread evenly over the run")


class RecordExposure(_Answer):
    """Where the work ended up."""

    updates: UpdateCounts = Field(description="attempted updates by outcome, in updates")
    balance: dict[str, Balance] = Field(description="by quantity")
    recomputed: dict[str, Total] = Field(description="by quantity: work whose update number had been attempted before")
    evaluation: dict[str, Total] = Field(description="by quantity: outside the balance")
    passed_over: dict[str, Whole] = Field(description="data jumped on purpose, in samples")
    occupancy: dict[str, float | None] = Field(description="shares between 0 and 1; null where a total is unknown")


class RecordObjective(_Answer):
    """What the reported loss is."""

    updates_compared: Whole = Field(description="applied updates that report a loss, in updates")
    token_mean_of_last: Measured = Field(description="of the newest applied update, in nats")
    reported_loss_is: str | None = Field(description="the mean that the reported losses equal")
    loss_scale_rule: str | None = Field(description="at the head")
    statement: str = Field(description="the verdict in words")


EXAMPLE: dict[str, Any] = {
    "project": "default",
    "run": "demo",
    "as_of": AS_OF,
    "forked_from": None,
    "trajectory": [{"attempt": "a1", "after": 0, "through": 4}],
    "accepted_checkpoint": {"checkpoint": "c4", "attempt": "a1", "update": 4},
    "attempts": [
        {
            "attempt": "a1", "on_trajectory": True, "after": 0, "through": 4, "conventions": {"objective": "token_mean"},
            "loss_scale_rule": "R/T", "sequence_length": None,
            "topology": {"data_parallel_ranks": 2, "shards": 2, "ranks": 2, "accelerators": None},
        }
    ],
    "conventions_changed": [],
    "streams": [{"stream": "train", "unit": "position", "epochs": 1, "effective_total": 16, "effective_unique": 16, "share": 1.0}],
    "valid_token_batch": {
        "unit": "targets", "updates": 4, "updates_unknown": 0, "lowest": 36, "highest": 36, "mean": 36.0,
        "quantiles": {"0.5": 36}, "quantiles_from": 4, "quantiles_exact": True,
    },
    "exposure": {
        "updates": {
            "attempted": 4, "applied": 4, "skipped": 0, "abandoned": 0, "held": 0, "discarded_groups": 0,
            "preserved": 4, "pending": 0, "lost_to_restart": 0, "recomputed": 0,
        },
        "balance": {}, "recomputed": {"valid_targets": 0}, "evaluation": {"valid_targets": 0}, "passed_over": {"samples": 0},
        "occupancy": {"valid_targets_per_input_slot": 0.976},
    },
    "objective": {
        "updates_compared": 4, "token_mean_of_last": 2.5, "reported_loss_is": "token_mean", "loss_scale_rule": "R/T",
        "statement": "In 4 of 4 updates the reported loss is the token mean; the loss scale of the global token mean is R/T.",
    },
    "rates": [],
    "digest": DIGEST,
}  # fmt: skip


class Record(_Answer):
    """What must stay attached to an experiment with the batch size, at one offset."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLE]})

    project: str = Field(description="name of the project")
    run: str = Field(description="name of the run in its project")
    as_of: AsOf = Field(description="the moment that the record reflects")
    forked_from: dict[str, Any] | None = Field(description="the checkpoint of another run that it began from; null: none")
    trajectory: list[Segment] = Field(description="oldest stretch first")
    accepted_checkpoint: CheckpointPlace | None = Field(description="the newest accepted one on the trajectory; null: nothing is preserved")
    attempts: list[RecordAttempt] = Field(description="oldest first")
    conventions_changed: list[str] = Field(description="conventions that are not the same in all attempts of the trajectory")
    streams: list[RecordStream] = Field(description="by name")
    valid_token_batch: ValidTokenBatch = Field(description="over applied updates on the trajectory")
    exposure: RecordExposure = Field(description="where the work ended up")
    objective: RecordObjective = Field(description="what the reported loss is")
    rates: list[Rates] = Field(description="each with its conventions and its sentence")
    digest: Digest = Field(
        description="SHA-256 of the record's canonical form: the document without `digest` as UTF-8 JSON with sorted keys and no spaces, "
        "numbers as Python's `json` writes them; the same for the same offset"
    )


class ComparedRun(_Answer):
    """One of the runs, at its own offset."""

    project: str = Field(description="name of the project")
    run: str = Field(description="name of the run in its project")
    as_of: AsOf = Field(description="the moment that its record reflects")
    digest: Digest = Field(description="of its record")


class Difference(_Answer):
    """Something that is not the same in all runs."""

    kind: Literal["convention", "topology", "sequence length", "origin", "data mixture", "valid-token batch"] = Field(description="of what")
    name: str = Field(description="its key")
    values: list[Any] = Field(description="by run; null: not declared; `changed` holds the values in order where they changed")


class ComparedTerm(_Answer):
    """One term of the balance in one unit."""

    quantity: str = Field(description="what is counted")
    unit: str = Field(description="its unit")
    term: str = Field(description="the term of the balance, or `recomputed`")
    values: list[Total] = Field(description="by run, in `unit`; null: unknown")
    known: list[Total] = Field(description="by run: what is known of it, in `unit`")


class RunCurve(_Answer):
    """The losses of one run at the places."""

    reach: Whole = Field(description="how far the run came along the axis, in its unit")
    known_throughout: bool = Field(description="false: the counts end at an update that lacks one, and so does the curve")
    exact: bool = Field(description="read update by update; else off stretches of up to a page of updates")
    last_update: list[Number] = Field(description="by place: the last update that lies before it")
    token_mean: list[float | None] = Field(description="by place: mean over the updates since the place before, in nats; null: none")
    reported_loss: list[float | None] = Field(description="by place: mean over the updates since the place before, in nats; null: none")


class Curves(_Answer):
    """Losses at equal places, over the range that all runs have come through."""

    at: Literal["applied_updates", "valid_targets", "consumed_tokens"] = Field(description="the axis, over applied work on the trajectory")
    unit: Literal["updates", "targets", "tokens"] = Field(description="of the places")
    places: list[Whole] = Field(description="in `unit`, growing")
    runs: list[RunCurve] = Field(description="by run")


CURVE: dict[str, Any] = {
    "reach": 4, "known_throughout": True, "exact": True, "last_update": [4], "token_mean": [2.5], "reported_loss": [2.5],
}  # fmt: skip
COMPARISON_EXAMPLE: dict[str, Any] = {
    "runs": [OFFSET, OFFSET | {"run": "larger"}],
    "differences": [{"kind": "convention", "name": "optimizer", "values": ["AdamW", "Lion"]}],
    "not_declared": [["precision"], []],
    "statements": ["Equal token counts are not equal gradients."],
    "exposure": [{"quantity": "valid_targets", "unit": "targets", "term": "preserved", "values": [144, 288], "known": [144, 288]}],
    "curves": {"at": "applied_updates", "unit": "updates", "places": [4], "runs": [CURVE, CURVE]},
    "records": [EXAMPLE, EXAMPLE | {"run": "larger"}],
}


class Comparison(_Answer):
    """Records side by side, what differs first."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [COMPARISON_EXAMPLE]})

    runs: list[ComparedRun] = Field(description="in the order of the request")
    differences: list[Difference] = Field(description="conventions first, then topology, sequence length, origin, data mixture, batch")
    not_declared: list[list[str]] = Field(description="by run: documented conventions that it does not declare, so cannot be compared")
    statements: list[str] = Field(description="what these figures do not show, in words")
    exposure: list[ComparedTerm] = Field(description="each term in every unit")
    curves: Curves = Field(description="losses at equal places")
    records: list[Record] = Field(description="the whole records")
