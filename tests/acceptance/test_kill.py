"""A server that is killed again and again loses nothing that it acknowledged and counts nothing twice."""

import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

BATCH_COUNT = 1000
KILL_COUNT = 10
RANK_COUNT = 4
THREAD_COUNT = 6
UPDATES_A_BATCH = 4
START_SECONDS = 60.0
PATH = "/v1/projects/acceptance/runs/killed"
LAYOUT = {"dp": RANK_COUNT, "tp": 1, "pp": 1, "cp": 1, "order": "tp-cp-dp-pp", "cp_counts": "shard"}


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real server process that can be killed and started again on the same database and port."""

    def __init__(self, database_url: str, log: Path) -> None:
        self.port, self.database_url, self.log = free_port(), database_url, log
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *words: str) -> list[str]:
        """The ledger's command line, in this environment's interpreter."""
        return [sys.executable, "-m", "ledger.cli", *words]

    def environment(self) -> dict[str, str]:
        """The settings of the server, as variables."""
        return {**os.environ, "LEDGER_DATABASE_URL": self.database_url}

    def upgrade(self) -> None:
        """Bring the database to the current schema."""
        subprocess.run(self.command("db", "upgrade"), env=self.environment(), check=True, capture_output=True)

    def start(self) -> None:
        """Start and wait until it is ready."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command("serve", "--port", str(self.port)),
                env=self.environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                if httpx.get(self.url + "/readyz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError("the server did not become ready: " + self.log.read_text(errors="replace")[-3000:])

    def kill(self) -> None:
        """Kill the process and its children at once, without a chance to finish anything."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def targets_of(rank: int, update: int) -> int:
    """The targets of one row, different from row to row."""
    return 1 + (rank * 7919 + update * 104_729) % 1000


def batch(number: int) -> dict[str, Any]:
    """The body of a batch: a few updates of one rank."""
    rank, first = number % RANK_COUNT, (number // RANK_COUNT) * UPDATES_A_BATCH + 1
    numbers = list(range(first, first + UPDATES_A_BATCH))
    targets = [targets_of(rank, update) for update in numbers]
    columns = {"seq": numbers, "update": numbers, "outcome": ["applied"] * UPDATES_A_BATCH, "valid_targets": targets}
    return {"ranks": [{"rank": rank, "writer": "w0", "updates": columns}]}


class Senders:
    """Threads that post batches until all are acknowledged, and now and then post an acknowledged one again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.waiting: queue.Queue[int] = queue.Queue()
        order = list(range(BATCH_COUNT))
        random.Random(7).shuffle(order)
        for number in order:
            self.waiting.put(number)
        self.acknowledged: set[int] = set()
        self.lock = threading.Lock()
        self.refused: list[str] = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.send, args=(index,)) for index in range(THREAD_COUNT)]

    def send(self, index: int) -> None:
        """Post until nothing waits."""
        rng = random.Random(index)
        with httpx.Client(base_url=self.url, timeout=20) as client:
            while not self.stopping.is_set() and len(self.acknowledged) < BATCH_COUNT:
                try:
                    number = self.waiting.get(timeout=0.1)
                except queue.Empty:
                    continue
                if not self.post(client, number):
                    self.waiting.put(number)
                    time.sleep(0.05)
                elif rng.random() < 0.1:
                    with self.lock:
                        again = rng.choice(sorted(self.acknowledged))
                    self.post(client, again)

    def post(self, client: httpx.Client, number: int) -> bool:
        """Post a batch; true where it was acknowledged."""
        try:
            reply = client.post(f"{PATH}/attempts/a1/events", json=batch(number))
        except httpx.TransportError:
            return False
        if reply.status_code == 503:
            return False
        answer = reply.json() if reply.status_code == 200 else {"rejected": [reply.text]}
        if answer["rejected"] or answer["accepted"] + answer["duplicates"] != UPDATES_A_BATCH:
            self.refused.append(f"{reply.status_code} {reply.text[:300]}")
            self.stopping.set()
            return False
        with self.lock:
            self.acknowledged.add(number)
        return True


def journalled(client: httpx.Client) -> Counter[tuple[int, int]]:
    """How often each event of the run, as (rank, seq), stands in the raw log."""
    found: Counter[tuple[int, int]] = Counter()
    with client.stream("GET", f"{PATH}/events", timeout=60) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            entry = json.loads(line) if line else {}
            if entry.get("kind") == "updates":
                found[entry["rank"], entry["seq"]] += 1
    return found


def events_of(numbers: set[int]) -> set[tuple[int, int]]:
    """The events of these batches."""
    found = set()
    for number in numbers:
        entry = batch(number)["ranks"][0]
        found |= {(entry["rank"], seq) for seq in entry["updates"]["seq"]}
    return found


def check_nothing_missing(url: str, acknowledged: set[int]) -> None:
    """Everything acknowledged stands in the raw log, and nothing twice."""
    with httpx.Client(base_url=url, timeout=60) as client:
        found = journalled(client)
    assert not events_of(acknowledged) - set(found), "acknowledged events are missing"
    assert not [event for event, times in found.items() if times > 1], "events stand twice"


def check_totals(url: str) -> None:
    """The report of everything is exact."""
    last = BATCH_COUNT // RANK_COUNT * UPDATES_A_BATCH
    right = sum(targets_of(rank, update) for rank in range(RANK_COUNT) for update in range(1, last + 1))
    report = httpx.get(f"{url}{PATH}/exposure", timeout=60).json()
    assert report["balance"]["valid_targets"]["attempted"] == right
    assert report["balance"]["valid_targets"]["pending"] == right
    assert report["updates"]["attempted"] == report["updates"]["applied"] == last


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the killed server keeps its ledger."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """A running server, killed at the end."""
    running = Server(database_url, tmp_path / "server.log")
    running.upgrade()
    running.start()
    yield running
    running.kill()


def test_nothing_acknowledged_is_lost_and_nothing_counts_twice(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.put(PATH, json={"conventions": {}}).raise_for_status()
        client.put(f"{PATH}/attempts/a1", json={"resumed_from": None, "layout": LAYOUT}).raise_for_status()
    senders = Senders(server.url)
    for thread in senders.threads:
        thread.start()
    try:
        for kill in range(1, KILL_COUNT + 1):
            wait_for(senders, BATCH_COUNT * kill // (KILL_COUNT + 1))
            server.kill()
            with senders.lock:
                acknowledged = set(senders.acknowledged)
            server.start()
            check_nothing_missing(server.url, acknowledged)
        wait_for(senders, BATCH_COUNT)
    finally:
        senders.stopping.set()
        for thread in senders.threads:
            thread.join()
    check_nothing_missing(server.url, senders.acknowledged)
    check_totals(server.url)


def wait_for(senders: Senders, count: int) -> None:
    """Wait until so many batches are acknowledged."""
    deadline = time.monotonic() + 120
    while len(senders.acknowledged) < count:
        assert not senders.refused, senders.refused
        assert time.monotonic() < deadline, f"{len(senders.acknowledged)} of {count} batches acknowledged in time"
        time.sleep(0.005)
