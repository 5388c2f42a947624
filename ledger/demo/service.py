"""The ledger as the demo uses it: a server process of its own, or one that already runs; read over HTTP like anybody else."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
USUAL_PORT, ANY_PORT = 8400, 0
START_SECONDS = 30.0
STOP_SECONDS = 10.0
ANSWER_SECONDS = 30.0
ABSENT, BUSY = 404, 503
BUSY_SECONDS = 0.5
ADDRESS = re.compile(rf"http://{re.escape(HOST)}:\d+")


class ServiceFailed(RuntimeError):
    """The ledger's server did not start, or answered with an error."""


class DemoLedger:
    """A running ledger; `process` is its server where the demo started it."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.url = url.rstrip("/")
        self.process = process

    def get(self, path: str) -> Any:
        """The JSON document at a path; None where there is none.

        Raises: ServiceFailed where the answer is an error
        """
        return self._call("GET", path, None)

    def patch(self, path: str, change: dict[str, Any]) -> Any:
        """Change what is at a path.

        Raises: ServiceFailed where the answer is an error
        """
        return self._call("PATCH", path, change)

    def is_ready(self) -> bool:
        """Whether the server that the demo started takes events by now."""
        if self.process is None or not self.url:
            return False
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=ANSWER_SECONDS):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End the server, if the demo started it: politely, then not."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Accept": "application/json"}
        if token := os.environ.get("LEDGER_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code == ABSENT and method == "GET":
                    return None
                if error.code != BUSY or time.monotonic() > deadline:
                    raise ServiceFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from error
                time.sleep(BUSY_SECONDS)
            except OSError as error:
                raise ServiceFailed(f"{self.url} cannot be reached: {error}") from error


def usual_port_or_any() -> int:
    """The port on which people look for a ledger; where another program has it, the one that stands for any free port."""
    try:
        with socket.create_server((HOST, USUAL_PORT)):
            return USUAL_PORT
    except OSError:
        return ANY_PORT


def start_service(folder: Path, port: int) -> DemoLedger:
    """Start `ledger serve` with an SQLite file in the folder, and wait until it takes events; port 0 is a free one.

    Raises: ServiceFailed where it does not within a bounded time
    """
    log = folder / "service.log"
    environment = {**os.environ, "LEDGER_DATABASE_URL": f"sqlite:///{folder / 'ledger.db'}"}
    command = [sys.executable, "-m", "ledger.cli", "serve", "--host", HOST, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    service = DemoLedger("", process)
    deadline = time.monotonic() + START_SECONDS
    try:
        while not service.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServiceFailed(f"the server did not start; its last words:\n{last_lines(log)}")
            time.sleep(0.05)
            # The server binds its port before it names it, so that no other program can take the port between.
            if found := ADDRESS.search(log.read_text(encoding="utf-8", errors="replace")):
                service.url = found.group()
    except BaseException:
        service.stop()
        raise
    return service


def last_lines(path: Path, count: int = 12) -> str:
    """The end of a log."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
