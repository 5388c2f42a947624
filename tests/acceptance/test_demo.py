"""`ledger demo` as a user runs it: real server, real trainers, a real SIGKILL, and two accounts that must agree."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 120


def run_demo(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ledger.cli", "demo", "--no-keep", "--folder", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)


def tally(folder: Path, attempt: int, rank: int) -> list[dict[str, Any]]:
    lines = (folder / "demo" / f"attempt-{attempt}.rank-{rank}.tally").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple["subprocess.CompletedProcess[str]", Path]:
    folder = tmp_path_factory.mktemp("demo")
    return run_demo(folder), folder


def test_both_accounts_agree(demo: tuple["subprocess.CompletedProcess[str]", Path]) -> None:
    ended, _ = demo
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(
        r"own tally agrees with the ledger: valid_targets ([\d,]+) = ([\d,]+) preserved \+ ([\d,]+) pending"
        r" \+ ([\d,]+) lost_to_restart \+ ([\d,]+) skipped \+ ([\d,]+) dropped",
        ended.stdout,
    )
    assert found, ended.stdout
    attempted, *parts = (int(number.replace(",", "")) for number in found.groups())
    preserved, pending, lost, skipped, dropped = parts
    assert attempted == sum(parts)
    assert pending == 0
    assert min(preserved, lost, skipped, dropped) > 0


def test_the_model_learns(demo: tuple["subprocess.CompletedProcess[str]", Path]) -> None:
    ended, _ = demo
    found = re.search(r"Loss \(nats per target\): ([\d.]+) at update 1, ([\d.]+) at update 60", ended.stdout)
    assert found, ended.stdout
    first, last = map(float, found.groups())
    assert last < 0.6 * first


def test_work_is_lost_and_done_again_to_the_same_end(demo: tuple["subprocess.CompletedProcess[str]", Path]) -> None:
    ended, folder = demo
    assert "SIGKILL to all 2 ranks in the middle of update 38" in ended.stdout
    assert "resumes after update 30 from step-30" in ended.stdout
    before, after = ({line["update"]: line for line in tally(folder, attempt, 0) if line["what"] == "outcome"} for attempt in (1, 2))
    redone = before.keys() & after.keys()
    assert sorted(redone) == list(range(31, 38))
    # Same weights, same data, same order of additions: a resumed state that lacked anything would show here.
    assert [before[update] for update in redone] == [after[update] for update in redone]
    assert [update for update in sorted(redone) if before[update]["outcome"] == "skipped"] == [33]


def test_the_ranks_hold_unequal_parts(demo: tuple["subprocess.CompletedProcess[str]", Path]) -> None:
    _, folder = demo
    dropped = [[line["samples"] for line in tally(folder, 1, rank) if line["what"] == "dropped"] for rank in (0, 1)]
    assert dropped == [[36], [32]]


def test_other_numbers_of_ranks_and_a_second_run_in_the_same_ledger(tmp_path: Path) -> None:
    first = run_demo(tmp_path, "--updates", "8", "--ranks", "1")
    second = run_demo(tmp_path, "--updates", "16", "--ranks", "3")
    for ended in (first, second):
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "own tally agrees with the ledger" in ended.stdout
    assert (tmp_path / "demo-2").is_dir()


def test_a_server_that_cannot_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    ended = run_demo(tmp_path)
    assert ended.returncode == 3
    assert "the server did not start" in ended.stderr
