"""The service as its users run it: a process of its own on a free port, which a test may kill and start again."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from postgres import free_port

START_SECONDS = 60


class LedgerServer:
    """`ledger serve` on a database; PostgreSQL is brought to the schema before the first start."""

    def __init__(self, database_url: str, log: Path, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
        self._environment |= {"LEDGER_DATABASE_URL": database_url, "LEDGER_METRICS_CACHE_SECONDS": "0"}
        self._environment |= {f"LEDGER_{name.upper()}": str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._upgraded = database_url.startswith("sqlite")

    def command(self, *arguments: str) -> list[str]:
        """A command of the command line under test."""
        return [sys.executable, "-m", "ledger.cli", *arguments]

    def start(self) -> None:
        """Starts the process and waits until it is ready."""
        if not self._upgraded:
            subprocess.run(self.command("db", "upgrade"), env=self._environment, check=True, stdout=subprocess.DEVNULL)
            self._upgraded = True
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command("serve", "--port", str(self.port)), env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Kill -9."""
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Ends the process as an operator would; kills it where that takes too long."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of an answer; RAISES urllib.error.HTTPError where it is a refusal."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
