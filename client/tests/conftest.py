"""What the tests of the client share: a recording server, spool directories, and processes that die."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ledger_client
from ledger_client.testing import RecordingServer

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "POD_UID")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith("LEDGER_") or name in LAUNCHER:
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """A ledger behind a real socket."""
    with RecordingServer() as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ledger_client.Run]]:
    """`ledger_client.start` with a spool of its own and a quick sender; closed after the test."""
    runs = []

    def started(**options: Any) -> ledger_client.Run:
        settings: dict[str, Any] = {"spool": tmp_path / "spool", "flush_seconds": 0.05, "attempt": "a1"}
        run = ledger_client.start("demo", **settings | options)
        runs.append(run)
        return run

    yield started
    for run in runs:
        run.close(timeout=0.2)


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Run a program in another process, with the spool directory as its first argument."""

    def spawned(program: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "spool"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    return spawned


def train(run: ledger_client.Run, *numbers: int, targets: int = 10) -> None:
    """Applied updates of two microbatches each."""
    for number in numbers:
        with run.update(number) as update:
            for _ in range(2):
                update.microbatch(input_slots=16, consumed_tokens=12, valid_targets=targets, samples=1, loss_sum=5.0)
            update.applied()
