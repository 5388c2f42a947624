"""The two databases, and all that differs between them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL

BUSY_TIMEOUT_MILLISECONDS = 30_000
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}",
    "PRAGMA foreign_keys=ON",
    "PRAGMA cache_size=-16384",
)
STATEMENTS = ("select", "insert", "update", "delete")


def normalised(url: str) -> URL:
    """The address with the driver that this service ships: `postgres://` and `postgresql://` mean psycopg."""
    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def is_embedded(engine: Engine) -> bool:
    """Whether the database is the embedded SQLite file."""
    return engine.dialect.name == "sqlite"


def open_engine(url: str) -> Engine:
    """A pool of connections to the database at that address; the folder of an SQLite file is made where it is missing."""
    address = normalised(url)
    if address.get_backend_name() != "sqlite":
        return create_engine(address, pool_pre_ping=True, pool_size=8, max_overflow=8, connect_args={"connect_timeout": 10})
    if address.database and address.database != ":memory:":
        Path(address.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(address, connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MILLISECONDS / 1000})
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling begins late and never IMMEDIATE; we begin ourselves, in _on_begin.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _on_begin(connection: Any) -> None:
    # A read transaction that is upgraded to a write fails as "database is locked": writers take the lock at once.
    writes = connection.get_execution_options().get("ledger_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def tell_durations(engine: Engine, tell: Callable[[str, float], None]) -> None:
    """From now on tells of each statement what it did (`select`, `insert`, `update`, `delete`, `other`) and its seconds."""

    def before(_connection: Any, _cursor: Any, _statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        if context is not None:
            context.ledger_began = time.perf_counter()

    def after(_connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        if context is not None:
            word = statement[:6].lower()
            tell(word if word in STATEMENTS else "other", time.perf_counter() - context.ledger_began)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)


def connections(engine: Engine) -> dict[str, int]:
    """Connections of the pool: those in use, those that wait for use, and the most that there may be."""
    pool: Any = engine.pool
    return {"used": pool.checkedout(), "idle": pool.checkedin(), "most": pool.size() + pool._max_overflow}  # noqa: SLF001 - it has no other name
