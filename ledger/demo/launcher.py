"""The launcher: starts the ranks, kills them in the middle of an update, relaunches them, and compares both accounts.

serve -> attempt 1 -> SIGKILL -> drain the dead ranks' spools -> attempt 2 from the newest checkpoint -> report = tally?
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ledger.demo.places import Places, attempt_name
from ledger.demo.plan import Plan
from ledger.demo.saving import newest_checkpoint
from ledger.demo.service import DemoLedger, last_lines
from ledger.demo.tally import Account, Line, differences, figures, read_account

ATTEMPT_SECONDS = 300.0
DRAIN_SECONDS = 30.0
POLL_SECONDS = 0.03
RESTART_SECONDS = 0.5
ATTEMPTS = 2
SINGLE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class TrainingFailed(RuntimeError):
    """A rank ended in a way that the demo did not arrange."""


class Narrator(Protocol):
    """Whoever tells the user what happens."""

    def say(self, sentence: str) -> None:
        """Something that happened once."""

    def update(self, attempt: int, line: Line) -> None:
        """Rank 0 has come to the end of an update."""


@dataclass(frozen=True, slots=True)
class Result:
    """Both accounts of a demo run, in how many figures they were compared, and in which of them they differ."""

    plan: Plan
    account: Account
    report: dict[str, Any]
    findings: list[dict[str, Any]]
    objective: dict[str, Any]
    figures_compared: int
    differences: list[str]


@dataclass(slots=True)
class Ranks:
    """The processes of one attempt."""

    attempt: int
    processes: list["subprocess.Popen[bytes]"]
    read_bytes: int = 0
    lines: list[Line] = field(default_factory=list)

    def kill(self) -> None:
        """SIGKILL to every rank that still runs: no handler, no flush, no farewell."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()


def run_demo(service: DemoLedger, plan: Plan, folder: Path, narrator: Narrator) -> Result:
    """Train twice with a kill between, then compare what the ledger reports with what the trainers counted.

    Raises: TrainingFailed, ServiceFailed
    """
    plan = replace(plan, url=service.url, run=unused_run(service, plan.project, plan.run))
    places = Places(folder / plan.run)
    places.make()
    plan.write(places.plan)

    with started(plan, places, 1, narrator) as ranks:
        follow(plan, places, ranks, narrator)
        ranks.kill()
    signals = {process.returncode for process in ranks.processes}
    if signals != {-signal.SIGKILL}:
        raise TrainingFailed(f"attempt 1 should have died of SIGKILL, not with {signals}")
    narrator.say(f"SIGKILL to all {plan.ranks} ranks in the middle of update {plan.killed_after_update + 1}")
    time.sleep(RESTART_SECONDS)
    deliver_rest(service, places, narrator)
    service.patch(f"/v1/projects/{plan.project}/runs/{plan.run}/attempts/{attempt_name(1)}", {"ended": "crashed"})

    narrator.say(f"newest checkpoint on disk: {newest_checkpoint(places.checkpoints)}")
    with started(plan, places, 2, narrator) as ranks:
        follow(plan, places, ranks, narrator)
    deliver_rest(service, places, narrator)
    return compare(service, plan, places)


def unused_run(service: DemoLedger, project: str, wanted: str) -> str:
    """The wanted name, or the first of wanted-2, wanted-3, … that the ledger does not know yet."""
    name, number = wanted, 1
    while service.get(f"/v1/projects/{project}/runs/{name}") is not None:
        number += 1
        name = f"{wanted}-{number}"
    return name


@contextmanager
def started(plan: Plan, places: Places, attempt: int, narrator: Narrator) -> Iterator[Ranks]:
    """The ranks of an attempt, each a process of its own; none of them outlives the block."""
    ranks = Ranks(attempt, [])
    # One thread a rank: the sums come out the same each time, and the ranks share few cores.
    environment = {**os.environ, **SINGLE_THREAD}
    try:
        for rank in range(plan.ranks):
            command = [sys.executable, "-m", "ledger.demo.trainer", str(places.root), str(attempt), str(rank)]
            with places.log(attempt, rank).open("wb") as output:
                ranks.processes.append(
                    subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
                )
        narrator.say(
            f"attempt {attempt}: {plan.ranks} trainer processes, " + ", ".join(f"pid {process.pid}" for process in ranks.processes)
        )
        yield ranks
    finally:
        ranks.kill()


def follow(plan: Plan, places: Places, ranks: Ranks, narrator: Narrator) -> None:
    """Pass on what rank 0 notes until every rank has ended well, or waits in the middle of an update.

    Raises: TrainingFailed where a rank ends otherwise, or nothing ends in time
    """
    deadline = time.monotonic() + ATTEMPT_SECONDS
    while True:
        codes = [process.poll() for process in ranks.processes]
        paused = [places.paused(ranks.attempt, rank).exists() for rank in range(plan.ranks)]
        for line in new_lines(places, ranks):
            tell(ranks.attempt, line, narrator)
        if all(paused) or all(code == 0 for code in codes):
            return
        for rank, code in enumerate(codes):
            if code:
                log = places.log(ranks.attempt, rank)
                raise TrainingFailed(
                    f"rank {rank} of attempt {ranks.attempt} ended with {code}; its last words in {log}:\n{last_lines(log)}"
                )
        if time.monotonic() > deadline:
            raise TrainingFailed(f"attempt {ranks.attempt} came to no end within {ATTEMPT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def new_lines(places: Places, ranks: Ranks) -> Iterator[Line]:
    """The whole lines that rank 0 has added to its tally since the last look."""
    path = places.tally(ranks.attempt, 0)
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(ranks.read_bytes)
        added = file.read()
    whole = added[: added.rfind(b"\n") + 1]
    ranks.read_bytes += len(whole)
    for text in whole.splitlines():
        yield json.loads(text)


def tell(attempt: int, line: Line, narrator: Narrator) -> None:
    """Put one line of a tally into words."""
    update = line["update"]
    if line["what"] == "outcome":
        narrator.update(attempt, line)
        if line["outcome"] == "skipped":
            narrator.say(
                f"update {update}: float16 gradient overflowed, withheld on every rank; loss scale halved to {line['loss_scale']:g}"
            )
    elif line["what"] == "start" and update:
        narrator.say(f"attempt {attempt}: resumes after update {update} from {line['checkpoint']}")
    elif line["what"] == "dropped":
        narrator.say(f"before update {update}: {line['left']} documents at the end of the epoch make no full group; gradient dropped")
    elif line["what"] == "saved":
        narrator.say(f"{line['checkpoint']}: durable, accepted")


def deliver_rest(service: DemoLedger, places: Places, narrator: Narrator) -> None:
    """Deliver what the ranks recorded and could not send any more, by the command that an operator would use.

    Raises: TrainingFailed where something stays in a spool
    """
    command = [sys.executable, "-m", "ledger_client.cli", "drain", str(places.spool), "--url", service.url]
    drained = subprocess.run([*command, "--timeout", f"{DRAIN_SECONDS:.0f}"], capture_output=True, text=True, check=False)
    for line in drained.stdout.splitlines():
        narrator.say(f"ledger-client drain: {line}")
    if drained.returncode:
        raise TrainingFailed(f"not everything could be delivered:\n{drained.stderr}")


def compare(service: DemoLedger, plan: Plan, places: Places) -> Result:
    """Both accounts, read apart from each other."""
    account = read_account((attempt, places.tally(attempt, rank)) for attempt in range(1, ATTEMPTS + 1) for rank in range(plan.ranks))
    run = f"/v1/projects/{plan.project}/runs/{plan.run}"
    report, coverage = service.get(f"{run}/exposure"), service.get(f"{run}/coverage")
    found = differences(account, report)
    trained = sum(stream["effective_unique"] for stream in coverage["streams"])
    if trained != len(account.trained_positions()):
        found.append(f"documents in the weights: the tally says {len(account.trained_positions())}, the ledger {trained}")
    findings = service.get(f"{run}/findings")["findings"]
    return Result(plan, account, report, findings, service.get(f"{run}/objective"), len(figures(account.report())) + 1, found)
