"""Events: a batch in, answered after its commit; the raw log out, as a stream."""

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from ledger.api.answering import answer
from ledger.api.dependencies import Attempt, Project, Run, Running, Service, parse, takes
from ledger.api.journal_export import FORMS, NDJSON, PARQUET, primed, wanted_form
from ledger.api.limits import check_origin, read_body
from ledger.api.problems import problems
from ledger.api.schemas.answers import Receipt
from ledger.api.schemas.batches import EventBatch, rank_events
from ledger.services import export

router = APIRouter(tags=["events"], prefix="/v1/projects/{project}/runs/{run}")
STREAM_CONTENT: dict[str, Any] = {
    NDJSON: {"schema": {"type": "string", "description": "one JSON object a line, in the order of offsets"}},
    PARQUET: {"schema": {"type": "string", "format": "binary", "description": "one row an entry"}},
}


def _record(running: Running, names: tuple[str, str, str], body: bytes, encoding: str) -> dict[str, Any]:
    ranks = rank_events(parse(EventBatch, body, encoding, running.limits.max_decompressed_bytes))
    receipt = running.ingestion.submit(*names, ranks)
    running.observe_batch(ranks, receipt)
    return receipt


@router.post(
    "/attempts/{attempt}/events",
    response_model=Receipt,
    responses=problems(400, 403, 404, 413, 415, 422, 500, 503),
    openapi_extra=takes(EventBatch),
)
async def post_events(running: Service, project: Project, run: Run, attempt: Attempt, request: Request) -> Response:
    """Record events of one or more ranks; the answer comes after the commit."""
    check_origin(request)
    with running.gate.entered():
        body = await read_body(request, running.limits)
        given = (running, (project, run, attempt), body, request.headers.get("content-encoding", ""))
        return answer(await anyio.to_thread.run_sync(_record, *given, limiter=running.gate.threads))


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"description": "The log in the accepted form.", "content": STREAM_CONTENT}, **problems(404, 406, 422, 500)},
)
def read_events(running: Service, project: Project, run: Run, request: Request) -> Response:
    """The raw log: NDJSON, or Parquet where `Accept` asks for it."""
    form = wanted_form(request.headers.get("accept", "*/*"))
    return StreamingResponse(primed(FORMS[form](export.events(running.reports.store, project, run))), media_type=form)
