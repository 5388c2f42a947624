"""Reports: what became of a run's work, always as of an offset of its journal."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from ledger.api.answering import Numbers, answer
from ledger.api.cursors import opened, sealed
from ledger.api.dependencies import Cursor, Limit, Project, Run, Service, page_size
from ledger.api.problems import problems
from ledger.api.schemas.answers import (
    CheckpointExposure,
    CheckpointList,
    Coverage,
    Exposure,
    FindingList,
    Objective,
    Rates,
    UpdateList,
)
from ledger.api.schemas.courses import AttemptTree, Course
from ledger.api.schemas.fields import SLUG_PATTERN
from ledger.domain.findings import KINDS
from ledger.services import reports
from ledger.services.reports import open_books

READS = problems(404, 422, 500, 503)
MOST_POINTS = 10_000
WINDOW_PATTERN = r"^(run|attempt:[A-Za-z0-9][A-Za-z0-9._-]{0,127}|last:\d{1,12}(\.\d{1,9})?s|updates:\d{1,16}-\d{1,16})$"
Quantity = Literal["input_slots", "consumed_tokens", "valid_targets", "samples", "updates"]
FindingKind = Literal[KINDS]  # type: ignore[valid-type]
Checkpoint = Annotated[str, Path(min_length=1, max_length=256, description="name of the checkpoint")]
router = APIRouter(tags=["reports"], prefix="/v1/projects/{project}/runs/{run}")


@router.get("/exposure", response_model=Exposure, responses=READS)
def read_exposure(
    running: Service,
    project: Project,
    run: Run,
    head: Annotated[str | None, Query(pattern=SLUG_PATTERN, description="report as if this attempt were the head")] = None,
    integers: Numbers = "number",
) -> Response:
    """Balance, matrix, updates, trajectory and completeness."""
    with open_books(running.reports, project, run, head) as books:
        return answer(reports.exposure(books), integers)


@router.get("/coverage", response_model=Coverage, responses=READS)
def read_coverage(
    running: Service, project: Project, run: Run, cursor: Cursor = None, limit: Limit = 1000, integers: Numbers = "number"
) -> Response:
    """Data exposure by stream and epoch."""
    with open_books(running.reports, project, run) as books:
        return answer(sealed(reports.coverage(books, opened(cursor), page_size(limit))), integers)


@router.get("/updates", response_model=UpdateList, responses=READS)
def read_updates(
    running: Service,
    project: Project,
    run: Run,
    cursor: Cursor = None,
    limit: Limit = 100,
    points: Annotated[int | None, Query(ge=1, le=MOST_POINTS, description="this many rows, spread evenly over the whole range")] = None,
    integers: Numbers = "number",
) -> Response:
    """Updates in order, a page at a time, or evenly spread ones."""
    with open_books(running.reports, project, run) as books:
        return answer(sealed(reports.updates(books, opened(cursor), page_size(limit), points)), integers)


@router.get("/course", response_model=Course, responses=READS)
def read_course(
    running: Service,
    project: Project,
    run: Run,
    first: Annotated[int | None, Query(ge=0, le=2**53, description="first update number of the range")] = None,
    last: Annotated[int | None, Query(ge=0, le=2**53, description="last update number of the range")] = None,
    points: Annotated[int, Query(ge=1, le=MOST_POINTS, description="about this many stretches over the range")] = 400,
    integers: Numbers = "number",
) -> Response:
    """Valid-token batch, occupancy and losses along the trajectory as envelopes, for charts of any number of updates."""
    with open_books(running.reports, project, run) as books:
        return answer(reports.course(books, first, last, points), integers)


@router.get("/trajectory", response_model=AttemptTree, responses=READS)
def read_trajectory(running: Service, project: Project, run: Run, integers: Numbers = "number") -> Response:
    """The attempts as a tree in time: what each resumed from, how far it came, and what became of its updates."""
    with open_books(running.reports, project, run) as books:
        return answer(reports.lineage(books), integers)


@router.get("/objective", response_model=Objective, responses=READS)
def read_objective(running: Service, project: Project, run: Run, integers: Numbers = "number") -> Response:
    """The token mean against the other means, and the verdict on the reported loss."""
    with open_books(running.reports, project, run) as books:
        return answer(reports.objective(books), integers)


@router.get("/rates", response_model=Rates, responses=READS)
def read_rates(
    running: Service,
    project: Project,
    run: Run,
    quantity: Annotated[Quantity, Query(description="what is counted")] = "valid_targets",
    work: Annotated[Literal["attempted", "applied", "trajectory", "preserved"], Query(description="which work is counted")] = "applied",
    time: Annotated[str, Query(max_length=128, description="update, checkpoint, evaluation, idle, downtime (any), or wall")] = "update",
    window: Annotated[str, Query(pattern=WINDOW_PATTERN, description="run, attempt:ID, last:300s or updates:A-B")] = "run",
    per: Annotated[Literal["job", "accelerator"], Query(description="for the whole job, or for one accelerator")] = "job",
    integers: Numbers = "number",
) -> Response:
    """A rate with its conventions, and a sentence that a report can quote."""
    with open_books(running.reports, project, run) as books:
        return answer(reports.rate(books, quantity, work, list(dict.fromkeys(time.split(","))), window, per), integers)


@router.get("/findings", response_model=FindingList, responses=READS)
def read_findings(
    running: Service,
    project: Project,
    run: Run,
    cursor: Cursor = None,
    limit: Limit = 100,
    kind: Annotated[FindingKind | None, Query(description="only findings of this kind")] = None,
    integers: Numbers = "number",
) -> Response:
    """What does not fit together, with the numbers that disagree."""
    with open_books(running.reports, project, run) as books:
        return answer(sealed(reports.findings(books, opened(cursor), page_size(limit), kind)), integers)


@router.get("/checkpoints", response_model=CheckpointList, responses=READS)
def read_checkpoints(
    running: Service, project: Project, run: Run, cursor: Cursor = None, limit: Limit = 100, integers: Numbers = "number"
) -> Response:
    """Checkpoints and what became of them."""
    with open_books(running.reports, project, run) as books:
        return answer(sealed(reports.checkpoints(books, opened(cursor), page_size(limit))), integers)


@router.get("/checkpoints/{checkpoint:path}/exposure", response_model=CheckpointExposure, responses=READS)
def read_checkpoint_exposure(
    running: Service,
    project: Project,
    run: Run,
    checkpoint: Checkpoint,
    attempt: Annotated[str | None, Query(pattern=SLUG_PATTERN, description="its owner, where the name was saved more than once")] = None,
    update: Annotated[int | None, Query(ge=0, le=2**53, description="its update, where the name was saved more than once")] = None,
    integers: Numbers = "number",
) -> Response:
    """All work that led to a checkpoint, across forks."""
    with open_books(running.reports, project, run) as books:
        return answer(reports.checkpoint_exposure(books, checkpoint, attempt, update), integers)
