"""What the calls answer that tell how a run went: its attempts as a tree in time, and its updates as envelopes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ledger.api.schemas.answers import ENDED, FATE, AsOf, CheckpointPlace, Whole

AS_OF = {"events": 20, "at": "2026-11-29T12:00:07Z", "head": "a2", "complete_through_update": 7}


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="allow", json_schema_extra={"examples": [value]})


class SeriesEnvelope(_Answer):
    """What many updates have of one series; updates that lack it are not among them."""

    model_config = _example({"updates": 2, "mean": 36.0, "lowest": 35.0, "highest": 37.0})

    updates: Whole = Field(description="how many updates have a value, in updates")
    mean: float = Field(description="mean over those updates")
    lowest: float = Field(description="the lowest value")
    highest: float = Field(description="the highest value")


class StretchOfUpdates(_Answer):
    """Updates that lie next to each other on the trajectory, in one attempt and with one fate."""

    attempt: str = Field(description="the launch that they belong to")
    first: Whole = Field(description="the first number")
    last: Whole = Field(description="the last number")
    fate: FATE = Field(description="where they lie against preserved progress")
    updates: dict[str, Whole] = Field(description="how many had which outcome, in updates")
    series: dict[str, SeriesEnvelope] = Field(
        description="of the applied ones: valid_targets (targets), occupancy (ratio), token_mean (nats), and how far the mean of rank "
        "means (rank_gap) and of microbatch means (microbatch_gap) lie above the token mean (nats)"
    )


class UpdateRange(_Answer):
    """A range of update numbers, both ends included."""

    first: Whole = Field(description="the first number")
    last: Whole = Field(description="the last number")


class Course(_Answer):
    """The course of a run along its trajectory, in so many stretches."""

    model_config = _example(
        {
            "as_of": AS_OF,
            "first": 1,
            "last": 7,
            "exact": True,
            "trajectory": {"first": 1, "last": 7},
            "stretches": [
                {
                    "attempt": "a1",
                    "first": 1,
                    "last": 4,
                    "fate": "preserved",
                    "updates": {"applied": 4, "skipped": 0, "abandoned": 0, "held": 0},
                    "series": {"valid_targets": {"updates": 4, "mean": 36.0, "lowest": 36.0, "highest": 36.0}},
                }
            ],
        }
    )

    as_of: AsOf = Field(description="what the report reflects")
    first: Whole = Field(description="the first number of the range")
    last: Whole = Field(description="the last number of the range")
    exact: bool = Field(description="read update by update; else stretches are whole pages and may reach beyond the range")
    trajectory: UpdateRange | None = Field(description="the numbers on the whole trajectory; null: none")
    stretches: list[StretchOfUpdates] = Field(description="in the order of the trajectory")


class AttemptInTime(_Answer):
    """An attempt as a branch of the tree."""

    attempt: str = Field(description="the launcher's own id")
    parent: str | None = Field(description="the attempt that it continues; null: from scratch, or another run's")
    resumed_from: CheckpointPlace | dict[str, object] | None = Field(description="the checkpoint it resumed from; null: from scratch")
    first: Annotated[int | None, Field(ge=0)] = Field(description="the lowest update number that it attempted")
    last: Annotated[int | None, Field(ge=0)] = Field(description="the highest update number that it attempted")
    through: Annotated[int | None, Field(ge=0)] = Field(description="its last update on the trajectory; null: off it")
    undecided: str | None = Field(description="why its resume point is not known, where that is so")
    ended: ENDED | None = Field(description="how it ended; null while it has not")
    started_at: str | None = Field(description="RFC 3339")
    ended_at: str | None = Field(description="RFC 3339")
    updates: dict[str, Whole] = Field(description="its balance, in updates")
    recomputed: Whole = Field(description="updates whose numbers older attempts had attempted, in updates")
    checkpoints: dict[Literal["accepted", "started", "rejected"], Whole] = Field(description="its checkpoints by state")


class AttemptTree(_Answer):
    """The attempts of a run as a tree in time."""

    model_config = _example(
        {
            "as_of": AS_OF,
            "attempts": [
                {
                    "attempt": "a1",
                    "parent": None,
                    "resumed_from": None,
                    "first": 1,
                    "last": 7,
                    "through": 4,
                    "undecided": None,
                    "ended": "crashed",
                    "started_at": "2026-11-29T12:00:00Z",
                    "ended_at": "2026-11-29T12:00:07Z",
                    "updates": {"attempted": 7, "preserved": 4, "pending": 0, "lost_to_restart": 2, "skipped": 1, "dropped": 0},
                    "recomputed": 0,
                    "checkpoints": {"accepted": 1, "started": 0, "rejected": 0},
                }
            ],
        }
    )

    as_of: AsOf = Field(description="what the report reflects")
    attempts: list[AttemptInTime] = Field(description="oldest first")
