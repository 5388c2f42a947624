"""What a process that dies leaves behind: every event whose call had returned, and nothing invented."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import train

import ledger_client
from ledger_client import cli
from ledger_client.backlog import Backlog
from ledger_client.storage import Directory
from ledger_client.testing import RecordingServer

Start = Callable[..., ledger_client.Run]
Process = Callable[..., "subprocess.Popen[str]"]

TRAINER = """
import itertools, os, sys, ledger_client
run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", flush_seconds=0.02)
for number in itertools.count(1):
    with run.update(number) as update:
        for microbatch in range(3):
            first = number * 6 + 2 * microbatch
            update.microbatch(input_slots=4, valid_targets=3, ranges=[("train", 0, first, first + 2)])
            os.write(1, f"{number} {microbatch}\\n".encode())
        update.applied()
        os.write(1, f"{number} applied\\n".encode())
"""


def drain(spool: Path, server: RecordingServer) -> int:
    """Send what is left."""
    return cli.main(["drain", str(spool), "--url", server.url])


def killed_after(running: "subprocess.Popen[str]", seconds: float) -> list[str]:
    """What the process had said when it was killed that long after its first word."""
    assert running.stdout is not None
    first = running.stdout.readline()
    timer = time.monotonic() + seconds
    lines = [first]
    while time.monotonic() < timer:
        lines.append(running.stdout.readline())
    running.send_signal(signal.SIGKILL)
    lines += running.stdout.readlines()
    running.wait()
    running.stdout.close()
    assert running.stderr is not None
    running.stderr.close()
    return [line for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("online", [True, False])
def test_no_event_is_lost_by_a_kill(process: Process, server: RecordingServer, tmp_path: Path, online: bool) -> None:
    for trial in range(6):
        server.ledger.events.clear()
        spool = tmp_path / "spool"
        said = killed_after(process(TRAINER, server.url, LEDGER_MODE="durable" if online else "offline"), random.uniform(0.0, 0.15))
        assert drain(spool, server) == 0
        number, last = said[-1].split()
        applied = int(number) if last == "applied" else int(number) - 1
        rows = server.ledger.rows("updates")
        closed = [row["update"] for row in rows if row["outcome"] == "applied"]
        still_open = [row for row in rows if row["outcome"] == "open"]
        # The call after the last word may have taken effect too.
        assert closed == list(range(1, len(closed) + 1)) and len(closed) in (applied, applied + 1), trial
        if last != "applied" and len(closed) == applied:
            (row,) = still_open
            assert row["update"] == applied + 1 and row["microbatches"] in (int(last) + 1, int(last) + 2)
            assert row["input_slots"] == 4 * row["microbatches"]
            first = row["update"] * 6
            assert row["ranges"] == [["train", 0, first, first + 2 * row["microbatches"]]]
        else:
            assert len(still_open) <= 1 and all(row["microbatches"] == 1 for row in still_open)
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        assert not server.ledger.conflicts and not list(spool.iterdir())


def test_what_was_acknowledged_is_not_sent_again(process: Process, server: RecordingServer, tmp_path: Path) -> None:
    program = """
    import os, sys, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", flush_seconds=0.02)
    for number in range(50):
        with run.update(number) as update:
            update.applied()
    assert run.flush()
    run.counter("global_step", 50)
    os._exit(7)
    """
    running = process(program, server.url)
    assert running.communicate()[1] == "" and running.returncode == 7
    known = len(server.ledger.events)
    assert known >= 50
    assert drain(tmp_path / "spool", server) == 0
    assert len(server.ledger.events) == 51 and len(server.ledger.duplicates) <= 1


def test_a_torn_tail_is_left_out(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(mode="offline")
    train(run, 1, 2, 3)
    tail = run._recorder.spool.mark[2]  # type: ignore[union-attr]
    run.close()
    (segment,) = (tmp_path / "spool").glob("*/segment-00000001")
    with segment.open("r+b") as file:
        file.seek(tail - 3)
        file.write(b"\x00")
    assert drain(tmp_path / "spool", server) == 0
    assert [row["update"] for row in server.ledger.rows("updates")] == [1, 2]


def test_a_value_that_never_arrived_is_unknown_and_its_outcome_stands(process: Process, server: RecordingServer, tmp_path: Path) -> None:
    program = """
    import os, sys, time, ledger_client
    class Slow:
        device = "accelerator:0"
        def item(self):
            time.sleep(60)
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", flush_seconds=0.02)
    with run.update(1) as update:
        update.microbatch(input_slots=4, valid_targets=Slow())
        update.applied()
    time.sleep(0.1)
    os._exit(0)
    """
    running = process(program, server.url)
    assert running.communicate()[1] == "" and not server.ledger.events
    assert drain(tmp_path / "spool", server) == 0
    (row,) = server.ledger.rows("updates")
    assert row["outcome"] == "applied" and row["input_slots"] == 4 and "valid_targets" not in row


@pytest.mark.parametrize("killed", [False, True])
def test_a_full_spool_counts_exactly_what_it_drops(start: Start, server: RecordingServer, tmp_path: Path, killed: bool) -> None:
    run = start(mode="offline", spool_bytes=1 << 18, attempt="full")
    for number in range(4000):
        run.counter("steps", number)
    health = run.health()
    assert 0 < health["dropped"] < 4000
    if killed:
        # What a kill leaves: no `gaps` event in the spool, only the control page.
        spool = run._recorder.spool
        assert spool is not None
        run._recorder.spool = None
        spool.storage.release(empty=False)
    else:
        run.close()
    assert drain(tmp_path / "spool", server) == 0
    (gap,) = server.ledger.rows("gaps")
    kept = [row["seq"] for row in server.ledger.rows("counters")]
    assert kept == list(range(1, 4001 - health["dropped"]))
    assert gap == {"seq": 4001, "first": kept[-1] + 1, "last": 4000, "reason": "spool_full"}


def test_losses_are_told_when_there_is_room_again(start: Start, server: RecordingServer) -> None:
    server.hanging.set()
    run = start(url=server.url, spool_bytes=1 << 18)
    for number in range(4000):
        run.counter("steps", number)
    dropped = run.health()["dropped"]
    server.hanging.clear()
    assert run.flush()
    for number in range(4000, 4100):
        run.counter("steps", number)
    assert run.close()
    (gap,) = server.ledger.rows("gaps")
    seqs = [row["seq"] for row in server.ledger.rows("counters")]
    assert gap["last"] - gap["first"] + 1 == dropped and len(seqs) == 4100 - dropped
    assert sorted([*seqs, gap["seq"], *range(gap["first"], gap["last"] + 1)]) == list(range(1, 4102))


def test_segments_that_are_acknowledged_are_deleted(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(url=server.url, spool_bytes=1 << 18)
    for base in range(0, 3000, 300):
        train(run, *range(base, base + 300))
        assert run.flush()
    assert len(list((tmp_path / "spool").glob("*/segment-*"))) <= 2
    assert run.close()
    assert [row["update"] for row in server.ledger.rows("updates")] == list(range(3000))
    assert run.health()["dropped"] == 0


def test_a_group_longer_than_its_scratch(start: Start, tmp_path: Path) -> None:
    run = start(mode="offline")
    update = run.update(1)
    for number in range(3000):
        update.microbatch(input_slots=1, ranges=[("train", 0, 2 * number, 2 * number + 1)])
    spool = run._recorder.spool
    assert spool is not None
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in spool.storage.names():
        (copied / name).write_bytes(Path(spool.storage.path, name).read_bytes())  # type: ignore[attr-defined]
    ((_, row),) = Backlog(Directory(copied)).take(10).events
    assert (row["outcome"], row["input_slots"], row["microbatches"], len(row["ranges"])) == ("open", 3000, 3000, 3000)  # type: ignore[arg-type]
    update.applied()
    run.close()
    ((_, closed),) = Backlog(spool.storage).take(10).events
    assert closed["outcome"] == "applied" and closed["ranges"] == row["ranges"]


def test_very_many_open_groups_are_recorded_as_open(start: Start, server: RecordingServer) -> None:
    run = start(url=server.url)
    for number in range(40):
        run.update(number).microbatch(input_slots=1)
    assert run.close()
    assert [(row["update"], row["outcome"]) for row in server.ledger.rows("updates")] == [(number, "open") for number in range(40)]


def test_a_forked_child_records_nothing_and_breaks_nothing(start: Start, server: RecordingServer) -> None:
    run = start(url=server.url)
    with run.update(1) as update:
        update.microbatch(input_slots=1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                update.microbatch(input_slots=50)
                update.applied()
                train(run, 100)
                run.checkpoint("child").accepted()
                status = 0 if not run.recording and run.close() is False else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        update.microbatch(input_slots=1)
        update.applied()
    assert run.close()
    (row,) = server.ledger.rows("updates")
    assert row["input_slots"] == 2 and not server.ledger.rows("checkpoints")


def test_the_exit_code_is_untouched_and_the_exit_bounded(process: Process, server: RecordingServer, tmp_path: Path) -> None:
    program = """
    import sys, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1")
    with run.update(1) as update:
        update.microbatch(input_slots=1)
        sys.exit(int(sys.argv[3]))
    """
    first = process(program, server.url, "3")
    assert first.communicate()[1] == "" and first.returncode == 3
    assert [row["outcome"] for row in server.ledger.rows("updates")] == ["open"]
    server.hanging.set()
    began = time.monotonic()
    running = process(program, server.url, "4")
    running.communicate()
    assert running.returncode == 4 and time.monotonic() - began < 5.0
    server.hanging.clear()


def test_a_signal_handler_may_record(process: Process, server: RecordingServer) -> None:
    program = """
    import itertools, signal, sys, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1")
    calls = itertools.count()
    def handler(number, frame):
        run.counter("signals", next(calls))
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    for number in range(8000):
        run.counter("steps", number)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(next(calls), run.close())
    """
    out, err = process(program, server.url).communicate()
    assert err == ""
    calls, closed = out.split()
    rows = server.ledger.rows("counters")
    assert closed == "True" and int(calls) > 10
    assert sorted(row["value"] for row in rows if row["name"] == "signals") == list(range(int(calls)))
    assert [row["value"] for row in rows if row["name"] == "steps"] == list(range(8000))
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))


def test_the_trainers_randomness_is_left_alone(start: Start, server: RecordingServer) -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    run = start(url=server.url)
    train(run, 1)
    run.close()
    assert random.random() == expected


def test_a_living_process_keeps_its_spool_to_itself(
    process: Process, server: RecordingServer, tmp_path: Path, capsys: pytest.CaptureFixture[Any]
) -> None:
    running = process(TRAINER, server.url, LEDGER_MODE="offline")
    assert running.stdout is not None and running.stdout.readline()
    assert drain(tmp_path / "spool", server) == 0
    assert "alive" in capsys.readouterr().out and not server.ledger.events
    killed_after(running, 0.01)
    assert cli.main(["inspect", str(tmp_path / "spool")]) == 0
    assert "events to send" in capsys.readouterr().out
    assert drain(tmp_path / "spool", server) == 0
    assert server.ledger.rows("updates")


def test_threads_that_are_switched_all_the_time_lose_nothing(start: Start, server: RecordingServer) -> None:
    run = start(url=server.url, spool_bytes=1 << 24)
    usual = sys.getswitchinterval()
    calls = itertools.count()

    def recording(base: int) -> None:
        for number in range(base, base + 3000):
            run.counter("steps", number)
            with run.update(number) as update:
                update.microbatch(input_slots=1, consumed_tokens=1, valid_targets=1, samples=1, loss_sum=1.0)

    previous = signal.signal(signal.SIGALRM, lambda number, frame: run.counter("signals", next(calls)))
    sys.setswitchinterval(1e-6)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        threads = [threading.Thread(target=recording, args=(base,)) for base in (0, 10_000, 20_000)]
        for thread in threads:
            thread.start()
        recording(30_000)
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.setswitchinterval(usual)
        signal.signal(signal.SIGALRM, previous)
    assert run.health()["dropped"] == 0 and run.close(timeout=30)
    numbers = [number for base in (0, 10_000, 20_000, 30_000) for number in range(base, base + 3000)]
    counters = server.ledger.rows("counters")
    assert sorted(row["value"] for row in counters if row["name"] == "steps") == numbers
    assert sorted(row["value"] for row in counters if row["name"] == "signals") == list(range(next(calls)))
    assert sorted(row["update"] for row in server.ledger.rows("updates")) == numbers
    seqs = sorted(row["seq"] for kind in ("counters", "updates") for row in server.ledger.rows(kind))
    assert seqs == list(range(1, len(seqs) + 1))
