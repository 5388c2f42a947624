"""How every page leaves: filled in from its template, under a policy that loads nothing from elsewhere, or refused in words."""

import gzip
import pathlib
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Annotated, Any, Protocol, cast

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ledger.domain.errors import LedgerError
from ledger.services.reports import Reports
from ledger.web.wording import figure, moment, share

HERE = pathlib.Path(__file__).parent
SMALLEST_COMPRESSED_BYTES = 1024
COMPRESSION_LEVEL = 5
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# Swagger UI draws its arrows from data: images.
DOCS_HEADERS = HEADERS | {"Content-Security-Policy": HEADERS["Content-Security-Policy"] + "; img-src 'self' data:"}
NAME_PATTERN = r"^[A-Za-z0-9._-]+$"
Name = Annotated[str, Path(pattern=NAME_PATTERN)]
NAVIGATION = (("runs", "/", "Runs"), ("compare", "/compare", "Compare"), ("lab", "/lab", "Sampling lab"), ("docs", "/docs", "API docs"))



def code(text: str) -> Markup:
    """A sentence with what stands between backticks set as code."""
    parts = str(text).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts))


templates = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
templates.filters |= {"figure": figure, "moment": moment, "share": share, "words": lambda name: str(name).replace("_", " "), "code": code}


def page(template: str, values: dict[str, Any], status: int = 200, section: str = "", **headers: str) -> HTMLResponse:
    """A page; `section` names the entry of the navigation that it belongs to."""
    shown = {"navigation": NAVIGATION, "section": section, "refresh_seconds": None} | values
    return HTMLResponse(templates.get_template(template).render(shown), status, HEADERS | headers)


class Running(Protocol):
    """What the pages need of the running service."""

    reports: Reports


def reports_of(request: Request) -> Reports:
    """The reports of the service that this request came to."""
    return cast("Running", request.app.state.running).reports


def read_at(source: Reports) -> str:
    """The moment of a reading, as a page says it."""
    now: datetime = source.clock()
    return now.strftime("%Y-%m-%d %H:%M:%S UTC")


def _compressed(request: Request, response: Response) -> Response:
    """The same page in fewer bytes, where the browser takes that and it is worth it."""
    body = bytes(response.body)
    response.headers["Vary"] = "Accept-Encoding"
    if "gzip" in request.headers.get("accept-encoding", "") and len(body) >= SMALLEST_COMPRESSED_BYTES:
        response.body = gzip.compress(body, COMPRESSION_LEVEL, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    return response


class PageRoute(APIRoute):
    """Refuses people in a page, as the API refuses programs in a problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with what it raises turned into pages."""
        handle = super().get_route_handler()

        async def show(request: Request) -> Response:
            try:
                return _compressed(request, await handle(request))
            except RequestValidationError:
                return page("refused.html", {"title": "There is no such page.", "detail": "The address is not of the form of one."}, 404)
            except LedgerError as error:
                after = getattr(error, "retry_after_seconds", None)
                if after is None:
                    return page("refused.html", {"title": error.title, "detail": error.detail}, 404)
                detail = f"Nothing is lost. Try again in {after} s."
                return page("refused.html", {"title": error.title, "detail": detail}, 503, **{"Retry-After": str(after)})

        return show


def pages_router() -> APIRouter:
    """A router for pages: not part of the API's description, and refusing in pages."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=PageRoute)
