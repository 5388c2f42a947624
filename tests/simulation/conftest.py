"""The ledger under simulation: its services in this process, on each database."""

import os
from collections.abc import Iterator

import pytest

from ledger.storage.store import Store
from tests.simulation.driver import Ledger, opened

SEEDS = range(int(os.environ.get("LEDGER_SEEDS", "32")))
"""How many seeds a simulation takes; `LEDGER_SEEDS=2000 ./dev test tests/simulation` takes more."""


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    """A ledger on an empty database; time alone makes no findings in it."""
    with opened(store) as running:
        yield running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A simulation takes its seeds from the environment."""
    if "seeds" in metafunc.fixturenames:
        metafunc.parametrize("seeds", [SEEDS[start::8] for start in range(min(8, len(SEEDS)))], ids=lambda seeds: f"from-{seeds[0]}")
