"""What recording costs a training thread, beside other ways of writing the same six numbers down.

    python benchmarks/client.py [--rounds 5] [--calls 8000] [--paced 200] [--kills 100]

All subjects take turns within one run, so that their ratios hold although the machine's speed drifts: two floors (a call that does nothing,
a bare pack into a mapped page), the client's record call, a JSON line that is appended and flushed, the same with fsync, an SQLite insert
with commit, a POST to this machine, and of wandb, tensorboardX and mlflow what is installed. Then: the client's whole update of eight
microbatches, imports in processes of their own, what is left after a kill -9 right behind the last call, and after kills at random
moments.
"""

import argparse
import http.client
import importlib
import json
import mmap
import os
import random
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Self

import ledger_client
from ledger_client.backlog import Backlog
from ledger_client.storage import Directory

MICROBATCHES = 8
GAP_SECONDS = 0.002
SLOW_SHARE = 20
KILLED_AFTER = 2000
IMPORT_TRIALS = 9
NUMBERS = {"input_slots": 4096, "consumed_tokens": 4000, "valid_targets": 3998, "samples": 2, "loss_sum": 9001.5}
Record = Callable[[int], object]


class Collector(ThreadingHTTPServer):
    """Takes what is posted and counts it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Acknowledgement)
        self.taken = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Acknowledgement(BaseHTTPRequestHandler):
    """Answers as soon as the body is read."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Take one record."""
        self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.taken += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


PROGRESS = struct.Struct("<Q")


def page(path: Path) -> mmap.mmap:
    """A mapped page of a file, touched."""
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE)


@contextmanager
def ledger(folder: Path, _port: int) -> Iterator[Record]:
    """The client: one microbatch a call, and an outcome after every eighth, which is part of that call."""
    run = ledger_client.start("bench", spool=folder, mode="offline", attempt="bench", spool_bytes=1 << 30)
    update = run.update(0)

    def record(number: int) -> None:
        nonlocal update
        update.microbatch(input_slots=4096, consumed_tokens=4000, valid_targets=3998, samples=2, loss_sum=9001.5)
        if number % MICROBATCHES == MICROBATCHES - 1:
            update.applied()
            update = run.update(number)

    yield record
    run.close()


@contextmanager
def nothing(_folder: Path, _port: int) -> Iterator[Record]:
    """A call that does nothing: what a pause alone does to the caches and the clock."""
    yield lambda number: number


@contextmanager
def mapped_ring(folder: Path, _port: int) -> Iterator[Record]:
    """The same bytes packed into a mapped file, without names, checks or a clock: no record call can be cheaper and survive a kill."""
    with (folder / "ring").open("w+b") as file:
        file.truncate(1 << 16)
        area = mmap.mmap(file.fileno(), 1 << 16)
    pack = struct.Struct("<QQQQddQ").pack_into
    yield lambda number: pack(area, number % 1024 * 56, 4096, 4000, 3998, 2, 9001.5, 0.0, number)
    area.close()


@contextmanager
def json_lines(folder: Path, _port: int, *, synced: bool = False) -> Iterator[Record]:
    """A line appended to a file and flushed."""
    with (folder / "lines.ndjson").open("a") as file:

        def record(number: int) -> None:
            file.write(json.dumps({"step": number, **NUMBERS}) + "\n")
            file.flush()
            if synced:
                os.fsync(file.fileno())

        yield record


@contextmanager
def synced_lines(folder: Path, port: int) -> Iterator[Record]:
    """The same, and on the disk when the call returns."""
    with json_lines(folder, port, synced=True) as record:
        yield record


@contextmanager
def sqlite_rows(folder: Path, _port: int) -> Iterator[Record]:
    """A row inserted and committed, with write-ahead log."""
    connection = sqlite3.connect(folder / "rows.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (step, a, b, c, d, e)")
    connection.commit()

    def record(number: int) -> None:
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", (number, *NUMBERS.values()))
        connection.commit()

    yield record
    connection.close()


@contextmanager
def posts(_folder: Path, port: int) -> Iterator[Record]:
    """A request to a server on this machine, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    headers = {"Content-Type": "application/json"}

    def record(number: int) -> None:
        connection.request("POST", "/", json.dumps({"step": number, **NUMBERS}), headers)
        connection.getresponse().read()

    yield record
    connection.close()


@contextmanager
def wandb_offline(folder: Path, _port: int) -> Iterator[Record]:
    """One `log` call, offline."""
    wandb = importlib.import_module("wandb")
    run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(silent=True, console="off"))
    yield lambda number: run.log({"step": number, **NUMBERS})
    run.finish()


@contextmanager
def tensorboard(folder: Path, _port: int) -> Iterator[Record]:
    """Five scalars."""
    writer = importlib.import_module("tensorboardX").SummaryWriter(str(folder))
    yield lambda number: [writer.add_scalar(name, value, number) for name, value in NUMBERS.items()]
    writer.close()


@contextmanager
def mlflow_store(folder: Path, _port: int) -> Iterator[Record]:
    """One `log_metrics` call into a local SQLite store."""
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with mlflow.start_run():
        yield lambda number: mlflow.log_metrics(NUMBERS, step=number)


class Subject(NamedTuple):
    """One way of recording, and the module that must be there for it."""

    name: str
    opened: Callable[[Path, int], AbstractContextManager[Record]]
    module: str | None = None


SUBJECTS = [
    Subject("ledger_client", ledger),
    Subject("(an empty Python call)", nothing),
    Subject("(bare bytes into a map)", mapped_ring),
    Subject("JSON line + flush", json_lines),
    Subject("JSON line + fsync", synced_lines),
    Subject("sqlite3 insert + commit", sqlite_rows),
    Subject("HTTP POST to loopback", posts),
    Subject("wandb (offline)", wandb_offline, "wandb"),
    Subject("tensorboardX", tensorboard, "tensorboardX"),
    Subject("mlflow (local store)", mlflow_store, "mlflow"),
]


class Times:
    """Single calls in nanoseconds, back to back and paced, and the CPU time of the process behind the first kind."""

    def __init__(self) -> None:
        self.burst: list[int] = []
        self.paced: list[int] = []
        self.cpu_seconds = 0.0

    def run(self, record: Record, first: int, calls: int, paced: int) -> int:
        """One turn; gives the number of the next call."""
        clock = time.perf_counter_ns
        began_cpu = time.process_time()
        for number in range(first, first + calls):
            began = clock()
            record(number)
            self.burst.append(clock() - began)
        self.cpu_seconds += time.process_time() - began_cpu
        for number in range(first + calls, first + calls + paced):
            time.sleep(GAP_SECONDS)
            began = clock()
            record(number)
            self.paced.append(clock() - began)
        return first + calls + paced


def micros(values: list[int], share: float) -> float:
    """A quantile. Units: microseconds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000


def usable(subject: Subject) -> bool:
    """Whether the subject can run here; says so if it cannot."""
    if subject.module is None or find_spec(subject.module) is not None:
        return True
    print(f"{subject.name} is skipped: the module {subject.module} is not installed here.")
    return False


def compare_calls(subjects: list[Subject], rounds: int, calls: int, paced: int) -> None:
    """Single record calls, all subjects in turns."""
    times = {subject.name: Times() for subject in subjects}
    numbers = dict.fromkeys(times, 0)
    with Collector() as collector, tempfile.TemporaryDirectory() as root:
        for turn in range(rounds):
            for subject in subjects:
                few = calls if subject.name == "ledger_client" or subject.name.startswith("(") else max(20, calls // SLOW_SHARE)
                folder = Path(root, subject.name.replace(" ", "-"), str(turn))
                folder.mkdir(parents=True)
                with subject.opened(folder, collector.server_address[1]) as record:
                    for number in range(16):
                        record(number)
                    numbers[subject.name] = times[subject.name].run(record, 16, few, paced)
    ours = times["ledger_client"]
    print(f"\n{'record call':26}{'median us':>10}{'p99':>9}{'paced':>9}{'p99':>9}{'CPU us':>9}{'x ours':>9}{'x paced':>9}")
    for name, seen in times.items():
        print(
            f"{name:26}{micros(seen.burst, 0.5):10.2f}{micros(seen.burst, 0.99):9.2f}{micros(seen.paced, 0.5):9.2f}"
            f"{micros(seen.paced, 0.99):9.2f}{seen.cpu_seconds / len(seen.burst) * 1e6:9.2f}"
            f"{micros(seen.burst, 0.5) / micros(ours.burst, 0.5):9.1f}{micros(seen.paced, 0.5) / micros(ours.paced, 0.5):9.1f}"
        )
    print(f"(an empty timing costs {micros(empty_timings(), 0.5):.2f} us of each; every eighth call of ours also closes an update)")


def empty_timings() -> list[int]:
    """What the clock itself takes."""
    clock = time.perf_counter_ns
    return [-(clock() - clock()) for _ in range(10_000)]


def whole_updates(rounds: int, updates: int) -> None:
    """An update with all its microbatches and its outcome."""
    values: list[int] = []
    with tempfile.TemporaryDirectory() as root:
        for turn in range(rounds):
            run = ledger_client.start("bench", spool=Path(root, str(turn)), mode="offline", attempt="bench", spool_bytes=1 << 30)
            for number in range(updates):
                began = time.perf_counter_ns()
                with run.update(number) as update:
                    for _ in range(MICROBATCHES):
                        update.microbatch(input_slots=4096, consumed_tokens=4000, valid_targets=3998, samples=2, loss_sum=9001.5)
                    update.applied(reported_loss=2.25)
                values.append(time.perf_counter_ns() - began)
            run.close()
    print(f"\nan update of {MICROBATCHES} microbatches: median {micros(values, 0.5):.2f} us, p99 {micros(values, 0.99):.2f} us")


def imported(module: str) -> tuple[float, float]:
    """Time and memory of an import, in a process of its own. Units: milliseconds, resident megabytes of the whole process."""
    program = (
        "import time; began = time.perf_counter_ns()\n"
        f"import {module}\n"
        "took = time.perf_counter_ns() - began\n"
        "print(took / 1e6, int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    milliseconds, megabytes = out.split()
    return float(milliseconds), float(megabytes)


def compare_imports(subjects: list[Subject]) -> None:
    """Imports over a bare interpreter, in turns."""
    modules = ["time", "json", "sqlite3", "http.client", "ledger_client", *(subject.module for subject in subjects if subject.module)]
    seen: dict[str, list[tuple[float, float]]] = {module: [] for module in modules}
    for _ in range(IMPORT_TRIALS):
        for module in modules:
            seen[module].append(imported(module))
    bare = statistics.median(megabytes for _, megabytes in seen["time"])
    print(f"\n{'import':26}{'ms':>10}{'MB over a bare interpreter':>30}")
    for module in modules[1:]:
        took = statistics.median(milliseconds for milliseconds, _ in seen[module])
        held = statistics.median(megabytes for _, megabytes in seen[module])
        print(f"{module:26}{took:10.1f}{held - bare:30.1f}")


def dies(name: str, folder: Path, port: int) -> None:
    """In a child: record, then be killed before anything else happens."""
    (subject,) = [subject for subject in SUBJECTS if subject.name == name]
    with subject.opened(folder, port) as record:
        for number in range(KILLED_AFTER):
            record(number)
        os.kill(os.getpid(), signal.SIGKILL)


def microbatches_left(spool: Path) -> int:
    """How many microbatches a dead process left, in closed groups and in the open one."""
    backlog = Backlog(Directory(spool))
    count = 0
    while (parcel := backlog.take(KILLED_AFTER)).events:
        backlog.acknowledge(parcel)
        count += sum(said for _, row in parcel.events if isinstance(said := row.get("microbatches"), int))
    return count


def found(name: str, folder: Path, collector: Collector) -> int:
    """How many calls of a dead process can be read back."""
    if name == "ledger_client":
        (spool,) = (path for path in folder.iterdir() if path.is_dir())
        return microbatches_left(spool)
    if name.startswith("JSON"):
        return len((folder / "lines.ndjson").read_text().splitlines())
    if name.startswith("sqlite3"):
        connection = sqlite3.connect(folder / "rows.db")
        (count,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        connection.close()
        return int(count)
    return collector.taken


def compare_kills() -> None:
    """What is left of the calls that had returned before a SIGKILL."""
    print(f"\nfound after kill -9 right behind {KILLED_AFTER} calls")
    for subject in SUBJECTS:
        if subject.module is not None or subject.name.startswith("("):
            continue
        with Collector() as collector, tempfile.TemporaryDirectory() as root:
            subprocess.run([sys.executable, __file__, "--dies", subject.name, root, str(collector.server_address[1])], check=False)
            print(f"{subject.name:26}{found(subject.name, Path(root), collector):10}")


def records_until_killed(folder: Path) -> None:
    """In a child: record without end, and tell through a mapped page how many calls have returned."""
    told = page(folder / "told")
    with ledger(folder / "spool", 0) as record:
        number = 0
        while True:
            record(number)
            number += 1
            # Two places in turn: packing empties a place first, and the kill may come just then.
            PROGRESS.pack_into(told, number % 2 * PROGRESS.size, number)


def returned_calls(told: Path) -> int:
    """How many calls had returned, as the child told."""
    content = told.read_bytes() if told.exists() else b""
    return max((number for (number,) in PROGRESS.iter_unpack(content[: 2 * PROGRESS.size])), default=0)


def random_kills(kills: int) -> None:
    """Kill a recording process at a random moment, again and again, and count calls that had returned and are not found."""
    lost = returned = 0
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as root:
            child = subprocess.Popen([sys.executable, __file__, "--until-killed", root])
            told = Path(root, "told")
            while not returned_calls(told):
                time.sleep(0.002)
            time.sleep(random.uniform(0.0, 0.05))
            child.kill()
            child.wait()
            calls = returned_calls(told)
            (spool,) = (path for path in Path(root, "spool").iterdir() if path.is_dir())
            kept = microbatches_left(spool)
            returned += calls
            lost += max(0, calls - kept)
            assert kept <= calls + 1, "a call that never began was found"
    print(f"\n{kills} kills at random moments: {returned} calls had returned, {lost} of them lost")


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=8000, help="calls of ours a round; the slow ones make a twentieth")
    parser.add_argument("--paced", type=int, default=200, help="calls a round with pauses of 2 ms")
    parser.add_argument("--kills", type=int, default=100, help="kills at random moments")
    parser.add_argument("--until-killed", help=argparse.SUPPRESS)
    parser.add_argument("--dies", nargs=3, metavar=("SUBJECT", "FOLDER", "PORT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.until_killed:
        records_until_killed(Path(chosen.until_killed))
    if chosen.dies:
        name, folder, port = chosen.dies
        dies(name, Path(folder), int(port))
    warnings.filterwarnings("ignore")
    subjects = [subject for subject in SUBJECTS if usable(subject)]
    compare_calls(subjects, chosen.rounds, chosen.calls, chosen.paced)
    whole_updates(chosen.rounds, chosen.calls // MICROBATCHES)
    compare_imports(subjects)
    compare_kills()
    random_kills(chosen.kills)


if __name__ == "__main__":
    main()
