"""What the calls of the sampling lab answer."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ledger.api.schemas.answers import Whole

Share = Annotated[float, Field(ge=0, le=1)]


class BinomialAnswer(BaseModel):
    """How many of n independent draws succeed: each mass, and what that predicts of the sample mean."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"p": 0.5, "n": 2, "masses": [0.25, 0.5, 0.25], "mean": 0.5, "variance": 0.125}]},
    )

    p: Share = Field(description="probability that one draw succeeds, a share between 0 and 1")
    n: Annotated[int, Field(ge=1)] = Field(description="independent draws in a sample, in draws")
    masses: list[Share] = Field(description="probability of 0, 1, … n successes, each rounded to a double once")
    mean: Share = Field(description="expected sample mean: p")
    variance: float = Field(description="variance of the sample mean: p (1 - p) / n")


class WeighedRank(BaseModel):
    """One data-parallel rank's part of an update."""

    rank: Whole = Field(description="its place among the data-parallel ranks")
    valid_targets: Whole = Field(description="its valid targets, in targets")
    loss_sum: float = Field(description="sum of the losses over them, in nats")
    mean: float | None = Field(description="loss sum / valid targets, in nats; null where it has no targets")


class LossScale(BaseModel):
    """A factor on each rank's loss sum, and what it does to the gradient."""

    rule: Literal["R/T", "1/T", "1/n"] = Field(description="the factor as a formula: R ranks, T targets in all, n on the rank itself")
    scale: float | None = Field(description="its value; null where each rank has its own")
    gradient_factors: list[float | None] = Field(
        description="by rank: how much one of its targets weighs against the gradient of the token mean; null where it has no targets"
    )


class WeighedAnswer(BaseModel):
    """One update with unequal valid targets on its ranks: the means side by side, and the scale that gives the token mean's gradient."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "ranks": [
                        {"rank": 0, "valid_targets": 30, "loss_sum": 60.0, "mean": 2.0},
                        {"rank": 1, "valid_targets": 10, "loss_sum": 40.0, "mean": 4.0},
                    ],
                    "gradient_reducer": "mean",
                    "rank_count": 2,
                    "valid_targets": 40,
                    "token_mean": 2.5,
                    "mean_of_rank_means": 3.0,
                    "loss_scale_rule": "R/T",
                    "loss_scale": 0.05,
                    "scales": [{"rule": "R/T", "scale": 0.05, "gradient_factors": [1.0, 1.0]}],
                    "statement": "The ranks hold unequal numbers of valid targets.",
                }
            ]
        },
    )

    ranks: list[WeighedRank] = Field(description="by rank")
    gradient_reducer: Literal["mean", "sum"] = Field(description="how gradients are brought together over the data-parallel ranks")
    rank_count: Annotated[int, Field(ge=1)] = Field(description="R, the data-parallel ranks, in ranks")
    valid_targets: Whole = Field(description="T, the valid-token batch, in targets")
    token_mean: float | None = Field(description="sum of losses / T, in nats; null where T is 0")
    mean_of_rank_means: float | None = Field(description="over the ranks that have targets, in nats; null where none has")
    loss_scale_rule: Literal["R/T", "1/T"] = Field(description="the loss scale of the global token mean under this reducer")
    loss_scale: float | None = Field(description="its value; null where T is 0")
    scales: list[LossScale] = Field(description="ways to scale, and what each does to the gradient; none where T is 0")
    statement: str = Field(description="what the numbers come to, in words")
