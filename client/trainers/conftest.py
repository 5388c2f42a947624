"""What the tests of the integrations share: one real service for all of them, and the books that it keeps.

Nothing stands in for a training library or for the ledger: tiny models are trained on the processor, and `ledger serve` runs on a port
of loopback.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from server import LedgerServer, free_port  # noqa: E402 - found beside the tests of the service

QUANTITIES = ("valid_targets", "consumed_tokens", "input_slots", "samples")
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_PROCID",
            "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "POD_UID")  # fmt: skip
JOB_SECONDS = 120
collect_ignore_glob = ["*job*.py"]
"""Scripts that tests start as processes of their own."""

os.environ |= {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "WANDB_MODE": "disabled",
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """What the training libraries warn of among themselves is theirs."""
    config.addinivalue_line("filterwarnings", "ignore")


class Books:
    """What the ledger says of the runs of a test."""

    def __init__(self, server: LedgerServer) -> None:
        self.server = server
        self.url = server.url

    def ask(self, run: str, what: str = "", project: str = "default") -> Any:
        """The answer to a question about a run: `exposure`, `updates`, `findings`, `checkpoints`, `coverage`."""
        return self.server.call("GET", f"/v1/projects/{project}/runs/{run}" + (f"/{what}" if what else ""))

    def counters(self, run: str) -> dict[str, dict[str, int]]:
        """By quantity: what was attempted, what of it was applied, and what lies in an accepted checkpoint."""
        report = self.ask(run, "exposure")
        return {
            quantity: {
                "attempted": report["balance"][quantity]["attempted"],
                "applied": sum(report["matrix"][quantity]["applied"].values()),
                "preserved": report["balance"][quantity]["preserved"],
            }
            for quantity in QUANTITIES
        }

    def outcomes(self, run: str) -> list[tuple[int, str, str]]:
        """Number, outcome and fate of every update, in the order of attempt and number."""
        return [(row["update"], row["outcome"], row["fate"]) for row in self.ask(run, "updates")["items"]]


def summed(*updates: Mapping[str, int]) -> dict[str, int]:
    """The counts of several updates together."""
    return {quantity: sum(update[quantity] for update in updates) for quantity in QUANTITIES}


def expected(attempted: Mapping[str, int], applied: Mapping[str, int], preserved: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Counts worked out by hand, as `Books.counters` gives them."""
    return {
        quantity: {"attempted": attempted[quantity], "applied": applied[quantity], "preserved": preserved[quantity]}
        for quantity in QUANTITIES
    }


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    """A ledger on an embedded database, the same for all tests: each names its runs by itself."""
    folder = tmp_path_factory.mktemp("ledger")
    with LedgerServer(f"sqlite:///{folder / 'ledger.db'}", folder / "log") as running:
        yield running


@pytest.fixture
def books(server: LedgerServer) -> Books:
    """What that ledger says."""
    return Books(server)


@pytest.fixture(autouse=True)
def surroundings(server: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher of the machine reaches a test; a run that names no ledger records to this one."""
    for name in list(os.environ):
        if name.startswith("LEDGER_") or name in LAUNCHER:
            monkeypatch.delenv(name)
    monkeypatch.setenv("LEDGER_URL", server.url)
    monkeypatch.setenv("LEDGER_SPOOL", str(tmp_path / "spool"))


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a program of this folder as the ranks of one job on this machine, and gives what each of them printed."""

    def launched(program: str, *arguments: str, ranks: int = 1, **environment: str) -> list[str]:
        port = str(free_port())
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(program)), *arguments]
        processes = [
            subprocess.Popen(
                command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**shared, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=JOB_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
        failed = [errors[-4000:] for process, (_, errors) in zip(processes, said, strict=True) if process.returncode]
        assert not failed, "\n".join(failed)
        return [printed for printed, _ in said]

    return launched
