"""Scrapes are exact to the report, bounded, cheap, and of the form that Prometheus asks for."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from sqlalchemy import event, text
from starlette.testclient import TestClient

from ledger.domain.exposure import BUCKETS
from ledger.domain.findings import KINDS
from ledger.domain.quantities import UNITS
from ledger.metrics import exposition
from ledger.metrics.catalogue import COUNTED, PROCESS_FAMILIES, RUN_FAMILIES
from presence import missing
from service import running
from worked_example import RUN, attempt, batch, columns, expect, play

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
FORBIDDEN_LABELS = {"rank", "update", "checkpoint", "attempt", "step"}


def samples(client: TestClient, path: str = "/metrics") -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of a scrape."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(client.get(path).text)
        for sample in family.samples
    }


def value(client: TestClient, name: str, **labels: str) -> float | None:
    """One sample of the worked example's run; None where there is none."""
    place = {"project": "default", "run": "demo", **labels}
    return samples(client).get((f"training_ledger_{name}", frozenset(place.items())))


@pytest.mark.parametrize("quantity", COUNTED)
def test_a_scrape_says_what_the_report_says(client: TestClient, quantity: str) -> None:
    exposure = client.get(f"{RUN}/exposure").json()
    balance, unit = exposure["balance"][quantity], UNITS[quantity]
    for bucket in BUCKETS:
        assert value(client, quantity, unit=unit, bucket=bucket) == balance[bucket]
    assert value(client, f"attempted_{quantity}", unit=unit) == balance["attempted"]
    assert value(client, f"imbalance_{quantity}", unit=unit) == 0
    applied = exposure["updates"]["applied"] if quantity == "updates" else sum(exposure["matrix"][quantity]["applied"].values())
    assert value(client, f"applied_{quantity}", unit=unit) == applied


def test_the_worked_example_in_a_scrape(client: TestClient) -> None:
    found = [value(client, "valid_targets", unit="targets", bucket=bucket) for bucket in BUCKETS]
    assert found == [252, 0, 72, 36, 0]
    assert value(client, "recomputed_valid_targets", unit="targets") == 108
    assert value(client, "skipped_valid_targets", unit="targets", reason="overflow") == 36
    assert value(client, "latest_update") == 7
    assert value(client, "accepted_update") == 7
    assert value(client, "restarts_total") == 1
    assert value(client, "checkpoints_accepted_total") == 2
    assert (value(client, "ranks_expected"), value(client, "ranks_reporting")) == (2, 2)
    slowest, last = value(client, "slowest_rank_event_timestamp_seconds"), value(client, "last_event_timestamp_seconds")
    assert slowest is not None
    assert last is not None
    assert slowest <= last <= time.time()
    assert value(client, "preserved_ratio") == 0.7
    assert [value(client, "run_status", status=status) for status in ("running", "stalled", "ended")] == [0, 0, 1]


def test_rates_say_what_they_include(client: TestClient) -> None:
    labels = {"unit": "targets_per_second", "window": "run", "includes_skipped": "false"}
    applied = {"work": "applied", "clock": "update", "includes_recomputed": "true"}
    assert value(client, "rate_valid_targets_per_second", **labels, **applied) == pytest.approx(324 / 5)
    kept = client.get(f"{RUN}/rates?work=preserved&time=wall").json()
    preserved = {"work": "preserved", "clock": "wall", "includes_recomputed": "false"}
    assert kept["numerator"] == 252
    assert value(client, "rate_valid_targets_per_second", **labels, **preserved) == pytest.approx(kept["value"])


def test_each_kind_of_finding_has_a_sample_though_it_be_zero(client: TestClient) -> None:
    assert {kind: value(client, "findings", kind=kind) is not None for kind in KINDS} == dict.fromkeys(KINDS, True)


def test_promtool_finds_nothing_to_say(client: TestClient) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=client.get("/metrics").content, capture_output=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_openmetrics_is_strictly_so(client: TestClient) -> None:
    answer = client.get("/metrics", headers=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(answer.text)}
    assert families["training_ledger_valid_targets"].unit == "targets"
    assert not [name for name in families if name.endswith("_created")]


def test_every_family_is_in_the_catalogue_and_every_quantity_has_one_unit(client: TestClient) -> None:
    known = {family.full_name for family in (*RUN_FAMILIES, *PROCESS_FAMILIES.values())}
    for family in parse_openmetrics(client.get("/metrics", headers=OPENMETRICS).text):
        if family.name.startswith(("process_", "python_")):
            continue
        assert family.name in known
        assert not FORBIDDEN_LABELS & {label for sample in family.samples for label in sample.labels}
        units = {sample.labels["unit"] for sample in family.samples if "unit" in sample.labels}
        assert len(units) <= 1
        assert not units or units == {family.unit}


def test_the_families_of_runs_come_alone_too(client: TestClient) -> None:
    alone, whole = samples(client, "/metrics/runs"), samples(client)
    assert {name for name, _ in alone} == {name for name, _ in whole if name.removeprefix("training_ledger_") in RUN_NAMES}


RUN_NAMES = {family.name + ("_total" if family.type == "counter" else "") for family in RUN_FAMILIES}


def opened(client: TestClient, run: str, updates: int = 1) -> None:
    """A run with that many updates of two ranks."""
    at = f"/v1/projects/default/runs/{run}"
    expect(client.put(at, json={}))
    expect(client.put(f"{at}/attempts/a1", json=attempt(1, None)))
    for rank in (0, 1):
        block = columns(1, dict.fromkeys(range(1, updates + 1), "applied"), rank)
        expect(client.post(f"{at}/attempts/a1/events", json=batch(rank, updates=block)))


def scalar(client: TestClient, name: str) -> float:
    """A sample without labels."""
    return samples(client)[f"training_ledger_{name}", frozenset()]


def exported(client: TestClient) -> set[str]:
    """The names of the runs in a scrape."""
    return {dict(labels)["run"] for name, labels in samples(client) if name == "training_ledger_run_info"}


def test_the_cap_leaves_out_the_oldest_and_counts_them(tmp_path: Path) -> None:
    with running(tmp_path, metrics_max_runs=2) as client:
        for run in ("old", "middle", "new"):
            opened(client, run)
        assert exported(client) == {"middle", "new"}
        assert (scalar(client, "exported_runs"), scalar(client, "omitted_runs")) == (2, 1)


def test_runs_leave_after_the_grace_time(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        play(client)
        assert exported(client) == {"demo"}
    with running(tmp_path, metrics_keep_seconds=0) as client:
        assert exported(client) == set()
        assert scalar(client, "omitted_runs") == 0


def test_what_is_unknown_has_no_sample_and_is_counted(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        opened(client, "demo")
        block = columns(10, {2: "applied"}, 0) | {"valid_targets": [None]}
        expect(client.post(f"{RUN}/attempts/a1/events", json=batch(0, updates=block)))
        expect(client.post(f"{RUN}/attempts/a1/events", json=batch(1, updates=columns(10, {2: "applied"}, 1))))
        assert value(client, "attempted_valid_targets", unit="targets") is None
        assert value(client, "valid_targets", unit="targets", bucket="pending") is None
        assert value(client, "valid_targets_unknown_updates", unit="updates") == 1
        assert value(client, "imbalance_valid_targets", unit="targets") == 0
        assert value(client, "attempted_input_slots", unit="slots") == 128


@contextmanager
def statements(client: TestClient) -> Iterator[list[str]]:
    """The statements that the service sends to its database meanwhile."""
    found: list[str] = []
    engine = client.app.state.running.store.engine  # type: ignore[attr-defined]

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def budget(client: TestClient) -> int:
    """How many statements a scrape takes that reads the ledger itself."""
    with statements(client) as found:
        assert client.get("/metrics").status_code == 200
    return len([statement for statement in found if not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK"))])


def settled(client: TestClient, *runs: str) -> None:
    """Waits until the projections of those runs are caught up: a report does that."""
    for run in runs:
        expect(client.get(f"/v1/projects/default/runs/{run}/exposure"))


def more(client: TestClient, run: str, updates: range) -> None:
    """The run goes on."""
    for rank in (0, 1):
        block = columns(1000 + updates.start, dict.fromkeys(updates, "applied"), rank)
        block["started_at"] = ["2026-01-01T00:00:00Z"] * len(updates)
        expect(client.post(f"/v1/projects/default/runs/{run}/attempts/a1/events", json=batch(rank, updates=block)))
    settled(client, run)


def test_a_reading_costs_a_few_statements_for_each_run_that_has_changed(tmp_path: Path) -> None:
    runs = [f"run{number}" for number in range(5)]
    with running(tmp_path, projection_interval_seconds=60) as client:
        for run in runs:
            opened(client, run, updates=3)
        settled(client, *runs)
        budget(client)
        assert budget(client) == UNCHANGED_STATEMENTS
        more(client, "run0", range(4, 6))
        one = budget(client)
        more(client, "run0", range(6, 406))
        assert budget(client) == one
        for run in ("run1", "run2", "run3"):
            more(client, run, range(4, 6))
        three = budget(client)
        assert (three - one) / 2 <= MOST_STATEMENTS_A_RUN
        assert one <= UNCHANGED_STATEMENTS + TOGETHER_STATEMENTS + MOST_STATEMENTS_A_RUN
        assert budget(client) == UNCHANGED_STATEMENTS


UNCHANGED_STATEMENTS = 2
"""Which runs there are and at which offset; how far reports lag."""
TOGETHER_STATEMENTS = 5
"""Runs, attempts, states, checkpoints and totals of all changed runs at once."""
MOST_STATEMENTS_A_RUN = 13


def test_a_scrape_shows_what_was_posted_before_it(tmp_path: Path) -> None:
    with running(tmp_path, metrics_cache_seconds=3600) as client:
        assert exported(client) == set()
        opened(client, "first")
        assert exported(client) == {"first"}


def test_a_scrape_leaves_many_changed_runs_to_the_background(tmp_path: Path) -> None:
    with running(tmp_path, metrics_cache_seconds=3600) as client:
        opened(client, "first")
        assert exported(client) == {"first"}
        for number in range(exposition.FEW_RUNS + 1):
            opened(client, f"run-{number}")
        assert exported(client) == {"first"}


def test_the_reading_is_renewed_in_the_background(tmp_path: Path) -> None:
    runs = {f"run-{number}" for number in range(exposition.FEW_RUNS + 1)}
    with running(tmp_path, metrics_cache_seconds=0.05) as client:
        for run in runs:
            opened(client, run)
        deadline = time.monotonic() + 20
        while exported(client) != runs and time.monotonic() < deadline:
            time.sleep(0.05)
        assert exported(client) == runs
        read_at = scalar(client, "snapshot_timestamp_seconds")
        assert 0 <= time.time() - read_at < 20


def test_the_service_says_what_it_takes(client: TestClient) -> None:
    found = samples(client)
    counted = "training_ledger_database_operation_duration_seconds_count"
    operations = {dict(labels)["operation"] for name, labels in found if name == counted}
    assert {"select", "insert", "update", "delete", "commit"} <= operations
    states = {dict(labels)["state"]: count for (name, labels), count in found.items() if name == "training_ledger_database_connections"}
    assert states.keys() == {"used", "idle", "most"}
    assert states["used"] + states["idle"] <= states["most"]
    assert scalar(client, "queue_limit_batches") == 64
    assert (scalar(client, "projection_lag_events"), scalar(client, "projection_lag_seconds")) == (0, 0)


def test_what_no_report_reflects_yet_is_counted(tmp_path: Path) -> None:
    with running(tmp_path, projection_interval_seconds=60) as client:
        opened(client, "late")
        # The run, its attempt, and an update of each rank.
        assert scalar(client, "projection_lag_events") == 4
        assert scalar(client, "projection_lag_events") == 0
        opened(client, "later")
        assert 0 < scalar(client, "projection_lag_seconds") < 60


def test_a_process_that_cannot_read_the_ledger_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        opened(client, "first")
        assert scalar(client, "readable") == 1
        with client.app.state.running.store.engine.begin() as connection:  # type: ignore[attr-defined]
            connection.execute(text("ALTER TABLE runs RENAME TO elsewhere"))
        left = {name for name, _ in samples(client)}
        assert scalar(client, "readable") == 0
        assert not {f"training_ledger_{name}" for name in RUN_NAMES} & left
        assert client.get("/metrics/runs").status_code == 503


def test_a_reading_that_fails_leaves_the_last_one_in_place(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        opened(client, "first")
    with running(tmp_path, metrics_cache_seconds=0.05) as client:
        assert exported(client) == {"first"}
        with client.app.state.running.store.engine.begin() as connection:  # type: ignore[attr-defined]
            connection.execute(text("ALTER TABLE runs RENAME TO elsewhere"))
        time.sleep(0.3)
        assert exported(client) == {"first"}
        assert scalar(client, "readable") == 1


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=9.9", "APPLICATION/OpenMetrics-Text;version=x;escaping=dots"])
def test_whatever_is_asked_for_there_are_two_forms(client: TestClient, accept: str) -> None:
    asked, usual = (client.get("/metrics/runs", headers={"Accept": words}) for words in (accept, OPENMETRICS["Accept"]))
    assert asked.headers["content-type"] == usual.headers["content-type"]
    assert {line for line in asked.text.splitlines() if line.startswith("#")} == {
        line for line in usual.text.splitlines() if line.startswith("#")
    }


def test_invented_methods_share_a_label(client: TestClient) -> None:
    for method in ("BREW", "WHEN"):
        client.request(method, "/healthz")
    found = {dict(labels).get("method") for name, labels in samples(client) if name == "http_request_duration_seconds_count"}
    assert "other" in found
    assert not {"BREW", "WHEN"} & found
