"""For tests of code that records: a small ledger that keeps what it is sent, in this process or behind a real socket.

    with RecordingServer() as server:
        run = ledger_client.start("demo", url=server.url, spool=tmp_path)
        ...
        run.close()
        assert [row["outcome"] for row in server.ledger.rows("updates")] == ["applied"]

Faults stand in a list and come one a request: `server.ledger.faults += [refused(503, retry_after_seconds=2), answer_lost]`. A server
hangs while `server.hanging` is set.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from .transport import Answer, Unreachable

Identity = tuple[str, int, str, int]
Fault = Callable[["RecordingLedger", str, str, bytes], "Answer | None"]
"""Answers in the ledger's place, or gives None to let it answer; raises Unreachable to let an answer be lost."""


def refused(status: int, retry_after_seconds: int | None = None, code: str = "refused_by_the_test") -> Fault:
    """A request is answered with that status (429, 413, 500, 503, ...) and not carried out."""
    headers = {} if retry_after_seconds is None else {"Retry_After": str(retry_after_seconds)}
    return lambda ledger, method, path, body: said(status, {"code": code}, **headers)


def too_large(ledger: RecordingLedger, method: str, path: str, body: bytes, *, most_events: int = 1) -> Answer | None:
    """Every batch of more than one event is refused with 413, from now on."""
    ledger.faults.append(too_large)
    if method != "POST":
        return None
    events = sum(len(columns["seq"]) for block in json.loads(body)["ranks"] for columns in block.values() if isinstance(columns, dict))
    return said(413, {"code": "too_large"}) if events > most_events else None


def answer_lost(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer | None:
    """A request is carried out, and the connection breaks before its answer."""
    ledger.carry_out(method, path, body)
    raise Unreachable("the answer was lost by the test")


def passed(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer | None:
    """A request without a fault: stands before others in the list (an opening takes two requests)."""
    return None


class RecordingLedger:
    """Keeps runs, attempts and events like a ledger: the same identity again is a duplicate."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.attempts: dict[str, Any] = {}
        self.endings: dict[str, Any] = {}
        self.events: dict[Identity, tuple[str, dict[str, Any]]] = {}
        self.duplicates: list[Identity] = []
        self.conflicts: list[Identity] = []
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.refused: Callable[[str, dict[str, Any]], bool] = lambda kind, row: False
        self._lock = threading.Lock()

    def rows(self, kind: str, attempt: str | None = None, rank: int | None = None) -> list[dict[str, Any]]:
        """All rows of a kind in the order of rank and seq."""
        found = [
            (identity[1], row["seq"], row)
            for identity, (of_kind, row) in list(self.events.items())
            if of_kind == kind and attempt in (None, identity[0]) and rank in (None, identity[1])
        ]
        return [row for _, _, row in sorted(found, key=lambda entry: entry[:2])]

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Carry out a request. The next fault, if any, comes first. Raises: Unreachable where a fault does."""
        with self._lock:
            self.requests.append((method, path))
            fault = self.faults.pop(0) if self.faults else None
        answered = fault(self, method, path, body) if fault is not None else None
        return answered if answered is not None else self.carry_out(method, path, body)

    def carry_out(self, method: str, path: str, body: bytes) -> Answer:
        """Carry out a request without faults."""
        document = json.loads(body)
        parts = path.split("/")[2:]
        with self._lock:
            if method == "PUT":
                held = self.runs if len(parts) == 4 else self.attempts
                created = parts[-1] not in held
                held.setdefault(parts[-1], document)
                return said(201 if created else 200, {})
            if method == "PATCH":
                self.endings.setdefault(parts[5], document)
                return said(200, {})
            if parts[5] not in self.attempts:
                return said(404, {"code": "attempt_unknown"})
            return said(200, self._take(parts[5], document))

    def _take(self, attempt: str, document: dict[str, Any]) -> dict[str, Any]:
        report: dict[str, Any] = {"accepted": 0, "duplicates": 0, "rejected": []}
        for block in document["ranks"]:
            place = {"rank": block["rank"], "writer": block["writer"]}
            for kind, columns in block.items():
                if kind in place:
                    continue
                for index, seq in enumerate(columns["seq"]):
                    row = {name: column[index] for name, column in columns.items() if column[index] is not None}
                    identity = (attempt, block["rank"], block["writer"], seq)
                    if self.refused(kind, row):
                        report["rejected"].append({**place, "seq": seq, "code": "refused", "detail": "refused by the test"})
                    elif identity not in self.events:
                        self.events[identity] = (kind, row)
                        report["accepted"] += 1
                    elif self.events[identity] == (kind, row):
                        self.duplicates.append(identity)
                        report["duplicates"] += 1
                    else:
                        self.conflicts.append(identity)
                        report["rejected"].append({**place, "seq": seq, "code": "event_conflict", "detail": "another content"})
        return report


def said(status: int, document: dict[str, Any], **headers: str) -> Answer:
    """An answer; header names with `_` for `-`."""
    return Answer(status, {name.replace("_", "-").lower(): value for name, value in headers.items()}, json.dumps(document).encode())


class CapturingTransport:
    """A way to a `RecordingLedger` in this process, without a socket: `start(..., transport=CapturingTransport())`."""

    def __init__(self) -> None:
        self.ledger = RecordingLedger()

    def request(self, method: str, path: str, body: bytes, timeout_seconds: float) -> Answer:
        """Hand the request to the ledger."""
        return self.ledger.answer(method, path, body)

    def close(self) -> None:
        """Nothing to let go of."""


class RecordingServer:
    """A `RecordingLedger` behind a real socket of this machine."""

    def __init__(self, port: int = 0) -> None:
        self.ledger = ledger = RecordingLedger()
        self.hanging = hanging = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_request(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                while hanging.is_set():
                    time.sleep(0.02)
                body = zlib.decompress(raw, 31) if self.headers.get("Content-Encoding") == "gzip" else raw
                try:
                    answer = ledger.answer(self.command, self.path, body)
                except Unreachable:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_PUT = do_POST = do_PATCH = handle_request

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away is part of the tests."""

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RecordingServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hanging.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
