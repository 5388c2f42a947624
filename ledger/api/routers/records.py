"""The record of an experiment, and records side by side."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ledger.api.answering import Numbers, answer
from ledger.api.dependencies import Project, Run, Service
from ledger.api.problems import problems
from ledger.api.schemas.records import Comparison, Record
from ledger.services.juxtaposition import LEAST_RUNS, MOST_RUNS, compare
from ledger.services.record import record
from ledger.services.reports import open_books

MOST_POINTS = 1000
RUN_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
READS = problems(404, 422, 500, 503)
router = APIRouter(tags=["reports"])


@router.get("/v1/projects/{project}/runs/{run}/record", response_model=Record, responses=READS)
def read_record(running: Service, project: Project, run: Run, integers: Numbers = "number") -> Response:
    """What must stay attached to an experiment with the batch size, in one document with its offset and digest."""
    with open_books(running.reports, project, run) as books:
        return answer(record(books), integers)


@router.get("/v1/compare", response_model=Comparison, responses=READS)
def read_comparison(
    running: Service,
    run: Annotated[
        list[Annotated[str, Query(pattern=RUN_PATTERN)]],
        Query(min_length=LEAST_RUNS, max_length=MOST_RUNS, description="PROJECT/RUN, once for each run"),
    ],
    at: Annotated[
        Literal["applied_updates", "valid_targets", "consumed_tokens"], Query(description="what the curves are laid side by side at")
    ] = "applied_updates",
    points: Annotated[int, Query(ge=1, le=MOST_POINTS, description="most places of the curves")] = 100,
    integers: Numbers = "number",
) -> Response:
    """Runs side by side: what differs first, exposure in every unit, losses at equal places."""
    named = [(project, name) for project, _, name in (item.partition("/") for item in run)]
    return answer(compare(running.reports, named, at, points), integers)
