"""Ranks of one launch agree on an attempt; another launch is another attempt."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import ledger_client
from ledger_client import agreement
from ledger_client.identity import job_label
from ledger_client.notices import Notices
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
NODES = {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}


def names(environment: dict[str, str], *places: Path, run: str = "r", notices: Notices | None = None) -> list[str]:
    """What the ranks of one launch call their attempt, each with the spool directory that it sees."""
    said = notices or Notices()
    return [agreement.agreed_name(environment, str(place), "p", run, rank, len(places), said) for rank, place in enumerate(places)]


def aged(folder: Path, seconds: float) -> None:
    """Let all files under it be that much older."""
    for path in folder.rglob("*"):
        if path.is_file():
            moment = path.stat().st_mtime - seconds
            os.utime(path, (moment, moment))


def dead_claim(folder: Path, launch: int, rank: int) -> None:
    """A process of this machine claimed that number, and is dead."""
    with subprocess.Popen(["true"]) as ended:
        pass
    claim = f"{os.urandom(8).hex()} {ended.pid} 1 {agreement.machine()}"
    (folder / f"{launch}.rank{rank}").write_text(claim)


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


def test_nodes_of_a_numbered_job_need_no_common_directory(tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2"}
    places = tmp_path / "node-0", tmp_path / "node-1"
    notices = Notices()
    first = names(environment, *places, notices=notices)
    assert first[0] == first[1] and first[0].startswith("4711-1-") and not notices.counts
    seen = {first[0]}
    # Requeued, started again as another step, started again in place by an elastic agent, or by a loop that leaves no trace.
    for change in ({"SLURM_RESTART_COUNT": "2"}, {"SLURM_STEP_ID": "1"}, {"TORCHELASTIC_RESTART_COUNT": "1"}, {}, {}):
        again = names(environment | change, *places)
        assert again[0] == again[1] and again[0] not in seen
        seen.add(again[0])
    # With a common directory it is the same, and another run of the job is another attempt.
    assert len(set(names(environment, tmp_path, tmp_path))) == 1
    assert names(environment, *places, run="other")[0] not in seen


def test_nodes_without_a_numbered_job_meet_in_a_common_directory_and_are_told(tmp_path: Path) -> None:
    # The id of an elastic run is the user's own word, and the same again tomorrow; a pod's is another one on every node.
    environment = NODES | {"TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "0"}
    notices = Notices()
    said = Notices()
    first = [agreement.agreed_name(environment | {"POD_UID": f"pod-{rank}"}, str(tmp_path), "p", "r", rank, 2, said) for rank in (1, 0)]
    assert first[0] == first[1] and first[0].startswith("job-7-0-")
    assert said.counts["several nodes"] == 2
    again = names(environment, tmp_path, tmp_path, notices=notices)
    assert again[0] == again[1] != first[0]


def test_workers_that_are_started_again_in_place_are_another_attempt(tmp_path: Path) -> None:
    environment = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    first = names(environment, tmp_path, tmp_path)
    # The count grows after a failure, and not after a change of the membership.
    counted = names(environment | {"TORCHELASTIC_RESTART_COUNT": "1"}, tmp_path, tmp_path)
    uncounted = names(environment, tmp_path, tmp_path)
    assert len({*first, *counted, *uncounted}) == 3 and all(len(set(launch)) == 1 for launch in (first, counted, uncounted))


def test_a_rank_that_died_before_it_claimed_does_not_join_a_launch_that_is_over(tmp_path: Path) -> None:
    environment = {"LOCAL_WORLD_SIZE": "3"}
    key = agreement.launch_key(environment, "p", "r", 3)
    folder = tmp_path / agreement.AGREEMENTS / key
    folder.mkdir(parents=True)
    for rank in (0, 1):
        dead_claim(folder, 1, rank)
    aged(folder, agreement.SPREAD_SECONDS + 1)
    # Rank 2 comes first, and the other two have claimed the first number before.
    order = [agreement.agreed_name(environment, str(tmp_path), "p", "r", rank, 3, Notices()) for rank in (2, 0, 1)]
    assert len(set(order)) == 1 and not (folder / "1.rank2").exists()


@pytest.mark.parametrize("alive", [True, False])
def test_a_rank_that_comes_late_joins_its_launch(tmp_path: Path, alive: bool) -> None:
    environment = {"LOCAL_WORLD_SIZE": "2"}
    first = agreement.agreed_name(environment, str(tmp_path), "p", "r", 0, 2, Notices())
    (folder,) = (tmp_path / agreement.AGREEMENTS).iterdir()
    if alive:
        aged(folder, 10 * agreement.LONG_SPREAD_SECONDS)
    else:
        # The other rank was through within a moment.
        (folder / "1.rank0").unlink()
        dead_claim(folder, 1, 0)
    assert agreement.agreed_name(environment, str(tmp_path), "p", "r", 1, 2, Notices()) == first


def test_ranks_that_cannot_be_seen_are_waited_for_longer(tmp_path: Path) -> None:
    meeting = agreement.Folder(tmp_path, "key")
    meeting.first("1.rank0", f"x 17 1 {agreement.machine()} elsewhere")
    aged(tmp_path, agreement.SPREAD_SECONDS + 1)
    assert not meeting.over(1)
    aged(tmp_path, agreement.LONG_SPREAD_SECONDS)
    assert meeting.over(1) and not meeting.over(2)


def test_an_agreement_that_a_crash_has_left_empty_is_no_name(tmp_path: Path) -> None:
    meeting = agreement.Folder(tmp_path, "key")
    meeting.first("1.rank1", "")
    meeting.first("1.nonce", "")
    assert not meeting.over(1)
    with pytest.raises(OSError, match="is empty"):
        agreement.agreed_nonce(meeting, 0)
    aged(tmp_path, agreement.LONG_SPREAD_SECONDS + 1)
    assert agreement.agreed_nonce(meeting, 0)


def test_an_agreement_of_long_ago_is_removed(tmp_path: Path) -> None:
    environment = {"LOCAL_WORLD_SIZE": "2"}
    names(environment, tmp_path, tmp_path)
    (folder,) = (tmp_path / agreement.AGREEMENTS).iterdir()
    moment = folder.stat().st_mtime - agreement.KEPT_SECONDS - 1
    os.utime(folder, (moment, moment))
    names(environment, tmp_path, tmp_path, run="other")
    assert not folder.exists()


def test_a_directory_that_cannot_be_had_is_said(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    run = start(attempt=None, mode="memory", spool=tmp_path / "file", rank=0, world_size=2)
    assert run.attempt and any("set LEDGER_ATTEMPT" in record.message for record in caplog.records)


def test_labels_are_the_launchers_ids() -> None:
    assert job_label({}) == job_label({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}) == ""
    assert job_label({"TORCHELASTIC_RUN_ID": "my run/7", "TORCHELASTIC_RESTART_COUNT": "2"}) == "my-run-7-2"
    assert job_label({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"}) == "4711-0-2"
    assert job_label({"POD_UID": "1b4e28ba-2fa1"}) == "1b4e28ba-2fa1" and job_label({"POD_UID": "1b4e"}, one_node=False) == ""
    assert len(job_label({"SLURM_JOB_ID": "9" * 500})) < 100


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
