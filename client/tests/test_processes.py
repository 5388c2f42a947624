"""What becomes of a recording process by itself: it forks, imports again, is interrupted, and ends as it would without the client."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ledger_client
from ledger_client import cli
from ledger_client.storage import Directory
from ledger_client.testing import RecordingServer

Process = Callable[..., "subprocess.Popen[str]"]


def ended(running: "subprocess.Popen[str]") -> str:
    """What the process said, once it has come through."""
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert err == ""
    return out


def test_a_fork_while_the_sender_imports_leaves_the_module_to_the_child(process: Process, server: RecordingServer) -> None:
    program = """
    import importlib.abc, os, signal, sys, time, ledger_client
    class Slow(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "http.client":
                started.append(name)
                time.sleep(0.5)
    started = []
    sys.meta_path.insert(0, Slow())
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="parent", flush_seconds=0.01)
    while not started:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        import http.client, logging
        own = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="child", flush_seconds=0.01)
        own.counter("steps", 1)
        os._exit(0 if own.close() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.counter("steps", 2)
    assert run.close()
    """
    ended(process(program, server.url))
    assert [[row["value"] for row in server.ledger.rows("counters", attempt=name)] for name in ("parent", "child")] == [[2], [1]]


def test_a_fork_does_not_wait_for_ever_for_an_import(process: Process, server: RecordingServer) -> None:
    program = """
    import os, sys, threading, time, ledger_client
    from ledger_client import late
    late.LONGEST_WAIT_SECONDS = 0.2
    held = threading.Event()
    def hold():
        with late.IMPORTING._lock:
            held.set()
            time.sleep(60)
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        late.late("cells")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and time.monotonic() - began < 5
    """
    assert ended(process(program)) == ""


def test_once_its_modules_are_there_the_sender_imports_nothing(process: Process, server: RecordingServer) -> None:
    program = """
    import sys, ledger_client
    from ledger_client.late import late
    for name in ("transport", "backlog", "delivery", "leftovers"):
        late(name)
    before = set(sys.modules)
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2].replace("127.0.0.1", "localhost"), attempt="a1")
    for number in range(300):
        with run.update(number) as update:
            update.microbatch(input_slots=1, ranges=[("train", 0, 0, 1)])
            update.applied()
    run.checkpoint("c").accepted()
    assert run.flush() and run.close(ended="completed")
    print(sorted(set(sys.modules) - before))
    """
    assert ended(process(program, server.url)) == "[]\n"


def test_a_pool_of_forked_loaders_neither_records_nor_disturbs(process: Process, server: RecordingServer) -> None:
    program = """
    import multiprocessing, os, sys, ledger_client
    def load(index):
        with run.update(1000 + index) as update:
            update.microbatch(input_slots=1)
            update.applied()
        run.counter("loaded", index)
        return os.getpid(), run.recording, len(os.listdir(sys.argv[1]))
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", flush_seconds=0.01)
    for epoch in range(3):
        with multiprocessing.get_context("fork").Pool(4) as loaders:
            for number, (pid, recording, spools) in enumerate(loaders.imap_unordered(load, range(40))):
                assert pid != os.getpid() and not recording and spools == 1
                with run.update(40 * epoch + number) as update:
                    update.microbatch(input_slots=1)
                    update.applied()
            loaders.close()
            loaders.join()
    assert run.close()
    """
    ended(process(program, server.url))
    assert [row["update"] for row in server.ledger.rows("updates")] == list(range(120)) and not server.ledger.rows("counters")


def test_a_forked_child_may_outlive_its_parent(process: Process, server: RecordingServer, tmp_path: Path) -> None:
    program = """
    import os, sys, time, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], attempt="a1", mode="offline")
    run.counter("steps", 1)
    if os.fork() == 0:
        os.close(1); os.close(2)
        time.sleep(60)
    os._exit(0)
    """
    running = process(program)
    ended(running)
    # The child still has the files open; the spool is that of a dead process all the same.
    assert cli.main(["drain", str(tmp_path / "spool"), "--url", server.url]) == 0
    assert [row["value"] for row in server.ledger.rows("counters")] == [1]


def test_a_package_that_is_imported_again_leaves_the_first_ones_run_alone(process: Process, server: RecordingServer) -> None:
    program = """
    import sys, time, ledger_client
    first = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="first", flush_seconds=0.01, mode="offline")
    first.counter("steps", 1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ledger_client"]:
        del sys.modules[name]
    import ledger_client as again
    assert again is not ledger_client or again.Run is not type(first)
    second = again.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="second", flush_seconds=0.01)
    second.counter("steps", 2)
    assert second.flush()
    time.sleep(0.2)
    first.counter("steps", 3)
    assert second.close()
    assert first.close() is False
    """
    ended(process(program, server.url))
    # It is offline, and the second run took nothing of it for what a dead process left.
    assert [row["value"] for row in server.ledger.rows("counters", attempt="second")] == [2]
    assert not server.ledger.rows("counters", attempt="first")


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Alarm"])
def test_an_interruption_between_two_instructions_leaves_no_half_event(
    process: Process, server: RecordingServer, error: str
) -> None:
    program = """
    import signal, sys, ledger_client
    class Alarm(BaseException):
        pass
    error = {"KeyboardInterrupt": KeyboardInterrupt, "Alarm": Alarm}[sys.argv[3]]
    armed = False
    def interrupt(number, frame):
        if armed:
            raise error
    signal.signal(signal.SIGALRM, interrupt)
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", spool_bytes=1 << 24)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    interrupted = returned = 0
    number = 0
    while interrupted < 400:
        number += 1
        armed = True
        try:
            run.counter("steps", number)
            with run.update(number) as update:
                update.microbatch(input_slots=1, consumed_tokens=1, valid_targets=1, samples=1, loss_sum=1.0)
                update.applied()
            armed = False
            returned += 1
        except error:
            armed = False
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert run.close()
    print(number, returned)
    """
    number, returned = map(int, ended(process(program, server.url, error)).split())
    counters, updates = server.ledger.rows("counters"), server.ledger.rows("updates")
    assert sorted(row["seq"] for row in counters + updates) == list(range(1, len(counters) + len(updates) + 1))
    values = [row["value"] for row in counters]
    assert values == sorted(set(values)) and returned <= len(values) <= number
    assert returned <= sum(row["outcome"] == "applied" for row in updates) and not server.ledger.conflicts


def test_closing_twice_and_in_a_handler_is_bounded(process: Process, server: RecordingServer) -> None:
    program = """
    import os, signal, sys, time, ledger_client
    def handler(number, frame):
        began = time.monotonic()
        run.close(timeout=0.3)
        run.close(timeout=0.3)
        print(time.monotonic() - began, flush=True)
        os._exit(21)
    signal.signal(signal.SIGTERM, handler)
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], attempt="a1", fsync="grouped")
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    run.counter("steps", 1)
    run.flush(timeout=60)
    """
    server.hanging.set()
    began = time.monotonic()
    running = process(program, server.url)
    out, err = running.communicate(timeout=30)
    server.hanging.clear()
    assert running.returncode == 21 and err.count("\n") == 1 and "not everything was delivered" in err
    assert float(out) < 1.5 and time.monotonic() - began < 10


def test_an_interruption_while_room_is_made_takes_no_room(
    start: Callable[..., ledger_client.Run], server: RecordingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = start(mode="offline", spool_bytes=1 << 18)
    interruptions = 0

    def interrupted(*_: object) -> None:
        nonlocal interruptions
        interruptions += 1
        raise KeyboardInterrupt

    recorded = 0
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "create", interrupted)
        while interruptions < 10 and recorded < 30_000:
            try:
                run.counter("steps", recorded)
                recorded += 1
            except KeyboardInterrupt:
                continue
    run.counter("steps", recorded)
    assert interruptions == 10
    assert run.health()["dropped"] == 0
    run.close()
    assert cli.main(["drain", str(tmp_path / "spool"), "--url", server.url]) == 0
    assert [row["value"] for row in server.ledger.rows("counters")] == list(range(recorded + 1))
