"""The sampling lab's arithmetic: computed here once, drawn by the page, and there for anybody's check."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ledger.api.answering import answer
from ledger.api.problems import problems
from ledger.api.schemas.lab import BinomialAnswer, WeighedAnswer
from ledger.domain.errors import InvalidRequest
from ledger.domain.quantities import LARGEST_COUNT
from ledger.domain.sampling import MOST_DRAWS, binomial_masses, sample_mean_variance
from ledger.domain.weighing import MOST_RANKS, weighed

LARGEST_LOSS = 1e15
Count = Annotated[int, Query(ge=0, le=LARGEST_COUNT)]
Loss = Annotated[float, Query(ge=-LARGEST_LOSS, le=LARGEST_LOSS, allow_inf_nan=False)]
router = APIRouter(tags=["lab"], prefix="/v1/lab")


@router.get("/binomial", response_model=BinomialAnswer, responses=problems(422, 500))
def read_binomial(
    p: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False, description="probability that one draw succeeds")],
    n: Annotated[int, Query(ge=1, le=MOST_DRAWS, description="independent draws in a sample")],
) -> Response:
    """The masses of the number of successes, and the mean and the variance of the sample mean."""
    return answer({"p": p, "n": n, "masses": binomial_masses(p, n), "mean": p, "variance": sample_mean_variance(p, n)})


@router.get("/ranks", response_model=WeighedAnswer, responses=problems(422, 500))
def read_ranks(
    valid_targets: Annotated[list[Count], Query(min_length=1, max_length=MOST_RANKS, description="of each data-parallel rank, in targets")],
    loss_sum: Annotated[list[Loss], Query(min_length=1, max_length=MOST_RANKS, description="of each data-parallel rank, in nats")],
    gradient_reducer: Annotated[Literal["mean", "sum"], Query(description="over the data-parallel ranks")] = "mean",
) -> Response:
    """The token mean, the mean of rank means and the loss scale of one update."""
    if len(valid_targets) != len(loss_sum):
        raise InvalidRequest("each rank has its valid targets and its loss sum: the two lists are equally long", pointer="/loss_sum")
    return answer(weighed(valid_targets, loss_sum, gradient_reducer))
