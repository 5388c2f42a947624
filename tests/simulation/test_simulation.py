"""Seeded histories, delivered in all disorder: after every few steps the ledger's report equals the auditor's."""

import pytest
from fastapi.testclient import TestClient

from tests.simulation.auditor import audit
from tests.simulation.comparison import compare_all, compare_exposure
from tests.simulation.delivery import Step, apply, empty_facts, plan
from tests.simulation.driver import Driver
from tests.simulation.facts import Facts, Resolution
from tests.simulation.workload import History, write_history

FIXED_SEEDS = tuple(range(48))
DISORDERS = ("none", "some", "full")
CHECKS_A_HISTORY = 8


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The fixed seeds, and as many more as were asked for."""
    if "seed" in metafunc.fixturenames:
        more = metafunc.config.getoption("--seeds", default=0) or 0
        metafunc.parametrize("seed", [*FIXED_SEEDS, *range(1000, 1000 + more)])


def settled_updates(facts: Facts) -> set[tuple[str, int, int]]:
    """The updates that an operator has settled."""
    return {(r.attempt, r.update, r.retry) for r in facts.resolutions if isinstance(r, Resolution)}


def differ(seed: int, disorder: str, place: str, differences: list[str]) -> str:
    """What to print of a failing seed."""
    shown = "\n  ".join(differences[:25])
    return f"seed {seed}, disorder {disorder}, {place}: {len(differences)} differences\n  {shown}"


def check_simulation(client: TestClient, seed: int, history: History, disorder: str, steps: list[Step]) -> None:
    """Deliver the steps and compare on the way and at the end."""
    driver = Driver(client, history, f"seed-{seed}-{disorder}")
    driver.open()
    facts = empty_facts(history)
    every = max(1, len(steps) // CHECKS_A_HISTORY)
    for index, step in enumerate(steps):
        driver.post(step)
        apply(facts, step)
        if index % every == every - 1:
            differences = list(compare_exposure(driver.exposure(), audit(facts)))
            assert not differences, differ(seed, disorder, f"after step {index} of {len(steps)} {step!r}"[:600], differences)
    differences = list(compare_all(driver, audit(facts), settled_updates(facts)))
    assert not differences, differ(seed, disorder, "at the end", differences)


def test_the_ledger_agrees_with_the_auditor(ledger_client_app: TestClient, seed: int) -> None:
    history = write_history(seed)
    disorder = DISORDERS[seed % 3]
    check_simulation(ledger_client_app, seed, history, disorder, plan(history, seed, disorder))
