"""Runs: open, list, describe."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ledger.api.answering import Numbers, answer
from ledger.api.cursors import opened, sealed
from ledger.api.dependencies import Cursor, Limit, Project, Run, RunBody, Service, page_size, takes
from ledger.api.problems import problems
from ledger.api.schemas.answers import RunAnswer, RunList
from ledger.api.schemas.declarations import RunDeclaration
from ledger.api.schemas.fields import SLUG_PATTERN
from ledger.services import registration

WRITES = (400, 403, 409, 413, 415, 422, 500, 503)
router = APIRouter(tags=["runs"])


@router.get("/v1/runs", response_model=RunList, responses=problems(422, 500))
def list_runs(
    running: Service,
    project: Annotated[str | None, Query(pattern=SLUG_PATTERN, description="only runs of this project")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    integers: Numbers = "number",
) -> Response:
    """Runs in the order of their names, a page at a time."""
    return answer(sealed(registration.list_runs(running.reports.store, project, opened(cursor), page_size(limit))), integers)


@router.put(
    "/v1/projects/{project}/runs/{run}",
    response_model=RunAnswer,
    status_code=201,
    responses={200: {"model": RunAnswer, "description": "It was open already, declared the same."}, **problems(*WRITES)},
    openapi_extra=takes(RunDeclaration),
)
def open_run(running: Service, project: Project, run: Run, declaration: RunBody) -> Response:
    """Open a run; the same declaration again is fine."""
    reports = running.reports
    opened, created = registration.open_run(reports.store, project, run, declaration, reports.clock())
    return answer(opened, status=201 if created else 200)


@router.get("/v1/projects/{project}/runs/{run}", response_model=RunAnswer, responses=problems(404, 422, 500))
def describe_run(running: Service, project: Project, run: Run, integers: Numbers = "number") -> Response:
    """One run with its attempts, conventions and forks."""
    return answer(registration.describe_run(running.reports.store, project, run), integers)
