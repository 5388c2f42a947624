"""`ledger demo` as a user runs it: real server, real trainers, a real SIGKILL, and two accounts that must be equal."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ledger.demo.service import USUAL_PORT
from ledger.demo.tally import Account, differences, read_account

LIMIT_SECONDS = 120
COMMAND = [sys.executable, "-m", "ledger.cli"]
RUN = "/v1/projects/default/runs/demo"
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")
ADDRESS = re.compile(r"ledger at (http://127\.0\.0\.1:(\d+))")
STAYS_UP = "The server stays up; Ctrl-C ends it."
EQUAL = re.compile(r"The trainer's own tally equals the report exactly, in all (\d+) figures\.")


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo whose training is over and whose server is still up."""

    folder: Path
    url: str
    output: str

    def get(self, path: str) -> Any:
        """What the ledger answers there."""
        answer = httpx2.get(self.url + path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def lines(self, attempt: int, rank: int) -> list[dict[str, Any]]:
        """What one rank noted."""
        return [json.loads(line) for line in tally(self.folder / "demo", attempt, rank).read_text(encoding="utf-8").splitlines()]


def tally(folder: Path, attempt: int, rank: int) -> Path:
    return folder / f"attempt-{attempt}.rank-{rank}.tally"


def account(folder: Path, ranks: int = 2) -> Account:
    return read_account((attempt, tally(folder, attempt, rank)) for attempt in (1, 2) for rank in range(ranks))


def run_demo(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "demo", "--folder", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    command = [*COMMAND, "demo", "--keep", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        guard = threading.Timer(LIMIT_SECONDS, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            output = ""
            while STAYS_UP not in output:
                line = process.stdout.readline()
                assert line, output
                output += line
            guard.cancel()
            found = ADDRESS.search(output)
            assert found, output
            yield Demo(folder, found[1], output)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            guard.cancel()
            process.terminate()


def test_the_command_says_that_both_accounts_are_equal(demo: Demo) -> None:
    said = EQUAL.search(demo.output)
    assert said, demo.output
    assert int(said[1]) > 100
    equation = re.search(
        r"valid_targets ([\d,]+) = ([\d,]+) preserved \+ ([\d,]+) pending \+ ([\d,]+) lost_to_restart \+ ([\d,]+) skipped"
        r" \+ ([\d,]+) dropped",
        demo.output,
    )
    assert equation, demo.output
    attempted, *parts = (int(number.replace(",", "")) for number in equation.groups())
    preserved, pending, lost, skipped, dropped = parts
    assert attempted == sum(parts)
    assert pending == 0
    assert min(preserved, lost, skipped, dropped) > 0


def test_the_report_over_rest_is_what_the_tallies_add_up_to(demo: Demo) -> None:
    report = demo.get(f"{RUN}/exposure")
    assert differences(account(demo.folder / "demo"), report) == []
    # Once more without any code of the demo: whatever was processed was attempted, and what fell off the end was dropped.
    lines = [line for attempt in (1, 2) for rank in (0, 1) for line in demo.lines(attempt, rank)]
    for quantity in QUANTITIES:
        dropped = sum(line[quantity] for line in lines if line["what"] == "dropped")
        processed = sum(line[quantity] for line in lines if line["what"] == "microbatch")
        assert report["balance"][quantity]["dropped"] == dropped > 0
        assert report["balance"][quantity]["attempted"] == processed + dropped
    assert report["findings"] == {}
    assert report["trajectory"] == [
        {"attempt": "attempt-1", "after": 0, "through": 30},
        {"attempt": "attempt-2", "after": 30, "through": 60},
    ]


def test_one_token_changed_in_a_tally_is_found(demo: Demo, tmp_path: Path) -> None:
    report = demo.get(f"{RUN}/exposure")
    changed = shutil.copytree(demo.folder / "demo", tmp_path / "demo")
    path = tally(changed, 2, 1)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    victim = next(line for line in lines if line["what"] == "microbatch" and line["update"] == 40)
    victim["valid_targets"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    preserved = report["balance"]["valid_targets"]["preserved"]
    found = differences(account(changed), report)
    assert f"balance valid_targets preserved: the tally says {preserved + 1}, the ledger {preserved}" in found
    assert {sentence.split(":")[0] for sentence in found} == {
        "balance valid_targets attempted",
        "balance valid_targets preserved",
        "matrix valid_targets applied preserved",
    }


def test_the_model_learns(demo: Demo) -> None:
    found = re.search(r"The loss fell over 60 updates: ([\d.]+) -> ([\d.]+) nats a target\.", demo.output)
    assert found, demo.output
    first, last = map(float, found.groups())
    assert last < 0.6 * first
    updates = demo.get(f"{RUN}/updates?limit=100")["items"]
    kept = {item["update"]: item["token_mean"] for item in updates if item["fate"] == "preserved"}
    assert [kept[update] for update in sorted(kept)] == pytest.approx(account(demo.folder / "demo").curve())
    assert "In 57 of 57 updates the reported loss is the token mean" in demo.output


def test_work_is_lost_and_done_again_to_the_same_end(demo: Demo) -> None:
    assert "SIGKILL to all 2 ranks in the middle of update 38" in demo.output
    assert "resumes after update 30 from step-30" in demo.output
    before, after = ({line["update"]: line for line in demo.lines(attempt, 0) if line["what"] == "outcome"} for attempt in (1, 2))
    redone = before.keys() & after.keys()
    assert sorted(redone) == list(range(31, 38))
    # Same weights, same data, same order of additions: a resumed state that lacked anything would show here.
    assert [before[update] for update in redone] == [after[update] for update in redone]
    assert [update for update in sorted(redone) if before[update]["outcome"] == "skipped"] == [33]


def test_a_withheld_update_moves_nothing(demo: Demo) -> None:
    updates = {(item["attempt"], item["update"]): item for item in demo.get(f"{RUN}/updates?limit=100")["items"]}
    assert updates["attempt-1", 1]["outcome"] == "skipped"
    assert updates["attempt-1", 1]["reason"] == "overflow"
    # Update 2 finds the very weights of update 1: its loss is still that of chance, while update 3 has learnt something.
    losses = [updates["attempt-1", update]["token_mean"] for update in (1, 2, 3, 4)]
    assert abs(losses[1] - losses[0]) < 0.1
    assert losses[3] < losses[1] - 0.1


def test_the_ranks_hold_unequal_parts(demo: Demo) -> None:
    dropped = [[line["samples"] for line in demo.lines(1, rank) if line["what"] == "dropped"] for rank in (0, 1)]
    assert dropped == [[36], [32]]


def test_what_it_points_to_is_there(demo: Demo) -> None:
    pointed = dict(re.findall(r"^  (page|report|metrics|API) +(http://\S+)$", demo.output, re.MULTILINE))
    assert pointed.keys() == {"page", "report", "metrics", "API"}
    for name, address in pointed.items():
        answer = httpx2.get(address)
        assert answer.status_code == 200, (name, answer.text)
    assert 'run="demo"' in httpx2.get(pointed["metrics"]).text
    assert "demo" in httpx2.get(pointed["page"]).text


def test_the_ledger_confirms_itself_by_another_path(demo: Demo) -> None:
    environment = {**os.environ, "LEDGER_DATABASE_URL": f"sqlite:///{demo.folder / 'ledger.db'}"}
    ended = subprocess.run([*COMMAND, "verify", "demo"], capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_another_number_of_ranks_in_the_same_ledger(demo: Demo, tmp_path: Path) -> None:
    ended = run_demo(tmp_path, "--url", demo.url, "--updates", "16", "--ranks", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert EQUAL.search(ended.stdout)
    (folder,) = tmp_path.iterdir()
    assert folder.name != "demo"
    assert differences(account(folder, ranks=3), demo.get(f"/v1/projects/default/runs/{folder.name}/exposure")) == []


class Thief(BaseHTTPRequestHandler):
    """Stands between the trainers and the ledger and takes one token from the first update that passes."""

    protocol_version = "HTTP/1.1"
    upstream = ""
    stolen = False

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = zlib.decompress(body, wbits=31)
        if self.path.endswith("/events"):
            body = self._steal(body)
        headers = {name: value for name, value in self.headers.items() if name in ("Content-Type", "Accept")}
        answer = httpx2.request(self.command, self.upstream + self.path, content=body, headers=headers)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def _steal(self, body: bytes) -> bytes:
        batch = json.loads(body)
        for rank in batch["ranks"]:
            updates = rank.get("updates")
            if updates and "applied" in updates["outcome"] and not Thief.stolen:
                Thief.stolen = True
                updates["consumed_tokens"][updates["outcome"].index("applied")] -= 1
        return json.dumps(batch).encode()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    do_GET = do_PUT = do_POST = do_PATCH = _forward


def test_one_token_that_never_arrives_fails_the_command(demo: Demo, tmp_path: Path) -> None:
    Thief.upstream, Thief.stolen = demo.url, False
    with ThreadingHTTPServer(("127.0.0.1", 0), Thief) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            ended = run_demo(tmp_path, "--url", f"http://127.0.0.1:{proxy.server_port}", "--updates", "8", "--ranks", "1")
        finally:
            proxy.shutdown()
            thread.join()
    assert Thief.stolen
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "The trainer's own tally DIFFERS from the report:" in ended.stdout
    found = re.search(r"balance consumed_tokens attempted: the tally says (\d+), the ledger (\d+)", ended.stdout)
    assert found, ended.stdout
    assert int(found[1]) == int(found[2]) + 1


def test_a_terminal_keeps_the_server_on_another_port_than_one_that_is_taken(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, terminal)
        # If another program has the usual port already, so much the better.
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", USUAL_PORT)))
        command = [*COMMAND, "demo", "--updates", "8", "--ranks", "1"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "TMPDIR": str(tmp_path)}
        process = stack.enter_context(subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment))
        os.close(inside)
        guard = threading.Timer(LIMIT_SECONDS, process.kill)
        guard.start()
        stack.callback(guard.cancel)
        shown = b""
        while STAYS_UP.encode() not in shown:
            shown += os.read(terminal, 4096)
        found = ADDRESS.search(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()))
        assert found, shown
        assert int(found[2]) != USUAL_PORT
        assert httpx2.get(found[1] + "/healthz").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 0
    # What it kept in a temporary folder is gone with it.
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    ended = run_demo(tmp_path)
    assert ended.returncode == 3
    assert "the server did not start" in ended.stderr


def test_a_port_that_was_asked_for_and_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = run_demo(tmp_path, "--port", str(listener.getsockname()[1]))
    assert ended.returncode == 3
    assert "cannot be bound" in ended.stderr
