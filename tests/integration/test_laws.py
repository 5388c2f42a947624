"""Laws of the whole ledger on each database: projections are a function of the journal, and any attempt may be looked at as the head."""

from collections.abc import Iterator
from typing import Any

import pytest

from ledger.services import projection, verification
from ledger.storage.store import Store
from tests.simulation.auditor import audit
from tests.simulation.comparison import compare_exposure
from tests.simulation.delivery import apply, empty_facts, plan
from tests.simulation.driver import PROJECT, Driver, Ledger, opened
from tests.simulation.facts import Facts
from tests.simulation.workload import write_history

SEEDS = range(300, 303)


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    """A ledger on an empty database."""
    with opened(store) as running:
        yield running


def delivered(ledger: Ledger, seed: int) -> tuple[Driver, Facts]:
    """A history that has been delivered in disorder, and its facts; it was read on the way, so that projections grew bit by bit."""
    history = write_history(seed)
    driver, facts = Driver(ledger, history, f"seed-{seed}"), empty_facts(history)
    driver.open()
    for step in plan(history, seed, "full"):
        driver.post(step)
        apply(facts, step)
        driver.exposure()
    return driver, facts


def told(driver: Driver) -> list[Any]:
    """All that the reports say."""
    return [driver.exposure(), driver.updates(), driver.coverage(), driver.checkpoints(), driver.findings()]


@pytest.mark.parametrize("seed", SEEDS)
def test_projections_that_grew_are_those_made_again_and_those_counted_another_way(ledger: Ledger, seed: int) -> None:
    driver, _ = delivered(ledger, seed)
    before = told(driver)
    assert verification.verify(ledger.store, PROJECT, driver.run, lambda _, __: None) is None
    projection.rebuild(ledger.store, PROJECT, driver.run)
    assert told(driver) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_any_attempt_may_be_looked_at_as_the_head(ledger: Ledger, seed: int) -> None:
    driver, facts = delivered(ledger, seed)
    settled = set(facts.attempts()) - audit(facts)["unsettled"]
    for head in settled:
        differences = list(compare_exposure(driver.exposure(head), audit(facts, head)))
        assert not differences, f"seed {seed}, head {head}: {differences[:10]}"
