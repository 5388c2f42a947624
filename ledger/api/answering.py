"""From the values of a use case to the bytes of an answer: exact integers, and names for floats that JSON has no literal for."""

from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import Response
from pydantic_core import to_json

Numbers = Annotated[
    Literal["number", "string"],
    Query(alias="integers", description="`string` writes every integer as a decimal string, for languages whose numbers end at 2^53"),
]


def integers_as_text(value: Any) -> Any:
    """The same value with every integer as a decimal string.

    >>> integers_as_text({"attempted": 2**60, "complete": True, "mean": 2.5})
    {'attempted': '1152921504606846976', 'complete': True, 'mean': 2.5}
    """
    match value:
        case bool():
            return value
        case int():
            return str(value)
        case dict():
            return {key: integers_as_text(item) for key, item in value.items()}
        case list() | tuple():
            return [integers_as_text(item) for item in value]
    return value


def answer(value: Any, integers: str = "number", status: int = 200) -> Response:
    """A JSON answer, already serialised."""
    body = to_json(integers_as_text(value) if integers == "string" else value, inf_nan_mode="strings")
    return Response(body, status, media_type="application/json")
