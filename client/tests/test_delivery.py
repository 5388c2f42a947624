"""Exactly once in the ledger, whatever the server and the network do."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import train

import ledger_client
from ledger_client import cli
from ledger_client.testing import RecordingLedger, RecordingServer, said
from ledger_client.transport import Answer, Unreachable

Start = Callable[..., ledger_client.Run]


def events_only(fault: Callable[[RecordingLedger, str, str, bytes], Answer | None]) -> list[Callable[..., Answer | None]]:
    """The fault for the first batch, behind both declarations."""
    through: Callable[..., Answer | None] = lambda ledger, method, path, body: None  # noqa: E731
    return [through, through, fault]


def delivered(server: RecordingServer) -> list[int]:
    """Numbers of the updates that the ledger has."""
    return [row["update"] for row in server.ledger.rows("updates")]


def test_a_lost_answer_costs_a_resend_and_nothing_else(start: Start, server: RecordingServer) -> None:
    def lose(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer:
        ledger.carry_out(method, path, body)
        raise Unreachable

    server.ledger.faults = events_only(lose)
    run = start(url=server.url)
    train(run, *range(1, 40))
    assert run.close()
    assert delivered(server) == list(range(1, 40))
    assert len(server.ledger.duplicates) >= 1 and not server.ledger.conflicts


def test_a_server_that_is_down_at_launch_loses_nothing(start: Start) -> None:
    with RecordingServer() as first:
        port = int(first.url.rpartition(":")[2])
    run = start(url=f"http://127.0.0.1:{port}")
    train(run, 1, 2, 3)
    time.sleep(0.2)
    with RecordingServer(port) as server:
        assert run.close()
        assert delivered(server) == [1, 2, 3]


@pytest.mark.parametrize("status", [429, 503])
def test_the_pause_that_the_server_asks_for_is_kept(start: Start, server: RecordingServer, status: int) -> None:
    asked: list[float] = []

    def busy(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer:
        asked.append(time.monotonic())
        ledger.faults.append(again)
        return said(status, {"code": "queue_full"}, Retry_After="1")

    def again(ledger: RecordingLedger, method: str, path: str, body: bytes) -> None:
        asked.append(time.monotonic())

    server.ledger.faults = events_only(busy)
    run = start(url=server.url)
    train(run, 1)
    assert run.close()
    assert delivered(server) == [1]
    assert 1.0 <= asked[1] - asked[0] < 2.0


def test_a_batch_that_is_too_large_is_halved(start: Start, server: RecordingServer) -> None:
    sizes: list[int] = []

    def small(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer | None:
        ledger.faults.append(small)
        if method != "POST":
            return None
        sizes.append(len(json.loads(body)["ranks"][0]["updates"]["seq"]))
        return said(413, {"code": "too_large"}) if sizes[-1] > 30 else None

    server.ledger.faults = [small]
    run = start(url=server.url, flush_seconds=5.0)
    train(run, *range(100))
    assert run.close()
    assert delivered(server) == list(range(100))
    assert max(sizes) > 30 and not server.ledger.duplicates


def test_what_the_server_rejects_becomes_a_dead_letter_and_blocks_nothing(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    server.ledger.refused = lambda kind, row: row.get("update") == 2
    run = start(url=server.url)
    train(run, 1, 2, 3)
    assert run.flush()
    assert run.health() == {"recorded": 3, "accepted": 2, "dead_letters": 1, "dropped": 0, "invalid": 0}
    assert run.close()
    (letters,) = (tmp_path / "spool").glob("*/dead-letter.ndjson")
    letter = json.loads(letters.read_text())
    assert (letter["row"]["update"], letter["code"], letter["attempt"]) == (2, "refused", "a1")
    assert sorted(path.name for path in letters.parent.iterdir()) == ["dead-letter.ndjson", "declaration.json"]


def test_a_batch_that_is_not_understood_is_narrowed_down_to_one_event(start: Start, server: RecordingServer) -> None:
    def strict(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer | None:
        ledger.faults.append(strict)
        return said(422, {"detail": "no"}) if method == "POST" and 13 in json.loads(body)["ranks"][0]["updates"]["update"] else None

    server.ledger.faults = [strict]
    run = start(url=server.url, flush_seconds=5.0)
    train(run, *range(20))
    assert run.flush()
    assert delivered(server) == [number for number in range(20) if number != 13]
    assert run.health()["dead_letters"] == 1


def test_declarations_that_differ_are_said_once_and_events_go_on(
    start: Start, server: RecordingServer, caplog: pytest.LogCaptureFixture
) -> None:
    def differs(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer:
        ledger.carry_out(method, path, body)
        return said(409, {"code": "exists_differently", "detail": "another layout"})

    server.ledger.faults = [differs, differs]
    run = start(url=server.url)
    train(run, 1, 2)
    assert run.close()
    assert delivered(server) == [1, 2]
    assert sum("another layout" in record.message for record in caplog.records) == 2


def test_a_refused_declaration_keeps_the_events(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    server.ledger.faults = [lambda ledger, method, path, body: said(422, {"detail": "no such objective"})] * 50
    run = start(url=server.url)
    train(run, 1)
    assert run.close(timeout=0.3) is False
    server.ledger.faults.clear()
    assert delivered(server) == []
    assert cli.main(["drain", str(tmp_path / "spool"), "--url", server.url]) == 0
    assert delivered(server) == [1]


def test_an_answer_that_is_not_the_ledgers_acknowledges_nothing(start: Start, server: RecordingServer) -> None:
    server.ledger.faults = events_only(lambda ledger, method, path, body: Answer(200, {}, b"<html>welcome</html>"))
    run = start(url=server.url)
    train(run, 1)
    assert run.close()
    assert delivered(server) == [1]


def test_a_database_that_was_lost_is_declared_to_again(start: Start, server: RecordingServer) -> None:
    run = start(url=server.url)
    train(run, 1)
    assert run.flush()
    server.ledger.attempts.clear()
    train(run, 2)
    assert run.close()
    assert "a1" in server.ledger.attempts and delivered(server) == [1, 2]


def test_closing_is_bounded_while_the_server_hangs(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    server.hanging.set()
    run = start(url=server.url)
    train(run, 1, 2)
    began = time.monotonic()
    assert run.close(timeout=0.5) is False
    assert time.monotonic() - began < 1.0
    server.hanging.clear()
    assert cli.main(["drain", str(tmp_path / "spool"), "--url", server.url]) == 0
    assert delivered(server) == [1, 2] and not list((tmp_path / "spool").iterdir())


def test_record_calls_do_not_wait_for_a_server_that_hangs(start: Start, server: RecordingServer) -> None:
    server.hanging.set()
    run = start(url=server.url)
    time.sleep(0.1)
    began = time.monotonic()
    train(run, *range(2000))
    assert time.monotonic() - began < 1.0
    server.hanging.clear()
    assert run.close()
    assert delivered(server) == list(range(2000))


def test_one_connection_serves_many_requests_and_is_replaced_when_it_was_closed(start: Start, server: RecordingServer) -> None:
    run = start(url=server.url)
    for number in range(3):
        train(run, number)
        assert run.flush()
    sender = run._sender
    assert sender is not None and sender.channels[0].delivery is not None
    transport = sender.channels[0].delivery._transport
    kept = transport._connection.sock  # type: ignore[attr-defined]
    train(run, 3)
    assert run.flush()
    assert transport._connection.sock is kept  # type: ignore[attr-defined]
    kept.close()
    train(run, 4)
    assert run.flush()
    assert delivered(server) == [0, 1, 2, 3, 4]


def test_many_threads_record_into_one_sequence(start: Start, server: RecordingServer) -> None:
    run = start(url=server.url)
    threads = [threading.Thread(target=train, args=(run, *range(base, base + 300))) for base in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.close()
    rows = server.ledger.rows("updates")
    assert [row["seq"] for row in rows] == list(range(1, 901))
    assert all(row["valid_targets"] == 20 for row in rows) and not server.ledger.conflicts


def test_memory_mode_needs_no_disk(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(url=server.url, mode="memory")
    train(run, *range(5000))
    assert run.close()
    assert delivered(server) == list(range(5000)) and not (tmp_path / "spool").exists()


def test_a_disk_that_cannot_be_written_is_said_and_the_training_goes_on(
    start: Start, server: RecordingServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    run = start(url=server.url, spool=tmp_path / "file" / "spool")
    train(run, 1)
    assert run.close()
    assert delivered(server) == [1]
    assert any("no spool on disk" in record.message for record in caplog.records)
