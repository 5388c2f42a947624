"""Seeded histories, delivered in all disorder: after every step the ledger's report equals the auditor's."""

from tests.simulation.auditor import audit
from tests.simulation.comparison import compare_all, compare_exposure
from tests.simulation.delivery import Step, apply, empty_facts, plan
from tests.simulation.driver import Driver, Ledger
from tests.simulation.facts import Facts, Resolution
from tests.simulation.workload import History, write_history

DISORDERS = ("none", "some", "full")


def settled_updates(facts: Facts) -> set[tuple[str, int, int]]:
    """The updates that an operator has settled."""
    return {(r.attempt, r.update, r.retry) for r in facts.resolutions if isinstance(r, Resolution)}


def differ(seed: int, disorder: str, place: str, differences: list[str]) -> str:
    """What to print of a failing seed."""
    shown = "\n  ".join(differences[:25])
    return f"seed {seed}, disorder {disorder}, {place}: {len(differences)} differences\n  {shown}"


def assert_simulation(ledger: Ledger, seed: int, history: History, disorder: str, steps: list[Step]) -> None:
    """Deliver the steps and compare on the way and at the end."""
    driver = Driver(ledger, history, f"seed-{seed}-{disorder}")
    driver.open()
    facts = empty_facts(history)
    for index, step in enumerate(steps):
        driver.post(step)
        apply(facts, step)
        differences = list(compare_exposure(driver.exposure(), audit(facts)))
        assert not differences, differ(seed, disorder, f"after step {index} of {len(steps)} {step!r}"[:600], differences)
    differences = list(compare_all(driver, audit(facts), settled_updates(facts)))
    assert not differences, differ(seed, disorder, "at the end", differences)


def test_the_ledger_agrees_with_the_auditor_at_every_offset(ledger: Ledger, seeds: range) -> None:
    for seed in seeds:
        history = write_history(seed)
        disorder = DISORDERS[seed % 3]
        assert_simulation(ledger, seed, history, disorder, plan(history, seed, disorder))
