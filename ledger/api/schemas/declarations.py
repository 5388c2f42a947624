"""What is declared about runs and attempts: bodies that open, end, change and settle them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ledger.api.schemas.fields import Count, Free, Moment, Name, Rank, Size, Slug, Text
from ledger.domain.conventions import SCHEDULE_CLOCKS
from ledger.domain.layout import AXES, DEFAULT_ORDER

ORDER_PATTERN = r"^(dp|tp|pp|cp)(-(dp|tp|pp|cp)){0,3}$"
ENDS = Literal["completed", "crashed", "preempted", "stopped"]
MOST_RANKS = 2**20


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DataConventions(_Strict):
    """How data ranges are to be read."""

    unit: Literal["position", "id"] | None = Field(default=None, description="ranges are sampler positions, or sample ids")
    repeats_expected: bool | None = Field(default=None, description="data is drawn more than once in an epoch on purpose")
    order_fingerprint: Text | None = Field(default=None, description="changes whenever the order of the data does")


class Conventions(_Strict):
    """What the numbers of a run mean; an attempt's lie over the run's."""

    objective: Text | None = Field(default=None, description="what is minimised, e.g. `token_mean`")
    gradient_reducer: Text | None = Field(default=None, description="`mean` or `sum`, and over which ranks")
    accumulation_divides: Free | None = Field(default=None, description="who divides by the accumulation count")
    remainder_policy: Literal["renormalize", "carry", "drop"] | None = Field(default=None, description="what happens to a short last group")
    schedule_clock: Literal[SCHEDULE_CLOCKS] | None = Field(  # type: ignore[valid-type]
        default=None, description="what moves the learning-rate schedule"
    )
    optimizer: Free | None = Field(default=None, description="the optimizer and its settings")
    precision: Text | None = Field(default=None, description="e.g. `bf16`")
    sequence_length: Count | None = Field(default=None, description="length of a sequence, in slots")
    target_rule: Text | None = Field(default=None, description="what makes a prediction target eligible")
    sample_meaning: Text | None = Field(default=None, description="what a sample is: a sequence, a document, …")
    accelerators: Annotated[int, Field(strict=True, ge=1, le=2**24)] | None = Field(
        default=None, description="accelerators of the job, where that is not its world size"
    )
    data: DataConventions | None = Field(default=None, description="how data ranges are to be read")
    extra: dict[Name, Free] | None = Field(default=None, description="anything else worth keeping with the run")


class Fork(_Strict):
    """The checkpoint of another run that this one starts from."""

    project: Slug
    run: Slug
    checkpoint: Name
    attempt: Slug | None = Field(default=None, description="its owner, where the name was saved in more than one attempt")


class RunDeclaration(_Strict):
    """Opens a run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"conventions": {"objective": "token_mean", "gradient_reducer": "mean", "sequence_length": 4096}}]}
    )

    conventions: Conventions = Field(default_factory=Conventions, description="what the numbers of the run mean")
    forked_from: Fork | None = Field(default=None, description="where the run was forked from another")


class ResumePoint(_Strict):
    """The checkpoint that an attempt continues from."""

    checkpoint: Name
    attempt: Slug | None = Field(default=None, description="its owner, where the name was saved in more than one attempt")
    update: Count | None = Field(default=None, description="the last update that it contains, where its events may never arrive")


class LayoutDeclaration(_Strict):
    """Which rank holds which part of an update: either axes with their order, or the shards outright."""

    dp: Size | None = Field(default=None, description="data-parallel size, in ranks")
    tp: Size | None = Field(default=None, description="tensor-parallel size, in ranks")
    pp: Size | None = Field(default=None, description="pipeline-parallel size, in ranks")
    cp: Size | None = Field(default=None, description="context-parallel size, in ranks")
    order: Annotated[str, Field(pattern=ORDER_PATTERN)] | None = Field(
        default=None, description="axes of the rank number, the first varies fastest; `tp-cp-dp-pp` if left out"
    )
    cp_counts: Literal["shard", "whole"] | None = Field(
        default=None, description="whether a context-parallel rank counts its slice or the whole sequence; `shard` if left out"
    )
    shards: Annotated[list[Count], Field(min_length=1, max_length=MOST_RANKS, fail_fast=True)] | None = Field(
        default=None, description="the shard of each rank"
    )
    dp_ranks: Annotated[list[Count], Field(min_length=1, max_length=MOST_RANKS, fail_fast=True)] | None = Field(
        default=None, description="the data-parallel rank of each rank"
    )

    @model_validator(mode="after")
    def _one_way(self) -> "LayoutDeclaration":
        axes = [name for name in (*AXES, "order", "cp_counts") if getattr(self, name) is not None]
        if self.shards is not None and axes:
            raise PydanticCustomError("one_way", "a layout gives either its axes or its shards")
        if self.dp_ranks is not None and self.shards is None:
            raise PydanticCustomError("shards_missing", "dp_ranks needs shards beside it")
        if self.shards is None:
            self._fill_axes()
        return self

    def _fill_axes(self) -> None:
        # Two ranks that say the same in more or fewer words must not look as if they contradicted each other.
        for axis in AXES:
            setattr(self, axis, getattr(self, axis) or 1)
        self.order = self.order or DEFAULT_ORDER
        self.cp_counts = self.cp_counts or "shard"


class AttemptDeclaration(_Strict):
    """Opens an attempt; every rank may send it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "resumed_from": {"checkpoint": "c4"},
                    "layout": {"dp": 2, "tp": 2, "pp": 1, "cp": 1, "order": "tp-cp-dp-pp", "cp_counts": "shard"},
                    "conventions": {},
                    "started_at": "2026-11-29T12:00:00Z",
                    "rank": 0,
                }
            ]
        }
    )

    resumed_from: ResumePoint | None = Field(default=None, description="null: from scratch; left out in a fork: from the fork's checkpoint")
    layout: LayoutDeclaration | None = Field(default=None, description="ranks and shards; one rank if left out")
    conventions: Conventions = Field(default_factory=Conventions, description="lie over the run's")
    started_at: Moment | None = Field(default=None, description="when the launch began; the earliest one told stands")
    rank: Rank | None = Field(default=None, description="who declares")


class AttemptChange(_Strict):
    """Ends an attempt, or settles which checkpoint it resumed from."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ended": "crashed", "ended_at": "2026-11-29T15:00:00Z"}]})

    ended: ENDS | None = Field(default=None, description="how it ended")
    ended_at: Moment | None = Field(default=None, description="when; the time of its last event if left out")
    resumed_from: ResumePoint | None = Field(default=None, description="settles a `resume_conflict`; null: from scratch")

    @model_validator(mode="after")
    def _something(self) -> "AttemptChange":
        if self.ended is None and "resumed_from" not in self.model_fields_set:
            raise PydanticCustomError("nothing_to_change", "give ended, resumed_from or both")
        return self


class Resolution(_Strict):
    """An operator's word on a held update; it is kept in the journal."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"update": 5, "retry": 0, "outcome": "applied", "by": "kim", "why": "rank 3 logged a stale flag"}]}
    )

    update: Count = Field(description="number of the held update")
    retry: Count = Field(default=0, description="which try at that number")
    rank: Rank | None = Field(default=None, description="the rank whose word stands")
    outcome: Literal["applied", "skipped", "abandoned"] | None = Field(default=None, description="the outcome that stands")
    by: Name = Field(description="who settled it")
    why: Text = Field(description="on what grounds")

    @model_validator(mode="after")
    def _one_ground(self) -> "Resolution":
        if (self.rank is None) == (self.outcome is None):
            raise PydanticCustomError("one_ground", "give either rank or outcome")
        return self


def plain(declaration: BaseModel) -> dict[str, Any]:
    """A checked declaration as JSON values; null means left out, but for `resumed_from`, where it means from scratch."""
    values = declaration.model_dump(mode="json", exclude_none=True)
    if "resumed_from" in declaration.model_fields_set:
        values.setdefault("resumed_from", None)
    return values
