"""The description of the API: bodies that handlers read themselves are added, and errors are what is really answered."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from ledger.api.problems import Problem
from ledger.api.schemas.batches import EventBatch
from ledger.api.schemas.declarations import AttemptChange, AttemptDeclaration, Resolution, RunDeclaration

BODIES = (RunDeclaration, AttemptDeclaration, AttemptChange, Resolution, EventBatch)
REPLACED = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the service."""
    document = get_openapi(title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes)
    _, bodies = models_json_schema(
        [*((model, "validation") for model in BODIES), (Problem, "serialization")], ref_template="#/components/schemas/{model}"
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(bodies["$defs"])
    for name in REPLACED:
        schemas.pop(name, None)
    return document


def install(app: FastAPI) -> None:
    """Serve that document; it is made once, when it is first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
