"""The pages' addresses: runs, one run, the API's documentation."""

import pathlib
from typing import Annotated, Any, Literal, Protocol, cast

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from ledger.domain.errors import LedgerError, RunUnknown
from ledger.services import registration, reports
from ledger.services.reports import Reports
from ledger.web.views import run_view, runs_view

HERE = pathlib.Path(__file__).parent
RUNS_A_PAGE = 100
FINDINGS_SHOWN = 20
REFRESH_SECONDS = 15
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# Swagger UI draws its arrows from data: images.
DOCS_HEADERS = HEADERS | {"Content-Security-Policy": HEADERS["Content-Security-Policy"] + "; img-src 'self' data:"}
NAME_PATTERN = r"^[A-Za-z0-9._-]+$"
CURSOR_PATTERN = r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$"
Name = Annotated[str, Path(pattern=NAME_PATTERN)]
Quantity = Literal["valid_targets", "consumed_tokens", "input_slots", "samples", "updates"]

templates = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class _Running(Protocol):
    reports: Reports


def _reports_of(request: Request) -> Reports:
    return cast("_Running", request.app.state.running).reports


def _page(template: str, values: dict[str, Any], status: int = 200) -> HTMLResponse:
    return HTMLResponse(templates.get_template(template).render(values), status, HEADERS)


def _refused(error: LedgerError) -> HTMLResponse:
    return _page("refused.html", {"title": error.title, "detail": error.detail}, 404 if isinstance(error, RunUnknown) else 503)


@router.get("/")
def runs_page(request: Request, cursor: Annotated[str | None, Query(max_length=512, pattern=CURSOR_PATTERN)] = None) -> Response:
    """All runs."""
    return _page("runs.html", runs_view(registration.list_runs(_reports_of(request).store, None, cursor, RUNS_A_PAGE)))


@router.get("/projects/{project}/runs/{run}")
def run_page(request: Request, project: Name, run: Name, quantity: Quantity = "valid_targets") -> Response:
    """One run: its balance as a picture and in exact figures."""
    source = _reports_of(request)
    try:
        exposure = reports.exposure(source, project, run)
        found = reports.findings(source, project, run, None, FINDINGS_SHOWN)["findings"]
        described = registration.describe_run(source.store, project, run)
    except LedgerError as error:
        return _refused(error)
    return _page("run.html", run_view(described, exposure, found, quantity) | {"refresh_seconds": REFRESH_SECONDS})


@router.get("/docs")
def docs_page() -> Response:
    """The API's documentation, drawn by a Swagger UI of our own."""
    return HTMLResponse(templates.get_template("docs.html").render(), headers=DOCS_HEADERS)


def install(app: FastAPI) -> None:
    """Add the pages and what they load."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
