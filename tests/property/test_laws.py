"""Laws of the report: it does not depend on how the facts arrived, it always balances, and what was accepted stays."""

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.auditor import BUCKETS
from tests.simulation.delivery import Post, Step, plan
from tests.simulation.driver import Driver, Ledger
from tests.simulation.facts import Resolution, Row
from tests.simulation.groups import QUANTITIES
from tests.simulation.workload import History, Item, write_history

SEEDS = st.integers(min_value=100_000, max_value=10_000_000)
LAWS = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


RUNS = itertools.count()


def fresh(ledger: Ledger, history: History) -> Driver:
    """A new run for a history."""
    driver = Driver(ledger, history, f"law-{next(RUNS)}")
    driver.open()
    return driver


def told(driver: Driver) -> dict[str, Any]:
    """Everything that the reports say of a run, but for where and when they were asked."""
    exposure = {key: value for key, value in driver.exposure().items() if key not in ("project", "run", "as_of")}
    return {
        "exposure": exposure,
        "updates": sorted(driver.updates(), key=repr),
        "coverage": driver.coverage(),
        "checkpoints": sorted(driver.checkpoints(), key=repr),
        "findings": sorted({(f["kind"], repr(f["attempt"]), repr(f["update"]), repr(f["retry"])) for f in driver.findings()}),
    }


def without_arrival(report: dict[str, Any]) -> dict[str, Any]:
    """A report without the findings about arrival itself."""
    exposure = {**report["exposure"], "findings": {k: n for k, n in report["exposure"]["findings"].items() if k != "late_event"}}
    return {**report, "exposure": exposure, "findings": [finding for finding in report["findings"] if finding[0] != "late_event"]}


@LAWS
@given(seed=SEEDS, first=st.sampled_from(("none", "some")), second=st.sampled_from(("some", "full")), batch=st.integers(1, 40))
def test_arrival_never_matters(ledger: Ledger, seed: int, first: str, second: str, batch: int) -> None:
    history = write_history(seed)
    reports = []
    for delivery_seed, disorder, repeats, size in ((seed, first, 0.0, 60), (seed + 1, second, 0.4, batch)):
        driver = fresh(ledger, history)
        for step in plan(history, delivery_seed, disorder, repeats=repeats, batch_size=size):
            driver.post(step)
        reports.append(without_arrival(told(driver)))
    assert reports[0] == reports[1], f"seed {seed}"


@LAWS
@given(seed=SEEDS)
def test_the_balance_always_holds(ledger: Ledger, seed: int) -> None:
    history = write_history(seed)
    driver = fresh(ledger, history)
    for index, step in enumerate(plan(history, seed, "full", batch_size=60)):
        driver.post(step)
        if index % 4 == 0:
            assert_balances(driver.exposure(), seed)
    assert_balances(driver.exposure(), seed)


def assert_balances(report: dict[str, Any], seed: int) -> None:
    """Check the identity of every quantity, and that the matrix folds into it."""
    for quantity in QUANTITIES:
        entry = report["balance"][quantity]
        values = {bucket: entry[bucket] if entry[bucket] is not None else entry["known"][bucket] for bucket in BUCKETS}
        assert values["attempted"] == sum(values[bucket] for bucket in BUCKETS[1:]), f"seed {seed} {quantity} {entry}"
        if entry["complete"]:
            cells = report["matrix"][quantity]
            assert values["attempted"] == sum(sum(fates.values()) for fates in cells.values()), f"seed {seed} {quantity}"
            assert values["skipped"] == sum(cells.get("skipped", {}).values()), f"seed {seed} {quantity}"


def plain(history: History) -> History:
    """A history without what may take counts back: open rows that are replaced, and an operator's word."""
    kept: list[Item] = [
        item
        for item in history.timeline
        if not isinstance(item, Resolution) and not (isinstance(item, Row) and item.columns.get("outcome") == "open")
    ]
    return History(history.seed, history.conventions, kept, history.dates, history.tidy, history.parent, history.forked_from, history.saved)


@LAWS
@given(seed=SEEDS)
def test_attempted_work_only_grows(ledger: Ledger, seed: int) -> None:
    history = plain(write_history(seed))
    driver = fresh(ledger, history)
    before = dict.fromkeys(QUANTITIES, 0)
    offset = 0
    for index, step in enumerate(plan(history, seed, "full", batch_size=60)):
        driver.post(step)
        if index % 4 == 0:
            report = driver.exposure()
            for quantity in QUANTITIES:
                entry = report["balance"][quantity]
                value = entry["attempted"] if entry["attempted"] is not None else entry["known"]["attempted"]
                assert value >= before[quantity], f"seed {seed} {quantity}"
                before[quantity] = value
            assert report["as_of"]["events"] >= offset
            offset = report["as_of"]["events"]


@LAWS
@given(seed=SEEDS)
def test_what_was_posted_once_stays_and_counts_once(ledger: Ledger, seed: int) -> None:
    history = write_history(seed)
    driver = fresh(ledger, history)
    steps: list[Step] = plan(history, seed, "none", repeats=0.0, batch_size=60)
    for step in steps:
        driver.post(step)
    before = told(driver)
    offset = driver.exposure()["as_of"]["events"]
    posts = [step for step in steps if isinstance(step, Post)]
    for post in posts:
        assert driver.post(post)["accepted"] == 0
    for post in posts[:3]:
        other = tuple(Row(r.attempt, r.rank, r.writer, r.seq, r.kind, altered(r)) for r in post.rows)
        reply = driver.submit(Post(post.attempt, other))
        assert reply["accepted"] == 0
        assert {rejection["code"] for rejection in reply["rejected"]} <= {"event_conflict"}
        assert len(reply["rejected"]) == len({r.identity for r in other})
    assert told(driver) == before, f"seed {seed}"
    assert driver.exposure()["as_of"]["events"] == offset


def altered(row: Row) -> dict[str, Any]:
    """Other content for the same identity."""
    if row.kind == "checkpoints":
        return {**row.columns, "uri": "elsewhere"}
    if row.kind == "idles":
        return {**row.columns, "label": "elsewhere"}
    return {**row.columns, "update": row.columns["update"] + 1}
