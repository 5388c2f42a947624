"""The composition root: settings in, a service with everything wired out."""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from fastapi import FastAPI

from ledger import __version__
from ledger.api import openapi, problems
from ledger.api.limits import BodyLimits, Gate
from ledger.api.request_log import RequestLog
from ledger.api.routers import attempts, events, health, lab, records, reports, runs
from ledger.config import Settings
from ledger.domain.events import RankEvents
from ledger.metrics import routes as metrics_routes
from ledger.metrics.exposition import Exposition
from ledger.metrics.measured import Measured
from ledger.services.ingestion import Ingestion
from ledger.services.projection import Projector
from ledger.services.reports import Reports
from ledger.storage import schema
from ledger.storage.engine import is_embedded, open_engine
from ledger.storage.store import Store
from ledger.web import compare_page, lab_page, pages

SUMMARY = "What a model was really trained on, and what the rest of the compute went to."
DESCRIPTION = """Counts are exact integers; a total that is not known for every update is null, with what is `known` beside it.
Errors are RFC 9457 problem documents with a stable `code`. `?integers=string` writes integers as decimal strings."""


class SchemaOutdated(RuntimeError):
    """The database has another schema than this version needs."""


@dataclass(frozen=True, slots=True)
class Running:
    """Everything that lives as long as the service does."""

    settings: Settings
    store: Store
    reports: Reports
    ingestion: Ingestion
    projector: Projector
    limits: BodyLimits
    gate: Gate
    exposition: Exposition
    schema_is_current: Callable[[], bool]
    observe_batch: Callable[[list[RankEvents], dict[str, Any]], None]


def utc_now() -> datetime:
    """The service's clock."""
    return datetime.now(UTC)


def configure_logging(log_format: str) -> None:
    """Log lines on standard error: JSON for machines, or columns for people."""
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if log_format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def open_store(settings: Settings) -> Store:
    """The database of those settings; an embedded one is brought to the newest schema.

    Raises: SchemaOutdated for a server database, which is upgraded only when asked.
    """
    engine = open_engine(settings.database_url)
    if is_embedded(engine):
        schema.upgrade(engine)
    elif not schema.is_current(engine):
        raise SchemaOutdated("the database schema is not the one of this version: run `ledger db upgrade` first")
    return Store(engine)


def _start(settings: Settings, measured: Measured) -> Running:
    store = open_store(settings)
    reports_ = Reports(store, utc_now, settings.grace_seconds, settings.read_wait_seconds)
    ingestion = Ingestion(store, utc_now, settings.queue_batches)
    projector = Projector(store, utc_now, settings.projection_interval_seconds)
    exposition = Exposition(
        reports_,
        measured,
        cache_seconds=settings.metrics_cache_seconds,
        most_runs=settings.metrics_max_runs,
        keep_seconds=settings.metrics_keep_seconds,
    )
    limits = BodyLimits(settings.max_body_bytes, settings.max_decompressed_bytes)
    wanted = schema.head()
    running = Running(
        settings,
        store,
        reports_,
        ingestion,
        projector,
        limits,
        Gate(settings.queue_batches),
        exposition,
        lambda: schema.current(store.engine) == wanted,
        measured.batch,
    )
    measured.queue_of(lambda: running.gate.waiting, settings.queue_batches)
    measured.connections_of(store.connections)
    store.tell_durations(measured.operation)
    projector.start()
    ingestion.start()
    exposition.start()
    return running


def _stop(running: Running) -> None:
    running.exposition.stop()
    running.ingestion.stop()
    running.projector.stop()
    running.store.engine.dispose()


def _lifespan(settings: Settings, measured: Measured) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        configure_logging(settings.log_format)
        running = _start(settings, measured)
        app.state.running = running
        try:
            yield
        finally:
            _stop(running)

    return lifespan


def create_app(settings: Settings) -> FastAPI:
    """The service; it opens the database when it starts and closes it when it stops."""
    measured = Measured(__version__)
    app = FastAPI(
        title="Training Ledger",
        version=__version__,
        summary=SUMMARY,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        # A redirect would name whatever host the request claims; one address, one resource.
        redirect_slashes=False,
        lifespan=_lifespan(settings, measured),
    )
    problems.install(app)
    openapi.install(app)
    for module in (runs, attempts, events, reports, records, lab, health):
        app.include_router(module.router)
    app.include_router(metrics_routes.router)
    app.include_router(compare_page.router)
    app.include_router(lab_page.router)
    pages.install(app)
    app.add_middleware(RequestLog, observe=measured.request)
    return app


def from_environment() -> FastAPI:
    """The service with the settings of its environment, as server processes make it."""
    return create_app(Settings())
