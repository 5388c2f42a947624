"""Attempts: open, end or correct, and settle what ranks contradict each other about."""

from fastapi import APIRouter
from fastapi.responses import Response

from ledger.api.answering import answer
from ledger.api.dependencies import Attempt, AttemptBody, ChangeBody, Project, ResolutionBody, Run, Service, takes
from ledger.api.problems import problems
from ledger.api.schemas.answers import AttemptAnswer, ChangeAnswer, ResolutionAnswer
from ledger.api.schemas.declarations import AttemptChange, AttemptDeclaration, Resolution
from ledger.services import registration

WRITES = (400, 403, 404, 409, 413, 415, 422, 500, 503)
router = APIRouter(tags=["attempts"], prefix="/v1/projects/{project}/runs/{run}/attempts/{attempt}")


@router.put(
    "",
    response_model=AttemptAnswer,
    status_code=201,
    responses={200: {"model": AttemptAnswer, "description": "It was open already."}, **problems(*WRITES)},
    openapi_extra=takes(AttemptDeclaration),
)
def open_attempt(running: Service, project: Project, run: Run, attempt: Attempt, declaration: AttemptBody) -> Response:
    """Open an attempt; every rank of it may call this."""
    reports = running.reports
    opened, created = registration.open_attempt(reports.store, project, run, attempt, declaration, reports.clock())
    return answer(opened, status=201 if created else 200)


@router.patch("", response_model=ChangeAnswer, responses=problems(*WRITES), openapi_extra=takes(AttemptChange))
def change_attempt(running: Service, project: Project, run: Run, attempt: Attempt, change: ChangeBody) -> Response:
    """End an attempt, or settle a `resume_conflict`."""
    reports = running.reports
    return answer(registration.change_attempt(reports.store, project, run, attempt, change, reports.clock()))


@router.post("/resolutions", response_model=ResolutionAnswer, responses=problems(*WRITES), openapi_extra=takes(Resolution))
def resolve_update(running: Service, project: Project, run: Run, attempt: Attempt, resolution: ResolutionBody) -> Response:
    """Settle a held update on an operator's word, which is kept."""
    reports = running.reports
    return answer(registration.resolve_update(reports.store, project, run, attempt, resolution, reports.clock()))
