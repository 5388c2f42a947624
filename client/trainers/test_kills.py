"""Four ranks and the service are killed at random moments, again and again: the report is the ranks' own tally, exactly.

The tally knows of each record call that it was begun and that it returned. A call that a kill came into may have taken effect or not,
and the raw log says which; whatever had returned is in the ledger, and nothing is there that was never begun.
"""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import killed_job
from server import LedgerServer

RANK_KILLS, SERVICE_KILLS = 14, 6
RUN = "/v1/projects/trainers/runs/killed"
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")
BUCKETS = ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")
LONGEST_WAIT_SECONDS = 60
Place = tuple[str, int, int]
"""Attempt, update, rank."""


class Group:
    """What one rank noted of one update: counts of its microbatches, its outcome, and of each whether the call returned."""

    def __init__(self) -> None:
        self.begun: dict[object, Any] = {}
        self.returned: set[object] = set()

    def note(self, line: dict[str, Any]) -> None:
        """A line of the tally."""
        what = line.get("microbatch", "outcome")
        self.begun[what] = line.get("counts", line.get("outcome"))
        if line["returned"]:
            self.returned.add(what)

    def settle(self, row: dict[str, Any] | None) -> None:
        """Let the ledger's row decide about the one call that may not have returned; all others must be there as they are."""
        open_row = row is None or row["outcome"] == "open"
        seen = set(range(row.get("microbatches") or 0)) if row is not None else set()
        found: set[object] = {*seen} if open_row else {*seen, "outcome"}
        assert self.returned <= found <= set(self.begun), (self.begun, self.returned, row)
        self.begun = {what: self.begun[what] for what in found}
        if row is not None:
            assert open_row or row["outcome"] == self.begun["outcome"]
            assert {name: row[name] for name in QUANTITIES} == self.counts(), (self.begun, row)

    @property
    def outcome(self) -> str:
        """What the rank said, or `open`."""
        said: str = self.begun.get("outcome", "open")
        return said

    def counts(self) -> dict[str, int]:
        """The sums over its microbatches."""
        parts = [counts for what, counts in self.begun.items() if what != "outcome"]
        return {name: sum(part[name] for part in parts) for name in QUANTITIES}


def tallied(folder: Path) -> tuple[dict[Place, Group], dict[str, Any]]:
    """What all ranks noted: their groups, and what each attempt resumed from, in the order of the attempts."""
    groups: dict[Place, Group] = defaultdict(Group)
    attempts: dict[str, Any] = {}
    for rank in range(killed_job.RANKS):
        for text in (folder / f"tally-{rank}").read_text().splitlines():
            line = json.loads(text)
            if "resumed_from" in line:
                assert attempts.setdefault(line["attempt"], line["resumed_from"]) == line["resumed_from"]
            else:
                groups[line["attempt"], line["update"], line["rank"]].note(line)
    return groups, attempts


def logged(service: LedgerServer) -> dict[Place, dict[str, Any]]:
    """The ledger's rows of updates; a row that closes a group takes the place of the open one."""
    with urllib.request.urlopen(f"{service.url}{RUN}/events", timeout=60) as answer:
        lines = [json.loads(line) for line in answer]
    found: dict[Place, dict[str, Any]] = {}
    identities: Counter[tuple[Any, ...]] = Counter()
    for line in lines:
        if line.get("kind") == "updates":
            identities[line["attempt"], line["rank"], line["writer"], line["seq"]] += 1
            place = line["attempt"], line["update"], line["rank"]
            if place not in found or found[place]["outcome"] == "open":
                found[place] = line
    assert set(identities.values()) <= {1}, "an event stands twice"
    return found


def expected(groups: dict[Place, Group], attempts: dict[str, Any], head: str, last: int) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """The balance of each quantity and the numbers of updates, by the rules: all ranks that took part said the same, or it is held."""
    through = {head: last}
    attempt = head
    while (source := attempts[attempt]) is not None:
        attempt = source["attempt"]
        through[attempt] = source["update"]
    balance: dict[str, Counter[str]] = {name: Counter() for name in QUANTITIES}
    updates: Counter[str] = Counter()
    for attempt, number in sorted({place[:2] for place in groups}):
        ranks = [group for rank in range(killed_job.RANKS) if (group := groups.get((attempt, number, rank))) is not None and group.begun]
        outcomes = {group.outcome for group in ranks} if len(ranks) == killed_job.RANKS else {"held"}
        outcome = outcomes.pop() if len(outcomes) == 1 else "held"
        kept = outcome == "applied" and number <= through.get(attempt, 0)
        bucket = "skipped" if outcome == "skipped" else "preserved" if kept else "lost_to_restart"
        if outcome in ("applied", "skipped"):
            updates[outcome] += 1
            updates[bucket] += outcome == "applied"
        for group in ranks:
            for name, amount in group.counts().items():
                balance[name][bucket] += amount
                balance[name]["attempted"] += amount
    return balance, updates


class Job:
    """The job, and what its launcher says."""

    def __init__(self, folder: Path, url: str, log: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
        command = [sys.executable, killed_job.__file__, str(folder), url]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        self.said: queue.Queue[list[str]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(line.split())

    def launched(self) -> list[int]:
        """The processes of the next launch; none where the job is through."""
        return [int(number) for number in self.said.get(timeout=LONGEST_WAIT_SECONDS)[1:]]


def noted(folder: Path) -> int:
    """How much has been tallied so far. Units: bytes."""
    return sum(path.stat().st_size for path in folder.glob("tally-*"))


def kill_again_and_again(job: Job, service: LedgerServer, folder: Path, chance: random.Random) -> None:
    """Kill ranks and the service at random moments, each while the job goes on."""
    kills = [False] * RANK_KILLS + [True] * SERVICE_KILLS
    chance.shuffle(kills)
    ranks = job.launched()
    for of_service in kills:
        before, deadline = noted(folder), time.monotonic() + LONGEST_WAIT_SECONDS
        while noted(folder) == before:
            assert time.monotonic() < deadline, "the job does not go on"
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.7))
        if of_service:
            service.kill()
            time.sleep(chance.uniform(0.0, 0.3))
            service.start()
        else:
            os.kill(chance.choice(ranks), signal.SIGKILL)
            ranks = job.launched()


def drained(spool: Path, url: str) -> list[str]:
    """What the command says that sends what dead processes left."""
    command = [sys.executable, "-m", "ledger_client.cli", "drain", str(spool), "--url", url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_report_is_the_ranks_own_tally(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    chance = random.Random(os.urandom(8))
    with LedgerServer(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "service.log") as service:
        job = Job(folder, service.url, tmp_path / "job.log")
        try:
            kill_again_and_again(job, service, folder, chance)
            (folder / killed_job.ENOUGH).touch()
            assert not job.launched(), (tmp_path / "job.log").read_text()[-3000:]
            assert job.process.wait(LONGEST_WAIT_SECONDS) == 0
        finally:
            job.process.kill()
        for rank in range(killed_job.RANKS):
            assert all("0 rejected, 0 left" in line for line in drained(folder / f"spool-{rank}", service.url))
        groups, attempts = tallied(folder)
        rows = logged(service)
        assert set(rows) <= set(groups)
        for place, group in groups.items():
            group.settle(rows.get(place))
        report = service.call("GET", f"{RUN}/exposure")
    head = report["as_of"]["head"]
    assert attempts[head] is not None and len(attempts) >= RANK_KILLS
    last = max(update for attempt, update, _ in groups if attempt == head)
    balance, updates = expected(groups, attempts, head, last)
    for name in QUANTITIES:
        told = {bucket: report["balance"][name][bucket] for bucket in BUCKETS}
        assert told == {bucket: balance[name][bucket] for bucket in BUCKETS}, name
        assert balance[name]["lost_to_restart"] and balance[name]["skipped"]
    assert {name: report["updates"][name] for name in BUCKETS[1:5]} | {"applied": report["updates"]["applied"]} == {
        name: updates[name] for name in (*BUCKETS[1:5], "applied")
    }
    assert report["as_of"]["complete_through_update"] == last
    assert set(report["findings"]) <= {"missing_rank", "late_event"}
