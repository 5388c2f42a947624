"""What a report costs when the history grows, and what the service weighs while it takes events in.

    python benchmarks/scale.py [--updates 50000] [--ranks 64] [--database URL] [--port 8499]

Starts the real service, posts a short run and a long one (each rank posts its own batches of 1,000 updates, four connections at
once), then asks both for their exposure report in turn. Prints the ratio of the two times, measured side by side, the service's
largest resident memory, and how many rank-updates were acknowledged a second.
"""

import argparse
import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCH = 1000
SHORT = 500
PAIRS = 21
TARGETS = 3998


def call(url: str, method: str = "GET", body: object = None) -> object:
    """One JSON call."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


def batch(rank: int, first: int, size: int, ranks: int, saved: int) -> bytes:
    """What one rank posts of `size` updates; two events about a checkpoint follow the update `saved`."""
    numbers = list(range(first, first + size))
    block = {
        "seq": [number if number <= saved else number + 2 for number in numbers],
        "update": numbers,
        "outcome": ["skipped" if number % 97 == 0 else "applied" for number in numbers],
        "reason": ["overflow" if number % 97 == 0 else None for number in numbers],
        "input_slots": [4096] * size,
        "consumed_tokens": [4000 - (number * 7 + rank) % 13 for number in numbers],
        "valid_targets": [TARGETS - (number * 7 + rank) % 13 for number in numbers],
        "loss_sum": [9000.5 + (number * 31 + rank) % 1009 / 7 for number in numbers],
        "ranges": [[["train", 0, (number * ranks + rank) * 2, (number * ranks + rank) * 2 + 2]] for number in numbers],
        "seconds": [0.9 + (number % 11) / 100 for number in numbers],
    }
    return gzip.compress(json.dumps({"ranks": [{"rank": rank, "writer": "bench", "updates": block}]}).encode(), 1)


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process and its children."""
    pids = [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Watcher(threading.Thread):
    """Keeps the largest resident memory seen."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.largest, self.over = pid, 0.0, threading.Event()

    def run(self) -> None:
        """Looks until it is told that it is over."""
        while not self.over.wait(0.1):
            self.largest = max(self.largest, resident_megabytes(self.pid))


def fill(port: int, run: str, updates: int, ranks: int) -> float:
    """Posts a whole run and gives the seconds that it took."""
    base = f"/v1/projects/bench/runs/{run}"
    call(f"http://127.0.0.1:{port}{base}", "PUT", {})
    call(f"http://127.0.0.1:{port}{base}/attempts/a1", "PUT", {"layout": {"dp": ranks}})
    local = threading.local()

    def post(work: tuple[int, int]) -> None:
        rank, first = work
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        body = batch(rank, first, min(BATCH, updates - first + 1), ranks, updates // 2)
        while True:
            local.connection.request("POST", base + "/attempts/a1/events", body, headers)
            reply = local.connection.getresponse()
            text = reply.read()
            if reply.status != 503:
                break
            time.sleep(0.1)
        assert reply.status == 200, text[:500]

    work = [(rank, first) for first in range(1, updates + 1, BATCH) for rank in range(ranks)]
    begun = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(post, work))
    seconds = time.perf_counter() - begun
    half = updates // 2
    checkpoint = {"seq": [half + 1, half + 2], "checkpoint": ["c", "c"], "state": ["started", "accepted"], "update": [half, None]}
    saved = {"ranks": [{"rank": 0, "writer": "bench", "checkpoints": checkpoint}]}
    call(f"http://127.0.0.1:{port}{base}/attempts/a1/events", "POST", saved)
    return seconds


def report_seconds(port: int, run: str) -> float:
    """How long one exposure report takes."""
    begun = time.perf_counter()
    call(f"http://127.0.0.1:{port}/v1/projects/bench/runs/{run}/exposure")
    return time.perf_counter() - begun


def settle(port: int, run: str) -> float:
    """Waits until the run's report reflects everything, and gives the seconds."""
    begun = time.perf_counter()
    while True:
        try:
            report_seconds(port, run)
            return time.perf_counter() - begun
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.2)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--port", type=int, default=8499)
    parser.add_argument("--database")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"sqlite:///{folder}/ledger.db"
        environment = {**os.environ, "LEDGER_DATABASE_URL": url}
        command = [sys.executable, "-m", "ledger.cli", "serve", "--port", str(options.port)]
        subprocess.run([sys.executable, "-m", "ledger.cli", "db", "upgrade"], env=environment, check=True, stdout=subprocess.DEVNULL)
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as service:
            try:
                compare(options.port, service.pid, options.updates, options.ranks)
            finally:
                service.terminate()
        if not options.database:
            size = Path(folder, "ledger.db").stat().st_size
            print(f"database file: {size / (options.updates + SHORT) / options.ranks:.1f} bytes a rank-update, journal and projections")


def compare(port: int, pid: int, updates: int, ranks: int) -> None:
    """Measures the two runs side by side."""
    for _ in range(100):
        try:
            call(f"http://127.0.0.1:{port}/readyz")
            break
        except OSError:
            time.sleep(0.1)
    suffix = f"{time.time_ns():x}"
    short, long = f"short-{suffix}", f"long-{suffix}"
    fill(port, short, SHORT, ranks)
    settle(port, short)
    watcher = Watcher(pid)
    watcher.start()
    seconds = fill(port, long, updates, ranks)
    waited = settle(port, long)
    watcher.over.set()
    pairs = [(report_seconds(port, short), report_seconds(port, long)) for _ in range(PAIRS)]
    ratio = statistics.median(after / before for before, after in pairs)
    rows = updates * ranks
    print(f"acknowledged: {rows / seconds:,.0f} rank-updates/s; first report after the last acknowledgement: {waited:.2f} s")
    print(f"resident memory while ingesting: {watcher.largest:.0f} MB at most")
    print(f"report on {SHORT} updates: {statistics.median(before for before, _ in pairs) * 1000:.1f} ms")
    print(f"report on {updates} updates: {statistics.median(after for _, after in pairs) * 1000:.1f} ms")
    print(f"ratio: {ratio:.2f}")


if __name__ == "__main__":
    main()
