"""A second database beside the usual one, on the same system."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from ledger.storage.engine import open_engine
from postgres import Cluster


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """The empty database."""
    opened = open_engine(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def other_engine(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    """Another empty database on the same system."""
    if engine.dialect.name == "sqlite":
        opened = open_engine(f"sqlite:///{tmp_path / 'other.db'}")
        yield opened
        opened.dispose()
        return
    server: Cluster = request.getfixturevalue("postgres")
    with server.database() as address:
        opened = open_engine(address)
        yield opened
        opened.dispose()


@pytest.fixture
def postgresql_url(postgres: Cluster) -> Iterator[str]:
    """An empty PostgreSQL database."""
    with postgres.database() as address:
        yield address
