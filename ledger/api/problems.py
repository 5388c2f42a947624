"""The one map from a refusal to HTTP: code -> status, and every error body is an RFC 9457 problem document.

A problem never repeats what was sent: it names the place (a JSON pointer) and the rule.
"""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from ledger.domain.errors import DatabaseUnavailable, InvalidRequest, LedgerError

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 20
LONGEST_POINTER = 300

STATUS: dict[str, int] = {
    "run_unknown": 404,
    "attempt_unknown": 404,
    "checkpoint_unknown": 404,
    "run_exists_differently": 409,
    "attempt_exists_differently": 409,
    "attempt_ended_differently": 409,
    "not_in_conflict": 409,
    "invalid_request": 422,
    "queue_full": 503,
    "projection_behind": 503,
    "database_unavailable": 503,
    "body_too_large": 413,
    "body_broken": 400,
    "encoding_unsupported": 415,
    "media_type_unsupported": 415,
    "not_acceptable": 406,
    "cross_site": 403,
    "not_ready": 503,
    "refused": 400,
}
"""Status of every code that a LedgerError carries."""

BY_STATUS = {404: "not_found", 405: "method_not_allowed", 400: "bad_request", 500: "internal_error"}
"""Codes of what the framework itself refuses."""

TITLES = {
    "not_found": "There is nothing at this address.",
    "method_not_allowed": "This address does not take that method.",
    "bad_request": "The request could not be read.",
    "internal_error": "The service failed; the log has the details under the request's id.",
}

log = structlog.get_logger("ledger.api")


class Place(BaseModel):
    """One place of the request that breaks a rule."""

    pointer: str = Field(description="JSON pointer into the body, or `/name` of the parameter")
    where: str = Field(description="`body`, `path` or `query`")
    rule: str = Field(description="stable name of the rule that is broken")
    message: str = Field(description="the rule in words; what was sent is never repeated")


class Problem(BaseModel):
    """An error as RFC 9457 has it: `code` is stable and meant for programs, `title` and `detail` for people."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:training-ledger:problem:invalid_request",
                    "title": "The request is not of the documented form.",
                    "status": 422,
                    "code": "invalid_request",
                    "detail": "/ranks/0/updates/seq/1: Input should be a valid integer",
                    "pointer": "/ranks/0/updates/seq/1",
                    "errors": [
                        {
                            "pointer": "/ranks/0/updates/seq/1",
                            "where": "body",
                            "rule": "int_type",
                            "message": "Input should be a valid integer",
                        }
                    ],
                    "request_id": "5f0c4b0e",
                }
            ]
        }
    )

    type: str = Field(description="`urn:training-ledger:problem:` and the code")
    title: str = Field(description="the kind of refusal in one sentence")
    status: int = Field(ge=400, le=599, description="HTTP status")
    code: str = Field(description="stable name of the kind of refusal")
    detail: str = Field(description="what was refused here and now")
    pointer: str | None = Field(default=None, description="JSON pointer of the first place that breaks a rule")
    errors: list[Place] = Field(default_factory=list, max_length=MOST_ERRORS, description="the first places that break a rule")
    request_id: str | None = Field(default=None, description="the X-Request-Id of this request")


def pointer_of(steps: Iterable[object]) -> str:
    """The JSON pointer of a path of keys and indices.

    >>> pointer_of(["ranks", 0, "a/b"])
    '/ranks/0/a~1b'
    """
    pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return pointer if len(pointer) <= LONGEST_POINTER else pointer[:LONGEST_POINTER] + "…"


def places_of(errors: Sequence[Mapping[str, Any]], where: str | None = None) -> list[Place]:
    """The first broken rules that pydantic found; `where` is None if each error's path begins with it."""
    places = []
    for error in errors[:MOST_ERRORS]:
        steps = list(error["loc"])
        origin = where if where is not None else str(steps.pop(0))
        if steps and steps[-1] == "[key]":
            steps.pop()
        places.append(Place(pointer=pointer_of(steps), where=origin, rule=str(error["type"]), message=str(error["msg"])))
    return places


def invalid_body(error: ValidationError) -> InvalidRequest:
    """The refusal of a body that its model does not take."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return _invalid(places_of(found, "body"))


def _invalid(places: list[Place]) -> InvalidRequest:
    first = places[0]
    return InvalidRequest(f"{first.pointer or first.where}: {first.message}", pointer=first.pointer, places=places)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """A problem document as a response."""
    body = to_json(problem.model_dump(exclude_none=True))
    return Response(body, problem.status, dict(headers or {}), MEDIA_TYPE)


def request_id_of(request: Request) -> str | None:
    """The id under which the request is logged."""
    found = request.scope.get("ledger.request_id")
    return found if isinstance(found, str) else None


def refuse(request: Request, error: LedgerError) -> Response:
    """The answer to what the ledger refuses; what the database's driver says stays in the log."""
    status, detail = STATUS[error.code], error.detail
    if isinstance(error, DatabaseUnavailable):
        log.warning("database unavailable", request_id=request_id_of(request), detail=detail)
        detail = error.title
    pointer = str(error.context.get("pointer") or "") or None
    places = error.context.get("places")
    if not isinstance(places, list):
        places = [Place(pointer=pointer, where="body", rule=error.code, message=error.detail)] if pointer else []
    problem = Problem(
        type=f"urn:training-ledger:problem:{error.code}",
        title=error.title,
        status=status,
        code=error.code,
        detail=detail,
        pointer=pointer,
        errors=places,
        request_id=request_id_of(request),
    )
    after = getattr(error, "retry_after_seconds", None)
    return problem_response(problem, {"Retry-After": str(after)} if after is not None else {})


def refuse_status(request: Request, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to what the framework refuses: an unknown address, a wrong method, or a failure of ours."""
    code = BY_STATUS.get(status, f"http_{status}")
    title = TITLES.get(code, HTTPStatus(status).phrase)
    problem = Problem(
        type=f"urn:training-ledger:problem:{code}", title=title, status=status, code=code, detail=title, request_id=request_id_of(request)
    )
    return problem_response(problem, headers)


async def _on_ledger_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LedgerError)
    return refuse(request, error)


async def _on_invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return refuse(request, _invalid(places_of(error.errors())))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse_status(request, error.status_code, error.headers)


def install(app: FastAPI) -> None:
    """Answer every refusal with a problem document; what is unexpected is answered where requests are logged."""
    app.add_exception_handler(LedgerError, _on_ledger_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(HTTPException, _on_http_exception)


PROBLEM_CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a call, for its description."""
    known: dict[int, list[str]] = {}
    for code, status in [*STATUS.items(), *((code, status) for status, code in BY_STATUS.items())]:
        known.setdefault(status, []).append(code)
    return {status: {"description": ", ".join(f"`{code}`" for code in known[status]), "content": PROBLEM_CONTENT} for status in statuses}
