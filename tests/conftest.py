"""What tests of all kinds share: a new database on each of the two systems, and a ledger in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from ledger.storage import schema
from ledger.storage.engine import open_engine
from ledger.storage.store import Store
from postgres import Cluster, cluster
from presence import missing

hypothesis_settings.register_profile("ledger", deadline=None, print_blob=True)
hypothesis_settings.load_profile("ledger")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL server of this test run."""
    try:
        with cluster() as server:
            yield server
    except FileNotFoundError as error:
        missing(str(error))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database: each test that asks for it runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server: Cluster = request.getfixturevalue("postgres")
    with server.database() as address:
        yield address


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A ledger whose database was made by the migrations."""
    engine = open_engine(database_url)
    schema.upgrade(engine)
    yield Store(engine)
    engine.dispose()
