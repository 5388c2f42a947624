"""Ranks of one launch agree on an attempt; another launch is another attempt."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import ledger_client
from ledger_client import agreement
from ledger_client.testing import RecordingServer

Start = Callable[..., ledger_client.Run]

LAUNCHER = """
import os, subprocess, sys
program = '''
import sys, ledger_client
run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2])
for number in range(1, 6):
    with run.update(number) as update:
        update.microbatch(input_slots=4)
        update.applied()
assert run.close()
print(run.attempt)
'''
for launch in range(int(sys.argv[3])):
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, *sys.argv[1:3]], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"})
        for rank in range(3)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
"""


def test_ranks_agree_and_launches_differ(server: RecordingServer, tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(tmp_path), server.url, "2"], capture_output=True, text=True, check=True
    ).stdout
    names = out.split()
    assert len(names) == 6 and len(set(names)) == 2 and len(set(names[:3])) == 1
    for name in set(names):
        for rank in range(3):
            rows = server.ledger.rows("updates", attempt=name, rank=rank)
            assert [(row["seq"], row["update"]) for row in rows] == [(number, number) for number in range(1, 6)]
        assert server.ledger.attempts[name]["layout"]["dp"] == 3


def test_several_nodes_agree_by_the_schedulers_ids(tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1", "SLURM_NNODES": "2", "LOCAL_WORLD_SIZE": "1"}
    key = agreement.launch_key(environment, "p", "r", 2)
    names = [agreement.agreed_name(environment, str(tmp_path), "p", "r", rank, 2) for rank in (0, 1)]
    assert names[0] == names[1] and names[0].startswith("4711-1-")
    assert agreement.launch_key({**environment, "SLURM_RESTART_COUNT": "2"}, "p", "r", 2) != key
    # Requeued without any sign of it in the environment: still another name, and the same on both ranks.
    again = [agreement.agreed_name(environment, str(tmp_path), "p", "r", rank, 2) for rank in (1, 0)]
    assert again[0] == again[1] != names[0]


def test_the_environment_says_who_this_is(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEDGER_ATTEMPT", "from-the-launcher")
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("LEDGER_MODE", "offline")
    run = start(attempt=None, url="http://127.0.0.1:9")
    assert run.attempt == "from-the-launcher"
    assert next((tmp_path / "spool").iterdir()).name.startswith("from-the-launcher.rank5.")


def test_one_process_alone_needs_no_agreement(start: Start, tmp_path: Path) -> None:
    names = {start(attempt=None, mode="offline").attempt for _ in range(3)}
    assert len(names) == 3 and not (tmp_path / "spool" / agreement.AGREEMENTS).exists()
