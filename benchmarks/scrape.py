"""What a scrape costs while many runs are being trained.

    python benchmarks/scrape.py [--runs 200] [--updates 1000] [--seconds 60] [--every 5] [--database URL]

Starts the real service with its own defaults and fills it with runs of two ranks. Then it scrapes every second in both formats: first
while nothing is posted, then while every run posts a batch of each rank and a checkpoint every few seconds, so that all of them are
active and none is as it was at the reading before. At last the same database is served without a cache, so that a scrape reads the
ledger itself: what one changed run costs in statements, and what a run costs that has not changed.

Prints milliseconds as median, 95th percentile and largest, the age of what a scrape shows, the share of a processor that the service
takes, and statements as the service's own `training_ledger_database_operation_duration_seconds` counts them.
"""

import argparse
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORMATS = {"text": "", "OpenMetrics": "application/openmetrics-text; version=1.0.0"}
RANKS = (0, 1)
BATCH = 500
SETTLE_SECONDS = 10


class Connection:
    """A connection to the service that is kept open."""

    def __init__(self, port: int) -> None:
        self.kept = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> bytes:
        """The body of an answer; a service that is full is asked again."""
        while True:
            data = None if body is None else json.dumps(body).encode()
            try:
                self.kept.request(method, path, data, {"Content-Type": "application/json", **headers})
                reply = self.kept.getresponse()
            except ConnectionError:
                # The service ends a connection that was idle for some seconds; what was posted is safe to post again.
                self.kept.close()
                continue
            text = reply.read()
            if reply.status != 503:
                assert reply.status in (200, 201), text[:500]
                return text
            time.sleep(0.1)


class Run:
    """A run that goes on."""

    def __init__(self, name: str) -> None:
        self.at = f"/v1/projects/bench/runs/{name}"
        self.number, self.seq = 0, 0

    def open(self, connection: Connection) -> None:
        """Opens the run and its attempt."""
        connection.ask("PUT", self.at, {"conventions": {"objective": "token_mean", "gradient_reducer": "mean"}})
        connection.ask("PUT", f"{self.at}/attempts/a1", {"layout": {"dp": len(RANKS)}})

    def go_on(self, connection: Connection, updates: int) -> None:
        """Posts so many updates of each rank, then an accepted checkpoint."""
        numbers = range(self.number + 1, self.number + 1 + updates)
        for rank in RANKS:
            block = {
                "seq": [self.seq + 1 + place for place in range(updates)],
                "update": [*numbers],
                "outcome": ["skipped" if number % 97 == 0 else "applied" for number in numbers],
                "input_slots": [4096] * updates,
                "consumed_tokens": [4000 - number % 13 for number in numbers],
                "valid_targets": [3990 - number % 13 for number in numbers],
                "samples": [2] * updates,
                "ranges": [[["train", 0, 4 * number + 2 * rank, 4 * number + 2 * rank + 2]] for number in numbers],
                "seconds": [0.9] * updates,
            }
            self.post(connection, rank, updates=block)
        self.number, self.seq = numbers[-1], self.seq + updates + 2
        name = f"c{self.number}"
        block = {
            "seq": [self.seq - 1, self.seq],
            "checkpoint": [name, name],
            "state": ["started", "accepted"],
            "update": [self.number, None],
        }
        self.post(connection, 0, checkpoints=block)

    def post(self, connection: Connection, rank: int, **blocks: object) -> None:
        """Posts what one rank says."""
        connection.ask("POST", f"{self.at}/attempts/a1/events", {"ranks": [{"rank": rank, "writer": f"w{rank}", **blocks}]})


@contextmanager
def served(url: str, **settings: object) -> Iterator[tuple[Connection, int, int]]:
    """The service on a database: (a connection, its port, its process)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "LEDGER_DATABASE_URL": url} | {f"LEDGER_{name.upper()}": str(value) for name, value in settings.items()}
    subprocess.run([sys.executable, "-m", "ledger.cli", "db", "upgrade"], env=environment, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "-m", "ledger.cli", "serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as service:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    connection = Connection(port)
                    connection.ask("GET", "/livez")
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            yield connection, port, service.pid
        finally:
            service.terminate()


def processor_seconds(pid: int) -> float:
    """What a process has taken of a processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def value(page: bytes, name: str) -> float:
    """A sample, added up over its labels."""
    return sum(float(found) for found in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", page.decode(), re.MULTILINE))


def spread(took: list[float]) -> str:
    """Median, 95th percentile and largest of some milliseconds."""
    p95 = statistics.quantiles(took, n=20, method="inclusive")[-1]
    return f"{statistics.median(took):.1f} ms (p95 {p95:.1f}, most {max(took):.1f})"


def measure(words: str, connection: Connection, pid: int, seconds: float) -> None:
    """Scrapes every second for a while, and prints what that took."""
    took: dict[str, list[float]] = {name: [] for name in FORMATS}
    ages: list[float] = []
    begun, used = time.monotonic(), processor_seconds(pid)
    while time.monotonic() - begun < seconds:
        for name, accept in FORMATS.items():
            start = time.perf_counter()
            page = connection.ask("GET", "/metrics", Accept=accept)
            took[name].append((time.perf_counter() - start) * 1000)
        ages.append(time.time() - value(page, "training_ledger_snapshot_timestamp_seconds"))
        time.sleep(1)
    share = (processor_seconds(pid) - used) / (time.monotonic() - begun)
    figures = ", ".join(f"{name} {spread(each)}" for name, each in took.items())
    print(f"{words}: {figures}, of {len(page) / 1e6:.1f} MB with {page.count(b'run='):,} samples of runs")
    print(
        f"    what it shows is {statistics.median(ages):.1f} s old ({max(ages):.1f} at most); the service takes {share:.2f} of a processor"
    )


def train(port: int, runs: list[Run], every: float, over: threading.Event) -> None:
    """Lets each run post once in so many seconds, evenly spread."""
    connection = Connection(port)
    begun, done = time.monotonic(), 0
    while not over.is_set():
        runs[done % len(runs)].go_on(connection, 5)
        done += 1
        over.wait(max(0.0, begun + done * every / len(runs) - time.monotonic()))


def scraped(connection: Connection) -> tuple[float, float]:
    """Statements that the service had sent by the end of a scrape, and the milliseconds that the scrape took."""
    start = time.perf_counter()
    page = connection.ask("GET", "/metrics")
    took = (time.perf_counter() - start) * 1000
    return value(page, r"training_ledger_database_operation_duration_seconds_count\{operation=\"select\"\}"), took


def count(writer: Connection, reader: Connection, runs: list[Run]) -> None:
    """Prints what a reading costs, in statements and milliseconds; a second process takes in what is posted meanwhile."""
    before, took = scraped(reader)
    print(f"a reading of {len(runs)} runs: {took:.0f} ms for the first time", end="")
    for changed in (0, 1, len(runs)):
        for run in runs[:changed]:
            run.go_on(writer, 5)
            # The report is asked for so that what is counted is the reading alone, not the folding of what was posted.
            writer.ask("GET", f"{run.at}/exposure")
        after, took = scraped(reader)
        print(f"; {changed} changed: {after - before:.0f} statements, {took:.0f} ms", end="")
        before = after
    print()


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--database")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"sqlite:///{folder}/ledger.db"
        runs = [Run(f"run-{time.time_ns():x}-{number}") for number in range(options.runs)]
        with served(url) as (connection, port, pid):
            for run in runs:
                run.open(connection)
                for _ in range(0, options.updates, BATCH):
                    run.go_on(connection, BATCH)
            time.sleep(SETTLE_SECONDS)
            measure(f"{options.runs} runs, nothing posted", connection, pid, options.seconds / 4)
            over = threading.Event()
            trainer = threading.Thread(target=train, args=(port, runs, options.every, over))
            trainer.start()
            time.sleep(SETTLE_SECONDS)
            measure(f"{options.runs} runs, each posting every {options.every:g} s", connection, pid, options.seconds)
            over.set()
            trainer.join()
            with served(url, metrics_cache_seconds=0, projection_interval_seconds=60) as (reader, _, _):
                count(connection, reader, runs)


if __name__ == "__main__":
    main()
