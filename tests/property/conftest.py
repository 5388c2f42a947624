"""A ledger for the laws: one database, as many runs as examples."""

from collections.abc import Iterator

import pytest

from ledger.storage.store import Store
from tests.simulation.driver import Ledger, opened


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    """A ledger on an empty database."""
    with opened(store) as running:
        yield running
