"""A real Prometheus, with the configuration and the rules that the project ships, sees what the ledger reports."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.grafana.boards import BOARDS
from deploy.grafana.build import text_of
from expressions import SUFFIXES, board_expressions, rules, with_values
from ledger.domain.exposure import BUCKETS
from ledger.metrics.catalogue import COUNTED, PROCESS_FAMILIES, RUN_FAMILIES, Family
from prometheus import Prometheus
from server import LedgerServer
from worked_example import RUN, attempt, batch, columns, saved

DECLARED = {"objective": "token_mean", "gradient_reducer": "mean", "remainder_policy": "drop", "schedule_clock": "applied_updates"}
RUN_LABELS = (("project", "default"), ("run", "demo"))
BEFORE = {"preserved": 144, "pending": 72, "lost_to_restart": 0, "skipped": 36, "dropped": 0}
AFTER = {"preserved": 252, "pending": 0, "lost_to_restart": 72, "skipped": 36, "dropped": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LedgerServer]:
    """A service on an embedded database."""
    with LedgerServer(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "server.log") as running:
        yield running


def post_updates(server: LedgerServer, name: str, first_seq: int, updates: dict[int, str]) -> None:
    for rank in (0, 1):
        server.call("POST", f"{RUN}/attempts/{name}/events", batch(rank, updates=columns(first_seq, updates, rank)))


def first_attempt(server: LedgerServer) -> None:
    """Four updates, an accepted checkpoint, three more, and a crash."""
    server.call("PUT", RUN, {"conventions": DECLARED})
    server.call("PUT", f"{RUN}/attempts/a1", attempt(1, None))
    post_updates(server, "a1", 1, dict.fromkeys(range(1, 5), "applied"))
    server.call("POST", f"{RUN}/attempts/a1/events", batch(0, checkpoints=saved(5, "c4", 4)))
    post_updates(server, "a1", 7, {5: "applied", 6: "skipped", 7: "applied"})
    server.call("PATCH", f"{RUN}/attempts/a1", {"ended": "crashed"})


def second_attempt(server: LedgerServer) -> None:
    """A resume that redoes three updates and saves them."""
    server.call("PUT", f"{RUN}/attempts/a2", attempt(2, "c4"))
    post_updates(server, "a2", 1, dict.fromkeys((5, 6, 7), "applied"))
    server.call("POST", f"{RUN}/attempts/a2/events", batch(0, checkpoints=saved(4, "c7", 7)))


def by_bucket(found: dict[tuple[tuple[str, str], ...], float]) -> dict[str, float]:
    return {dict(labels)["bucket"]: count for labels, count in found.items()}


def test_prometheus_sees_the_balance_move(server: LedgerServer, tmp_path: Path) -> None:
    with Prometheus(tmp_path / "prometheus", server.url) as prometheus:
        first_attempt(server)
        family = "training_ledger_valid_targets"
        assert by_bucket(prometheus.until(family, lambda found: by_bucket(found) == BEFORE)) == BEFORE
        second_attempt(server)
        assert by_bucket(prometheus.until(family, lambda found: by_bucket(found) == AFTER)) == AFTER
        report = server.call("GET", f"{RUN}/exposure")
        for quantity in COUNTED:
            found = prometheus.query(f"training_ledger_{quantity}")
            assert by_bucket(found) == {bucket: report["balance"][quantity][bucket] for bucket in BUCKETS}
            assert {dict(labels)["unit"] for labels in found} == {report["balance"][quantity]["unit"]}
        assert prometheus.query("training_ledger_recomputed_valid_targets") == {(*RUN_LABELS, ("unit", "targets")): 108}
        whole = prometheus.query(f"sum by (project, run) ({family}) - on (project, run) training_ledger_attempted_valid_targets")
        assert whole == {RUN_LABELS: 0}
        assert [target["lastError"] for target in prometheus.targets()] == [""]
        assert prometheus.metadata()["training_ledger_valid_targets"][0]["type"] == "gauge"


PATIENCE_SECONDS = 60


@contextmanager
def training(server: LedgerServer) -> Iterator[None]:
    """The second attempt goes on meanwhile: updates with a skip among them, checkpoints, an evaluation, duplicates and refusals."""
    over = threading.Event()

    def train() -> None:
        number = 7
        while not over.wait(0.4):
            number += 1
            outcome = "skipped" if number % 5 == 0 else "applied"
            post_updates(server, "a2", 100 * number, {number: outcome})
            post_updates(server, "a2", 100 * number, {number: outcome})
            other = columns(100 * number, {number: outcome}, 0) | {"samples": [3]}
            server.call("POST", f"{RUN}/attempts/a2/events", batch(0, updates=other))
            if number % 4 == 0:
                server.call("POST", f"{RUN}/attempts/a2/events", batch(0, checkpoints=saved(100 * number + 1, f"c{number}", number)))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def without_answer(prometheus: Prometheus, asked: set[str]) -> set[str]:
    """The expressions that Prometheus answers with nothing, however often it is asked."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while asked and time.monotonic() < deadline:
        asked = {expression for expression in asked if not prometheus.query(expression)}
        time.sleep(0.5)
    return asked


def samples_of(family: Family) -> set[str]:
    return {family.full_name + suffix for suffix in SUFFIXES[family.type]}


def asserted_families(prometheus: Prometheus) -> None:
    """Asserts that every documented family is there, with the documented labels and type."""
    described = prometheus.metadata()
    for family in (*RUN_FAMILIES, *PROCESS_FAMILIES.values()):
        for name in samples_of(family):
            found = prometheus.query(name)
            assert found, name
            labels = {label for series in found for label, _ in series} - {"le"}
            # A label without a value is none: Prometheus drops it.
            assert labels <= {*family.labels}, name
            assert labels >= {*family.labels} - {"reason"}, name
        kind = described[family.full_name][0]
        assert (kind["type"], kind["help"]) == (family.type, family.meaning)


def test_every_expression_of_every_dashboard_and_rule_has_data(server: LedgerServer, tmp_path: Path) -> None:
    first_attempt(server)
    second_attempt(server)
    seen = {"seq": [50], "update": [7], "name": ["validation"], "retry": [0], "seconds": [1.0]}
    seen |= {"input_slots": [512], "consumed_tokens": [500], "valid_targets": [490], "samples": [4]}
    server.call("POST", f"{RUN}/attempts/a2/events", batch(0, evaluations=seen))
    asked = {
        with_values(expression, quantity=quantity)
        for name in BOARDS
        for expression in board_expressions(json.loads(text_of(name)))
        for quantity in COUNTED
    }
    alerts = [rule for rule in rules() if "alert" in rule]
    with Prometheus(tmp_path / "prometheus", server.url) as prometheus, training(server):
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        assert without_answer(prometheus, asked | recorded) == set()
        asserted_families(prometheus)
        evaluated = {rule["name"]: rule for rule in prometheus.rules()}
        assert evaluated.keys() == recorded | {rule["alert"] for rule in alerts}
        assert {name: rule["lastError"] for name, rule in evaluated.items() if rule["health"] != "ok"} == {}
        for rule in alerts:
            prometheus.query(rule["expr"])
