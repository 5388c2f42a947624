"""Processes, disks and servers that do what they must not: the training goes on, and the ledger has what was recorded."""

import errno
import json
import os
import shutil
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
from ledger_client.storage import Directory
from ledger_client.testing import CapturingTransport, RecordingLedger, RecordingServer, said
from ledger_client.transport import Answer

Start = Callable[..., ledger_client.Run]
Process = Callable[..., "subprocess.Popen[str]"]


def drain(spool: Path, server: RecordingServer) -> int:
    """Send what is left."""
    return cli.main(["drain", str(spool), "--url", server.url])


def updates(server: RecordingServer, attempt: str | None = None) -> list[int]:
    """Numbers of the updates that the ledger has."""
    return [row["update"] for row in server.ledger.rows("updates", attempt=attempt)]


def test_a_disk_that_fills_up_costs_exactly_what_it_has_no_room_for(
    start: Start, server: RecordingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = start(mode="offline", spool_bytes=1 << 22)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "create", full)
        for number in range(25_000):
            run.counter("steps", number)
    dropped = run.health()["dropped"]
    assert 0 < dropped < 25_000
    run.close()
    assert drain(tmp_path / "spool", server) == 0
    (gap,) = server.ledger.rows("gaps")
    kept = [row["seq"] for row in server.ledger.rows("counters")]
    assert kept == list(range(1, 25_001 - dropped))
    assert (gap["first"], gap["last"]) == (25_001 - dropped, 25_000)


def test_a_disk_that_is_full_at_launch_leaves_the_memory(
    start: Start, server: RecordingServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        run = start(url=server.url)
    train(run, 1, 2)
    assert run.close() and updates(server) == [1, 2]
    assert any("no spool on disk" in record.message for record in caplog.records)


def test_a_long_group_on_a_full_disk_is_still_counted(start: Start, server: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(url=server.url)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with run.update(1) as update:
            for _ in range(3000):
                update.microbatch(input_slots=1, valid_targets=1)
            update.applied()
    assert run.close()
    (row,) = server.ledger.rows("updates")
    assert (row["microbatches"], row["valid_targets"]) == (3000, 3000)


def test_a_spool_that_somebody_deletes_does_not_disturb_the_training(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(url=server.url)
    train(run, 1)
    shutil.rmtree(tmp_path / "spool")
    train(run, *range(2, 40))
    run.checkpoint("c").accepted()
    run.close(timeout=3)
    assert updates(server) == list(range(1, 40)) and not server.ledger.conflicts


def test_two_processes_drain_one_directory_and_nothing_is_counted_twice(
    start: Start, server: RecordingServer, tmp_path: Path
) -> None:
    for attempt in ("a1", "a2", "a3"):
        run = start(mode="offline", attempt=attempt)
        train(run, 1, 2)
        run.close()
    command = [sys.executable, "-m", "ledger_client.cli", "drain", str(tmp_path / "spool"), "--url", server.url]
    drains = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(3)]
    outs = [running.communicate()[0] for running in drains]
    assert all("Traceback" not in out for out in outs), outs
    assert drain(tmp_path / "spool", server) == 0
    assert [updates(server, attempt) for attempt in ("a1", "a2", "a3")] == [[1, 2]] * 3 and not server.ledger.conflicts


def test_a_fork_while_another_thread_records_leaves_the_child_free(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(url=server.url)
    spool = run._recorder.spool
    assert spool is not None
    held, done = threading.Event(), threading.Event()

    def recording() -> None:
        with spool.lock:
            held.set()
            done.wait(10)

    other = threading.Thread(target=recording)
    other.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(5)
            train(run, 50)
            run.counter("steps", 1)
            run.close()
            own = ledger_client.start("demo", spool=tmp_path / "spool", url=server.url, attempt="child", flush_seconds=0.05)
            train(own, 1, 2)
            status = 0 if own.close(timeout=4) else 2
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    done.set()
    other.join()
    assert os.waitstatus_to_exitcode(status) == 0
    train(run, 1)
    assert run.close()
    assert updates(server, "a1") == [1] and updates(server, "child") == [1, 2]


def test_a_spawned_child_records_by_itself_and_gets_a_handle_that_does_nothing(
    process: Process, server: RecordingServer, tmp_path: Path
) -> None:
    program = tmp_path / "training.py"
    program.write_text(
        """
import multiprocessing, sys, ledger_client

def child(run, spool, url):
    assert not run.recording
    with run.update(7) as update:
        update.microbatch(input_slots=1)
        update.applied()
    own = ledger_client.start("demo", spool=spool, url=url, attempt="child")
    own.counter("steps", 1)
    assert own.close()

if __name__ == "__main__":
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="parent")
    started = multiprocessing.get_context("spawn").Process(target=child, args=(run, *sys.argv[1:3]))
    started.start()
    started.join()
    run.counter("steps", 2)
    sys.exit(started.exitcode or not run.close())
"""
    )
    done = subprocess.run([sys.executable, str(program), str(tmp_path / "spool"), server.url], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [[row["value"] for row in server.ledger.rows("counters", attempt=name)] for name in ("parent", "child")] == [[2], [1]]
    assert not updates(server)


@pytest.mark.parametrize("handled", [True, False])
def test_sigterm_is_the_trainers_own_affair(process: Process, server: RecordingServer, tmp_path: Path, handled: bool) -> None:
    program = """
    import signal, sys, time, ledger_client
    def handler(number, frame):
        run.checkpoint("last").accepted()
        run.close(ended="preempted")
        sys.exit(17)
    if sys.argv[3] == "True":
        signal.signal(signal.SIGTERM, handler)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", flush_seconds=0.05)
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    update = run.update(1)
    update.microbatch(input_slots=8)
    print("ready", flush=True)
    while True:
        time.sleep(0.001)
        run.counter("steps", 1)
    """
    with process(program, server.url, str(handled)) as running:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == (17 if handled else -signal.SIGTERM)
    if handled:
        assert server.ledger.endings == {"a1": {"ended": "preempted"}}
        assert [row["state"] for row in server.ledger.rows("checkpoints")] == ["started", "accepted"]
    else:
        assert drain(tmp_path / "spool", server) == 0
    (row,) = server.ledger.rows("updates")
    assert (row["outcome"], row["input_slots"]) == ("open", 8)
    seqs = sorted(row["seq"] for kind in ("updates", "counters", "checkpoints") for row in server.ledger.rows(kind))
    assert seqs == list(range(1, len(seqs) + 1)) and not server.ledger.conflicts


def test_an_error_while_the_interpreter_ends_is_the_trainers_own(process: Process, server: RecordingServer) -> None:
    program = """
    import atexit, sys, threading, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1")
    atexit.register(lambda: run.counter("late", 1))
    class Late:
        def __del__(self):
            run.counter("too late", 1)
    kept = Late()
    with run.update(1) as update:
        update.applied()
    raise KeyError("the trainer's own")
    """
    running = process(program, server.url)
    err = running.communicate()[1]
    assert running.returncode == 1 and err.rstrip().endswith("KeyError: \"the trainer's own\"")
    assert "Exception ignored" not in err and "ledger" not in err.lower().replace("ledger_client.start", "")
    assert updates(server) == [1] and [row["name"] for row in server.ledger.rows("counters")] == ["late"]


def test_two_runs_in_one_process_do_not_mix(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    first, second = start(url=server.url, attempt="first"), start(url=server.url, attempt="second")
    with first.update(1) as one, second.update(1) as two:
        one.microbatch(input_slots=3, ranges=[("a", 0, 0, 1)])
        two.microbatch(input_slots=5, ranges=[("b", 0, 0, 1)])
        one.applied()
        one.microbatch(input_slots=100)
        two.skipped("overflow")
    assert first.close() and second.recording
    train(second, 2)
    assert second.close()
    rows = [(row["input_slots"], row["outcome"], row["ranges"]) for row in server.ledger.rows("updates", attempt="first")]
    assert rows == [(3, "applied", [["a", 0, 0, 1]])]
    rows = [(row["update"], row["input_slots"], row["outcome"]) for row in server.ledger.rows("updates", attempt="second")]
    assert rows == [(1, 5, "skipped"), (2, 32, "applied")]


@pytest.mark.parametrize("status", [500, 502, 401, 403, 404])
def test_a_server_that_refuses_or_fails_is_asked_again_and_loses_nothing(start: Start, server: RecordingServer, status: int) -> None:
    refusals = []

    def failing(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer | None:
        if len(refusals) < 2:
            ledger.faults.append(failing)
        if method != "POST" or len(refusals) == 2:
            return None
        refusals.append(status)
        return said(status, {"detail": "not now"})

    server.ledger.faults = [failing]
    run = start(url=server.url)
    train(run, *range(1, 20))
    assert run.close(timeout=8)
    assert refusals == [status] * 2
    assert updates(server) == list(range(1, 20)) and not server.ledger.duplicates and not server.ledger.conflicts


def test_a_server_that_is_down_for_the_whole_run_gets_all_of_it_later(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(url="http://127.0.0.1:9", conventions=ledger_client.Conventions(objective="token_mean"))
    train(run, *range(1, 30))
    run.checkpoint("c", update=29).accepted()
    began = time.monotonic()
    assert run.close(timeout=0.5, ended="completed") is False and time.monotonic() - began < 1.5
    assert drain(tmp_path / "spool", server) == 0
    assert updates(server) == list(range(1, 30)) and len(server.ledger.rows("checkpoints")) == 2
    assert server.ledger.attempts["a1"]["conventions"] == {"objective": "token_mean"}
    assert server.ledger.endings == {"a1": {"ended": "completed"}} and not server.ledger.duplicates


def test_a_server_that_comes_back_while_the_run_closes_still_gets_it(start: Start) -> None:
    with RecordingServer() as first:
        port = int(first.url.rpartition(":")[2])
    run = start(url=f"http://127.0.0.1:{port}")
    train(run, 1)
    channel = run._sender.channels[0]  # type: ignore[union-attr]
    while (delivery := channel.delivery) is None:
        time.sleep(0.01)
    # After a long outage the next attempt lies minutes ahead: closing does not wait for it.
    delivery._failures = 16
    delivery.not_before = time.monotonic() + 300
    with RecordingServer(port) as server:
        began = time.monotonic()
        assert run.close(timeout=8) and time.monotonic() - began < 4
        assert updates(server) == [1]


def test_a_transport_that_raises_anything_at_all_is_asked_again(start: Start) -> None:
    capture: Any = CapturingTransport()
    answer = capture.request
    failures = iter([RuntimeError("a fault"), MemoryError(), OSError("a fault")])

    def request(*arguments: Any) -> Answer:
        error = next(failures, None)
        if error is not None:
            raise error
        result: Answer = answer(*arguments)
        return result

    capture.request = request
    run = start(transport=capture)
    train(run, 1)
    assert run.close()
    assert [row["update"] for row in capture.ledger.rows("updates")] == [1]


def test_a_spool_of_another_version_is_said_and_left_as_it_is(
    start: Start, server: RecordingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt in ("old", "older", "new"):
        run = start(mode="offline", attempt=attempt)
        train(run, 1)
        run.close()
    (old,) = (tmp_path / "spool").glob("old.*")
    (older,) = (tmp_path / "spool").glob("older.*")
    segment = old / "segment-00000001"
    segment.write_bytes(b"LEDGER\x00\x01" + segment.read_bytes()[8:])
    declaration = json.loads((older / "declaration.json").read_text())
    del declaration["format"]
    (older / "declaration.json").write_text(json.dumps(declaration))
    before = {path: path.read_bytes() for folder in (old, older) for path in folder.iterdir()}
    assert cli.main(["inspect", str(tmp_path / "spool")]) == 1
    assert drain(tmp_path / "spool", server) == 1
    assert capsys.readouterr().err.count("written in version 1 of the format") == 4
    assert before == {path: path.read_bytes() for folder in (old, older) for path in folder.iterdir() if path in before}
    assert updates(server, "new") == [1] and not updates(server, "old") and not updates(server, "older")


def test_the_next_process_of_a_rank_sends_what_the_last_one_left(process: Process, start: Start, server: RecordingServer) -> None:
    program = """
    import os, sys, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="killed", rank=int(sys.argv[3]), mode="offline")
    with run.update(1) as update:
        update.microbatch(input_slots=8)
        update.applied()
    run.update(2).microbatch(input_slots=4)
    os._exit(9)
    """
    for url, rank in ((server.url, "0"), (server.url, "1"), ("http://127.0.0.1:9", "0")):
        killed = process(program, url, rank)
        assert killed.communicate()[1] == "" and killed.returncode == 9
    run = start(url=server.url, attempt="next", rank=0)
    train(run, 1)
    deadline = time.monotonic() + 5
    while len(server.ledger.rows("updates", attempt="killed")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert run.close()
    assert [row["outcome"] for row in server.ledger.rows("updates", attempt="killed", rank=0)] == ["applied", "open"]
    # Another rank's is its own affair, and what was meant for another address waits for somebody to say so.
    assert not server.ledger.rows("updates", attempt="killed", rank=1)
