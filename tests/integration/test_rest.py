"""The service as a process, on each database: every call answers, what it acknowledges it keeps, and it says when it cannot."""

import http.client
import json
import sqlite3
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from server import LedgerServer
from worked_example import RUN, attempt, batch, columns, saved

WAITED_SECONDS = 30
QUEUE_BATCHES = 2


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(server: LedgerServer, method: str, path: str, body: object = None, **headers: str) -> Answer:
    """A call; refusals are answers too."""
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(server.url + path, data=data, method=method, headers=given)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return Answer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[LedgerServer]:
    """A running service with a short queue."""
    with LedgerServer(database_url, tmp_path / "log", queue_batches=QUEUE_BATCHES) as running:
        yield running


def open_first_attempt(server: LedgerServer) -> None:
    server.call("PUT", RUN, {"conventions": {"objective": "token_mean"}})
    server.call("PUT", f"{RUN}/attempts/a1", attempt(1, None))


def play(server: LedgerServer) -> None:
    """The worked example."""
    open_first_attempt(server)
    for rank in (0, 1):
        server.call("POST", f"{RUN}/attempts/a1/events", batch(rank, updates=columns(1, dict.fromkeys(range(1, 5), "applied"), rank)))
    server.call("POST", f"{RUN}/attempts/a1/events", batch(0, checkpoints=saved(5, "c4", 4)))
    for rank in (0, 1):
        last = columns(7, {5: "applied", 6: "skipped", 7: "applied"}, rank)
        server.call("POST", f"{RUN}/attempts/a1/events", batch(rank, updates=last))
    server.call("PATCH", f"{RUN}/attempts/a1", {"ended": "crashed"})
    server.call("PUT", f"{RUN}/attempts/a2", attempt(2, "c4"))
    for rank in (0, 1):
        again = columns(1, dict.fromkeys((5, 6, 7), "applied"), rank)
        server.call("POST", f"{RUN}/attempts/a2/events", batch(rank, updates=again))
    server.call("POST", f"{RUN}/attempts/a2/events", batch(0, checkpoints=saved(4, "c7", 7)))


def test_every_call_answers_and_a_restart_changes_nothing(server: LedgerServer) -> None:
    play(server)
    reports = {
        part: server.call("GET", RUN + part)
        for part in (
            "", "/exposure", "/coverage", "/updates", "/updates?points=3", "/objective", "/findings", "/checkpoints",
            "/checkpoints/c4/exposure", "/rates?quantity=updates&work=preserved&time=update,downtime",
        )
    }  # fmt: skip
    targets = reports["/exposure"]["balance"]["valid_targets"]
    found = [targets[term] for term in ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")]
    assert found == [360, 252, 0, 72, 36, 0]
    assert server.call("GET", "/v1/runs?project=default")["items"][0]["run"] == "demo"
    server.kill()
    server.start()
    for part, report in reports.items():
        later = server.call("GET", RUN + part)
        for answered in (report, later):
            answered.get("as_of", {}).pop("at", None)
        assert later == report, part


def test_pages_meet_and_the_log_is_every_entry_once_in_order(server: LedgerServer) -> None:
    play(server)
    whole = server.call("GET", f"{RUN}/updates?limit=1000")["items"]
    paged: list[Any] = []
    cursor = None
    while True:
        query = urllib.parse.urlencode({"limit": 3} | ({} if cursor is None else {"cursor": cursor}))
        page = server.call("GET", f"{RUN}/updates?{query}")
        paged += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert paged == whole
    assert len(whole) == 10
    reply = ask(server, "GET", f"{RUN}/events")
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [line["offset"] for line in lines] == [*range(1, server.call("GET", RUN)["events"] + 1)]
    posted = [(line["attempt"], line["rank"], line["writer"], line["seq"]) for line in lines if "seq" in line]
    assert len(posted) == len(set(posted)) == 2 * (4 + 3 + 3) + 4


@contextmanager
def no_commits(database_url: str) -> Iterator[None]:
    """Another program holds the lock that every commit of the service needs."""
    if database_url.startswith("sqlite"):
        with sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None) as holder:
            holder.execute("BEGIN IMMEDIATE")
            yield
            holder.execute("ROLLBACK")
        holder.close()
        return
    with psycopg.connect(database_url) as connection:
        connection.execute("LOCK TABLE journal IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_full_queue_refuses_and_loses_nothing(server: LedgerServer, database_url: str) -> None:
    open_first_attempt(server)

    def post(number: int) -> Answer:
        return ask(server, "POST", f"{RUN}/attempts/a1/events", batch(0, updates=columns(number, {number: "applied"}, 0)))

    with ThreadPoolExecutor(12) as pool:
        with no_commits(database_url):
            waiting = [pool.submit(post, number) for number in range(1, 11)]
            deadline = time.monotonic() + WAITED_SECONDS
            while sum(item.done() for item in waiting) < 10 - QUEUE_BATCHES and time.monotonic() < deadline:
                time.sleep(0.02)
            refused = [item.result() for item in waiting if item.done()]
            assert len(refused) == 10 - QUEUE_BATCHES
            assert {(item.status, item.json["code"], item.headers["retry-after"]) for item in refused} == {(503, "queue_full", "1")}
            assert ask(server, "GET", "/readyz").json["code"] == "not_ready"
            assert ask(server, "GET", "/healthz").status == 200
        answers = [item.result() for item in waiting]
    kept = sum(item.json["accepted"] for item in answers if item.status == 200)
    assert kept == QUEUE_BATCHES
    assert len(server.call("GET", f"{RUN}/updates")["items"]) == QUEUE_BATCHES
    assert ask(server, "GET", "/readyz").status == 200


@contextmanager
def outage(database_url: str) -> Iterator[None]:
    """The database takes no connections and ends those that it had."""
    address, _, name = database_url.rpartition("/")
    with psycopg.connect(f"{address}/postgres", autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[call-overload]
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')  # type: ignore[call-overload]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_database_that_is_away_is_said_and_comes_back(server: LedgerServer, database_url: str) -> None:
    play(server)
    more = batch(0, updates=columns(50, {8: "applied"}, 0))
    with outage(database_url):
        for method, path, body in (
            ("GET", f"{RUN}/exposure", None),
            ("GET", "/v1/runs", None),
            ("POST", f"{RUN}/attempts/a2/events", more),
            ("PUT", RUN, {"conventions": {"objective": "token_mean"}}),
            ("GET", f"{RUN}/events", None),
            ("GET", "/metrics/runs", None),
        ):
            refused = ask(server, method, path, body)
            assert (refused.status, refused.json["code"]) == (503, "database_unavailable"), path
            assert int(refused.headers["retry-after"]) > 0
            assert "127.0.0.1" not in refused.body.decode()
        assert b"training_ledger_readable 0.0" in ask(server, "GET", "/metrics").body
        unready = ask(server, "GET", "/readyz")
        assert (unready.status, unready.json["detail"]) == (503, "the database cannot be reached")
        assert unready.headers["retry-after"] == "1"
        assert ask(server, "GET", "/healthz").status == 200
    assert ask(server, "GET", "/readyz").status == 200
    assert ask(server, "POST", f"{RUN}/attempts/a2/events", more).json["accepted"] == 1
    assert server.call("GET", f"{RUN}/exposure")["updates"]["attempted"] == 11


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_answers_on_a_kept_connection_do_not_wait_for_an_acknowledgement(server: LedgerServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    spent = []
    for _ in range(9):
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        spent.append(time.perf_counter() - began)
    connection.close()
    # Nagle's delay would make nearly every answer take 40 ms.
    assert sorted(spent)[4] < 0.03


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_each_request_is_one_line_of_the_log_under_its_id(server: LedgerServer) -> None:
    given = ask(server, "GET", "/v1/runs", X_Request_Id="call-17")
    made = ask(server, "GET", f"{RUN}/exposure", X_Request_Id="not an id")
    assert given.headers["x-request-id"] == "call-17"
    assert made.json["request_id"] == made.headers["x-request-id"] != "not an id"
    # The line is written when the answer is out.
    deadline, found = time.monotonic() + 10, dict[str, Any]()
    while made.headers["x-request-id"] not in found and time.monotonic() < deadline:
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        found = {line["request_id"]: line for line in lines if line["event"] == "request"}
        time.sleep(0.02)
    line = found["call-17"]
    assert (line["method"], line["path"], line["handler"], line["status"], line["level"]) == ("GET", "/v1/runs", "/v1/runs", 200, "info")
    assert 0 < line["seconds"] < 60
    refused = found[made.headers["x-request-id"]]
    assert (refused["handler"], refused["status"]) == ("/v1/projects/{project}/runs/{run}/exposure", 404)
