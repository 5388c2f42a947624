"""A real Prometheus that scrapes a service of the test, with the configuration that the project ships."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from postgres import free_port
from presence import missing

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "prometheus.yml"
START_SECONDS = 30
ANSWER_SECONDS = 30
TARGET = re.compile(r'targets: \[".*?"\]')


class Prometheus:
    """`prometheus` with its data in a folder of the test; it scrapes every second, and its rules look back seconds instead of minutes."""

    def __init__(self, folder: Path, target: str) -> None:
        program = shutil.which("prometheus")
        if program is None:
            missing("prometheus")
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        shipped = SHIPPED.read_text()
        assert len(TARGET.findall(shipped)) == 1
        configured = TARGET.sub(f'targets: ["{target.removeprefix("http://")}"]', shipped)
        configured = re.sub(r"(scrape_interval|scrape_timeout|evaluation_interval): \d+s", r"\1: 1s", configured)
        (folder / "rules").mkdir(exist_ok=True)
        for path in (SHIPPED.parent / "rules").glob("*.yml"):
            quick = re.sub(r"offset \d+m", "offset 3s", path.read_text())
            (folder / "rules" / path.name).write_text(re.sub(r"\[\d+m\]", "[10s]", quick))
        (folder / "prometheus.yml").write_text(configured)
        self._command = [
            program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"prometheus did not start:\n{(self.folder / 'log').read_text()[-3000:]}") from None
                time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=ANSWER_SECONDS) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """An instant query: value by labels, without name, instance and job."""
        left_out = ("__name__", "instance", "job")
        return {
            tuple(sorted((name, label) for name, label in item["metric"].items() if name not in left_out)): float(item["value"][1])
            for item in self._get("/api/v1/query", query=expression)["result"]
        }

    def until(self, expression: str, satisfied: Callable[[dict[tuple[tuple[str, str], ...], float]], bool]) -> Any:
        """The answer to a query as soon as it is as wanted; the last one otherwise."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            found = self.query(expression)
            if satisfied(found) or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        """Type, help and unit of each family, as Prometheus understood them."""
        found: dict[str, list[dict[str, str]]] = self._get("/api/v1/metadata")
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with how their last evaluation went."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, with the last error of each."""
        found: list[dict[str, Any]] = self._get("/api/v1/targets")["activeTargets"]
        return found
