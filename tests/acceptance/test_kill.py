"""A service that is killed again and again loses nothing that it acknowledged and counts nothing twice."""

import http.client
import json
import queue
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

from server import LedgerServer

BATCH_COUNT = 1000
KILL_COUNT = 10
RANK_COUNT = 4
THREAD_COUNT = 4
UPDATES_A_BATCH = 4
WAIT_SECONDS = 120
RUN = "/v1/projects/acceptance/runs/killed"


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

    def __init__(self, server: LedgerServer) -> None:
        self.server = server
        order = list(range(BATCH_COUNT))
        random.Random(7).shuffle(order)
        self.waiting: queue.Queue[int] = queue.Queue()
        for number in order:
            self.waiting.put(number)
        self.acknowledged: set[int] = set()
        self.refused: list[str] = []
        self.unanswered = 0
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.send, args=(index,)) for index in range(THREAD_COUNT)]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def send(self, index: int) -> None:
        """Post until everything is acknowledged."""
        rng = random.Random(index)
        while not self.stopping.is_set() and len(self.acknowledged) < BATCH_COUNT:
            try:
                number = self.waiting.get(timeout=0.1)
            except queue.Empty:
                continue
            if not self.post(number):
                self.waiting.put(number)
                time.sleep(0.02)
            elif rng.random() < 0.1:
                with self.lock:
                    again = rng.choice(sorted(self.acknowledged))
                self.post(again)

    def post(self, number: int) -> bool:
        """Post a batch; true where it was acknowledged."""
        try:
            answer = self.server.call("POST", f"{RUN}/attempts/a1/events", batch(number))
        except urllib.error.HTTPError as error:
            if error.code != 503:
                self.refuse(f"{error.code} {error.read()[:300]!r}")
            return False
        except (OSError, http.client.HTTPException):
            with self.lock:
                self.unanswered += 1
            return False
        if answer["rejected"] or answer["accepted"] + answer["duplicates"] != UPDATES_A_BATCH:
            self.refuse(str(answer))
            return False
        with self.lock:
            self.acknowledged.add(number)
        return True

    def refuse(self, what: str) -> None:
        """Note an answer that there must not be, and stop."""
        self.refused.append(what)
        self.stopping.set()

    def wait_for(self, count: int) -> None:
        """Wait until so many batches are acknowledged."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.acknowledged) < count:
            assert not self.refused, self.refused
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {count} batches acknowledged in time"
            time.sleep(0.005)


def journalled(server: LedgerServer) -> Counter[tuple[int, int]]:
    """How often each event of the run, as (rank, seq), stands in the raw log."""
    found: Counter[tuple[int, int]] = Counter()
    with urllib.request.urlopen(f"{server.url}{RUN}/events", timeout=60) as answer:
        for line in answer:
            entry = json.loads(line)
            if entry.get("kind") == "updates":
                found[entry["rank"], entry["seq"]] += 1
    return found


def assert_kept(server: LedgerServer, acknowledged: set[int]) -> None:
    """Everything acknowledged stands in the raw log, and nothing twice."""
    found = journalled(server)
    entries = [batch(number)["ranks"][0] for number in acknowledged]
    missing = {(entry["rank"], seq) for entry in entries for seq in entry["updates"]["seq"]} - set(found)
    assert not missing, f"{len(missing)} acknowledged events are missing"
    assert not [event for event, times in found.items() if times > 1], "events stand twice"


def test_nothing_acknowledged_is_lost_and_nothing_counts_twice(database_url: str, tmp_path: Path) -> None:
    last = BATCH_COUNT // RANK_COUNT * UPDATES_A_BATCH
    right = sum(targets_of(rank, update) for rank in range(RANK_COUNT) for update in range(1, last + 1))
    with LedgerServer(database_url, tmp_path / "server.log") as server:
        server.call("PUT", RUN, {"conventions": {}})
        server.call("PUT", f"{RUN}/attempts/a1", {"resumed_from": None, "layout": {"dp": RANK_COUNT}})
        with Senders(server) as senders:
            for kill in range(1, KILL_COUNT + 1):
                senders.wait_for(BATCH_COUNT * kill // (KILL_COUNT + 1))
                server.kill()
                with senders.lock:
                    acknowledged = set(senders.acknowledged)
                server.start()
                assert_kept(server, acknowledged)
            senders.wait_for(BATCH_COUNT)
        assert senders.unanswered >= KILL_COUNT, "the service was killed while nobody was posting"
        assert_kept(server, senders.acknowledged)
        report = server.call("GET", f"{RUN}/exposure")
        events = server.call("GET", RUN)["events"]
    assert report["balance"]["valid_targets"]["attempted"] == report["balance"]["valid_targets"]["pending"] == right
    assert report["updates"]["attempted"] == report["updates"]["applied"] == last
    # The run and its attempt are entries too; whatever was sent again is not.
    assert report["as_of"]["events"] == events == BATCH_COUNT * UPDATES_A_BATCH + 2
