"""Two rank processes record while the service is killed under them, one of them dies too: the report is exactly what they recorded."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from server import LedgerServer

UPDATES = 120
DIES_AT = 85
RUN = "/v1/projects/acceptance/runs/recorded"
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")
SAID = ("outcome", "microbatches", "loss_sum", "ranges")

TRAINER = """
import os, sys, time
import ledger_client
from ledger_client import Conventions, Layout

rank, url, spool, updates, dies_at = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
run = ledger_client.start(
    "recorded", project="acceptance", url=url, spool=spool, attempt="a1", rank=rank, layout=Layout(dp=2), flush_seconds=0.05,
    conventions=Conventions(objective="token_mean", data={"unit": "position"}),
)
for number in range(1, updates + 1):
    with run.update(number) as update:
        for microbatch in range(2):
            first = (number - 1) * 12 + microbatch * 6 + rank * 3
            update.microbatch(input_slots=64, consumed_tokens=50 + (number + rank) % 7, valid_targets=40 + (number * 3 + rank) % 11,
                              samples=3, loss_sum=90.0, ranges=[("train", 0, first, first + 3)])
            if number == dies_at and microbatch == 1:
                os.write(1, b"open\\n")
                time.sleep(60)
        if number % 10 == 0:
            update.skipped("overflow")
        else:
            update.applied()
    if rank == 0 and number % 40 == 0:
        run.checkpoint(f"c{number}", update=number).accepted()
    os.write(1, b"%d\\n" % number)
    time.sleep(0.01)
assert run.close(timeout=40), run.health()
"""


def trainer(rank: int, url: str, spool: Path, dies_at: int) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
    arguments = [str(rank), url, str(spool), str(UPDATES), str(dies_at)]
    return subprocess.Popen([sys.executable, "-c", TRAINER, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


def amounts(update: int, rank: int) -> dict[str, int]:
    """What a rank records of an update: two microbatches of the same size."""
    return {
        "input_slots": 2 * 64,
        "consumed_tokens": 2 * (50 + (update + rank) % 7),
        "valid_targets": 2 * (40 + (update * 3 + rank) % 11),
        "samples": 2 * 3,
    }


def outcome(update: int) -> str:
    return "skipped" if update % 10 == 0 else "applied"


def recorded() -> dict[tuple[int, int], dict[str, object]]:
    """What both ranks said, by rank and update."""
    said: dict[tuple[int, int], dict[str, object]] = {}
    for rank, last in ((0, UPDATES), (1, DIES_AT)):
        for update in range(1, last + 1):
            closed = "open" if (rank, update) == (1, DIES_AT) else outcome(update)
            first = (update - 1) * 12 + rank * 3
            ranges = [["train", 0, first, first + 3], ["train", 0, first + 6, first + 9]]
            said[rank, update] = {**amounts(update, rank), "outcome": closed, "microbatches": 2, "loss_sum": 180.0, "ranges": ranges}
    return said


def balance(quantity: str) -> dict[str, int]:
    """The balance of one quantity as far as it is known: updates that one rank never finished are held."""
    preserved = skipped = pending = 0
    for (_, update), row in recorded().items():
        amount = row[quantity]
        assert isinstance(amount, int)
        if update >= DIES_AT:
            pending += amount
        elif outcome(update) == "applied":
            preserved += amount
        else:
            skipped += amount
    return {"attempted": preserved + skipped + pending, "preserved": preserved, "skipped": skipped, "pending": pending}


def drained(spool: Path, url: str) -> str:
    """What the command says that sends what a dead process left."""
    command = [sys.executable, "-m", "ledger_client.cli", "drain", str(spool), "--url", url, "--timeout", "30"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def logged(service: LedgerServer) -> dict[tuple[int, int], dict[str, object]]:
    """The rows of updates in the raw log, by rank and update; each is there once."""
    with urllib.request.urlopen(f"{service.url}{RUN}/events", timeout=30) as answer:
        lines = [json.loads(line) for line in answer]
    rows = [line for line in lines if line.get("kind") == "updates"]
    found = {(row["rank"], row["update"]): {name: row[name] for name in (*QUANTITIES, *SAID)} for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_report_is_what_was_recorded(database_url: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with LedgerServer(database_url, tmp_path / "service.log") as service:
        with trainer(0, service.url, spool, 0) as lasting, trainer(1, service.url, spool, DIES_AT) as dying:
            # It takes time to start: the ranks go on meanwhile, and one of them dies.
            time.sleep(0.3)
            service.kill()
            service.start()
            assert dying.stdout is not None
            assert lasting.stdout is not None
            assert "open\n" in iter(dying.stdout.readline, "")
            dying.send_signal(signal.SIGKILL)
            service.kill()
            service.start()
            lasting.stdout.read()
            assert (lasting.wait(), dying.wait()) == (0, -signal.SIGKILL)
        (left,) = (path.name for path in spool.iterdir() if path.name != "agreements")
        assert ".rank1." in left
        assert "0 rejected, 0 left" in drained(spool, service.url)
        assert drained(spool, service.url) == ""
        assert logged(service) == recorded()
        report = service.call("GET", f"{RUN}/exposure")
        assert report["findings"] == {}
        assert report["as_of"]["complete_through_update"] == DIES_AT - 1
        assert report["accepted_checkpoint"] == {"checkpoint": f"c{UPDATES}", "attempt": "a1", "update": UPDATES}
        skipped = sum(outcome(update) == "skipped" for update in range(1, DIES_AT))
        held = UPDATES - DIES_AT + 1
        counted = {"attempted": UPDATES, "applied": DIES_AT - 1 - skipped, "skipped": skipped, "held": held}
        assert counted.items() <= report["updates"].items()
        for quantity in QUANTITIES:
            known = report["balance"][quantity]["known"]
            assert known == balance(quantity) | {"lost_to_restart": 0, "dropped": 0}, quantity
