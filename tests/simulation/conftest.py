"""The ledger under simulation: the whole application in this process, on a database of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ledger.app import create_app
from ledger.config import Settings

A_LONG_TIME_SECONDS = 1e9


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many seeds beyond the fixed ones a simulation takes."""
    parser.addoption("--seeds", type=int, default=0, help="simulate this many seeds beside the fixed ones")


@pytest.fixture(scope="module")
def ledger_client_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a ledger on an embedded database; time alone makes no findings in it."""
    path: Path = tmp_path_factory.mktemp("simulation") / "ledger.db"
    settings = Settings(database_url=f"sqlite:///{path}", grace_seconds=A_LONG_TIME_SECONDS, read_wait_seconds=30)
    with TestClient(create_app(settings)) as client:
        yield client
