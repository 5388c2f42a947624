"""The pages that stand for themselves: the list of runs and the API's documentation; and how all pages are installed."""

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from ledger.services.standing import Standings, listed
from ledger.web import run_pages
from ledger.web.frame import REFRESH_SECONDS
from ledger.web.rendering import DOCS_HEADERS, HERE, NAME_PATTERN, page, pages_router, read_at, reports_of, templates
from ledger.web.runs_view import runs_view

RUNS_A_PAGE = 25
LIST_WAIT_SECONDS = 0.5
HIGHEST_PAGE = 1_000_000
router = pages_router()


@router.get("/")
def runs_page(
    request: Request,
    project: Annotated[str | None, Query(max_length=128, pattern=f"{NAME_PATTERN}|^$")] = None,
    sort: Literal["recent", "name"] = "recent",
    number: Annotated[int, Query(alias="page", ge=1, le=HIGHEST_PAGE)] = 1,
) -> Response:
    """The runs, a page at a time: the newest entry first, or by name; of all projects, or of one."""
    source = reports_of(request)
    found = listed(source, project or None, sort == "recent", number, RUNS_A_PAGE)
    standings = request.app.state.standings.of(source, found.runs, LIST_WAIT_SECONDS)
    values = runs_view(found, standings, source.clock(), project or None, sort, number)
    return page("runs.html", values | {"read_at": read_at(source), "refresh_seconds": REFRESH_SECONDS}, section="runs")


@router.get("/docs")
def docs_page() -> Response:
    """The API's documentation, drawn by a Swagger UI of our own."""
    return HTMLResponse(templates.get_template("docs.html").render(), headers=DOCS_HEADERS)


def install(app: FastAPI) -> None:
    """Add the pages and what they load."""
    app.state.standings = Standings()
    app.include_router(router)
    app.include_router(run_pages.router)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
