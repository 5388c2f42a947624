"""A service on an empty embedded database, called without a socket."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from ledger.app import create_app
from ledger.config import Settings


def settings(folder: Path, **more: Any) -> Settings:
    """Settings of a service that keeps its books in that folder and never makes a test wait."""
    quick: dict[str, Any] = {"metrics_cache_seconds": 0, "projection_interval_seconds": 0.05}
    return Settings(database_url=f"sqlite:///{folder / 'ledger.db'}", **(quick | more))


@contextmanager
def running(folder: Path, **more: Any) -> Iterator[TestClient]:
    """The service, from its start to its stop."""
    with TestClient(create_app(settings(folder, **more))) as client:
        yield client
