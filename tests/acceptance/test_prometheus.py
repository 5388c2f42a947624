"""A real Prometheus, with the configuration that the project ships, sees what the ledger reports."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.domain.exposure import BUCKETS
from ledger.metrics.catalogue import COUNTED
from presence import missing
from prometheus import SHIPPED, Prometheus
from server import LedgerServer
from worked_example import RUN, attempt, batch, columns, saved

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
    server.call("PUT", RUN, {})
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


def test_the_shipped_configuration_is_valid() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool")
    checked = subprocess.run([promtool, "check", "config", str(SHIPPED)], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
