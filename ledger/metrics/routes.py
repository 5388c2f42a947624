"""Where Prometheus scrapes: plain functions, so that a slow reading never holds up the event loop."""

from typing import Any, Protocol, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ledger.metrics.exposition import Exposition

router = APIRouter(tags=["service"])
TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text, or OpenMetrics by `Accept`.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class _Running(Protocol):
    exposition: Exposition


def _exposition_of(request: Request) -> Exposition:
    return cast("_Running", request.app.state.running).exposition


@router.get("/metrics", responses=TEXT, response_class=Response)
def metrics(request: Request) -> Response:
    """Families of runs, and of this server process."""
    body, media_type = _exposition_of(request).page(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": media_type})


@router.get("/metrics/runs", responses=TEXT, response_class=Response)
def runs_metrics(request: Request) -> Response:
    """Families of runs alone: the same whichever replica is asked."""
    body, media_type = _exposition_of(request).runs_page(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": media_type})
