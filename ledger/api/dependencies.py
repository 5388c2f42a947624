"""What handlers are given: the running service, checked path names and checked bodies."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Protocol, TypeVar, cast

import anyio.to_thread
from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, ValidationError

from ledger.api.keys import check_keys
from ledger.api.limits import BodyLimits, Gate, check_origin, decompress, read_body
from ledger.api.problems import invalid_body
from ledger.api.schemas.declarations import AttemptChange, AttemptDeclaration, Resolution, RunDeclaration, plain
from ledger.api.schemas.fields import SLUG_PATTERN
from ledger.domain.events import RankEvents
from ledger.services.ingestion import Ingestion
from ledger.services.reports import Reports


class Running(Protocol):
    """What the REST edge needs of the running service."""

    reports: Reports
    ingestion: Ingestion
    limits: BodyLimits
    gate: Gate
    schema_is_current: Callable[[], bool]
    observe_batch: Callable[[list[RankEvents], dict[str, Any]], None]


def running_of(request: Request) -> Running:
    """The service that this request came to."""
    return cast("Running", request.app.state.running)


Service = Annotated[Running, Depends(running_of)]
Project = Annotated[str, Path(pattern=SLUG_PATTERN, description="name of the project")]
Run = Annotated[str, Path(pattern=SLUG_PATTERN, description="name of the run in its project")]
Attempt = Annotated[str, Path(pattern=SLUG_PATTERN, description="the launcher's own id of the attempt")]
Cursor = Annotated[str | None, Query(max_length=8192, description="`next_cursor` of the page before")]
Limit = Annotated[int, Query(ge=1, description="most rows of a page; capped at 1000")]
MOST_ROWS = 1000


def page_size(limit: int) -> int:
    """The number of rows that a page really has at most."""
    return min(limit, MOST_ROWS)


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], body: bytes, encoding: str, limit: int) -> Model:
    """A body as its model, checked in one pass over the JSON text.

    Raises: BodyTooLarge, BodyBroken, EncodingUnsupported, InvalidRequest.
    """
    text = decompress(body, encoding, limit)
    try:
        found = model.model_validate_json(text)
    except ValidationError as error:
        raise invalid_body(error) from None
    check_keys(text, found)
    return found


def _body_of(model: type[BaseModel]) -> Callable[[Request], Coroutine[Any, Any, dict[str, Any]]]:
    """A dependency that reads a declaration; expanded and checked off the event loop."""

    async def read(request: Request) -> dict[str, Any]:
        check_origin(request)
        limits = running_of(request).limits
        body = await read_body(request, limits)
        encoding = request.headers.get("content-encoding", "")
        return plain(await anyio.to_thread.run_sync(parse, model, body, encoding, limits.max_decompressed_bytes))

    return read


RunBody = Annotated[dict[str, Any], Depends(_body_of(RunDeclaration))]
AttemptBody = Annotated[dict[str, Any], Depends(_body_of(AttemptDeclaration))]
ChangeBody = Annotated[dict[str, Any], Depends(_body_of(AttemptChange))]
ResolutionBody = Annotated[dict[str, Any], Depends(_body_of(Resolution))]


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """The description of a call whose body is read here and not by the framework."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
