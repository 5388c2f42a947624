"""The pages' addresses: runs, one run, the API's documentation."""

import pathlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Annotated, Any, Literal, Protocol, cast

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from ledger.domain.errors import LedgerError, ProjectionBehind
from ledger.services import registration, reports
from ledger.services.reports import Reports, open_books
from ledger.web.views import Shown, run_view, runs_view

HERE = pathlib.Path(__file__).parent
RUNS_A_PAGE = 25
"""Each row of the list reads a report."""
RATES_SHOWN = (("applied", "update"), ("preserved", "wall"))
"""Work and time of the rates on the page of a run: how fast it trains, and how fast it comes to something that is kept."""
LIST_WAIT_SECONDS = 0.5
FINDINGS_SHOWN = 20
STREAMS_SHOWN = 50
CHECKPOINTS_READ = 1000
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


def _page(template: str, values: dict[str, Any], status: int = 200, **headers: str) -> HTMLResponse:
    return HTMLResponse(templates.get_template(template).render(values), status, HEADERS | headers)


class _PageRoute(APIRoute):
    """Refuses people in a page, as the API refuses programs in a problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def show(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError:
                return _page("refused.html", {"title": "There is no such page.", "detail": "The address is not of the form of one."}, 404)
            except LedgerError as error:
                after = getattr(error, "retry_after_seconds", None)
                if after is None:
                    return _page("refused.html", {"title": error.title, "detail": error.detail}, 404)
                detail = f"Nothing is lost. Try again in {after} s."
                return _page("refused.html", {"title": error.title, "detail": detail}, 503, **{"Retry-After": str(after)})

        return show


router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=_PageRoute)


class _Running(Protocol):
    reports: Reports


def _reports_of(request: Request) -> Reports:
    return cast("_Running", request.app.state.running).reports


def _exposure_of(source: Reports, run: dict[str, Any]) -> dict[str, Any] | None:
    """What a row of the list shows of a run; nothing while its report is not there."""
    try:
        with open_books(source, run["project"], run["run"]) as books:
            return reports.exposure(books)
    except ProjectionBehind:
        return None


@router.get("/")
def runs_page(request: Request, cursor: Annotated[str | None, Query(max_length=512, pattern=CURSOR_PATTERN)] = None) -> Response:
    """All runs."""
    source = replace(_reports_of(request), wait_seconds=LIST_WAIT_SECONDS)
    page = registration.list_runs(source.store, None, cursor, RUNS_A_PAGE)
    return _page("runs.html", runs_view(page, [_exposure_of(source, run) for run in page["items"]]))


@router.get("/runs/{project}/{run}")
def run_page(request: Request, project: Name, run: Name, quantity: Quantity = "valid_targets") -> Response:
    """One run: its balance as a picture and in exact figures, the data, the objective, the checkpoints and what does not fit."""
    source = _reports_of(request)
    with open_books(source, project, run) as books:
        shown = Shown(
            run=reports.described(books),
            exposure=reports.exposure(books),
            coverage=reports.coverage(books, None, STREAMS_SHOWN),
            objective=reports.objective(books),
            checkpoints=reports.checkpoints(books, None, CHECKPOINTS_READ),
            findings=reports.findings(books, None, FINDINGS_SHOWN)["findings"],
            rates=[reports.rate(books, quantity, work, [time]) for work, time in RATES_SHOWN],
        )
    return _page("run.html", run_view(shown, quantity) | {"refresh_seconds": REFRESH_SECONDS})


@router.get("/docs")
def docs_page() -> Response:
    """The API's documentation, drawn by a Swagger UI of our own."""
    return HTMLResponse(templates.get_template("docs.html").render(), headers=DOCS_HEADERS)


def install(app: FastAPI) -> None:
    """Add the pages and what they load."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
