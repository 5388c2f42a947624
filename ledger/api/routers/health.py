"""Whether the process lives, and whether it can take requests."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from ledger.api.answering import answer
from ledger.api.dependencies import Service
from ledger.api.problems import problems
from ledger.api.refusals import NotReady

router = APIRouter(tags=["service"])
ALIVE = {"status": "ok"}
EXAMPLE: dict[str, Any] = {"content": {"application/json": {"example": ALIVE}}}


@router.get("/healthz", responses={200: EXAMPLE})
@router.get("/livez", responses={200: EXAMPLE})
async def alive() -> Response:
    """The process answers; nothing else is asked."""
    return answer(ALIVE)


@router.get("/readyz", responses={200: EXAMPLE, **problems(503)})
def ready(running: Service) -> Response:
    """The database is reached, its schema is current, and the queue is not full."""
    try:
        current = running.schema_is_current()
    except Exception as error:
        raise NotReady("the database cannot be reached") from error
    if not current:
        raise NotReady("the database schema is not the one of this version: run `ledger db upgrade`")
    if running.gate.waiting >= running.gate.batches:
        raise NotReady("the queue is full")
    return answer(ALIVE)
