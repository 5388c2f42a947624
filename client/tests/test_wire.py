"""How events travel: packed, one request at a time, in one unbroken sequence, and ever more rarely while the server fails."""

import email.utils
import json
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from conftest import train

import ledger_client
from ledger_client import delivery as delivering
from ledger_client.testing import CapturingTransport, RecordingLedger, RecordingServer, said
from ledger_client.transport import Answer, HttpTransport, Unreachable

Start = Callable[..., ledger_client.Run]


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """What the client puts on the wire: content encoding and body of each batch of events."""
    sent: list[tuple[str, bytes]] = []
    exchange = HttpTransport._exchange

    def seen(self: HttpTransport, method: str, path: str, body: bytes, headers: dict[str, str], timeout_seconds: float) -> Answer:
        if method == "POST":
            sent.append((headers.get("Content-Encoding", ""), body))
        return exchange(self, method, path, body, headers, timeout_seconds)

    monkeypatch.setattr(HttpTransport, "_exchange", seen)
    return sent


def test_large_batches_are_packed_and_small_ones_are_not(
    start: Start, server: RecordingServer, bodies: list[tuple[str, bytes]]
) -> None:
    run = start(url=server.url, flush_seconds=5.0)
    train(run, *range(500))
    assert run.flush()
    run.counter("steps", 1)
    assert run.flush()
    (packing, packed), (plain, body) = bodies
    assert (packing, plain) == ("gzip", "") and json.loads(body)
    assert len(packed) * 4 < len(zlib.decompress(packed, 31))
    assert [row["update"] for row in server.ledger.rows("updates")] == list(range(500))


def test_a_server_that_does_not_unpack_gets_them_plain(
    start: Start, server: RecordingServer, bodies: list[tuple[str, bytes]]
) -> None:
    # The fault comes before unpacking matters: the first large batch is refused, and no other is packed.
    passed: Any = lambda ledger, method, path, body: None  # noqa: E731
    server.ledger.faults = [passed, passed, lambda ledger, method, path, body: said(415, {"code": "unsupported_encoding"})]
    run = start(url=server.url, flush_seconds=5.0)
    train(run, *range(500))
    assert run.flush()
    train(run, *range(500, 1000))
    assert run.flush() and run.health()["dead_letters"] == 0
    assert [packing for packing, _ in bodies] == ["gzip", "", ""]
    assert [row["update"] for row in server.ledger.rows("updates")] == list(range(1000))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), ("86400", 3600.0), ("-3", 0.0), ("soon", None), (None, None)],
)
def test_what_retry_after_asks_for(header: str | None, seconds: float | None) -> None:
    assert delivering.asked_pause({} if header is None else {"retry-after": header}) == seconds


def test_retry_after_may_be_a_date() -> None:
    date = email.utils.formatdate(time.time() + 20, usegmt=True)
    pause = delivering.asked_pause({"retry-after": date})
    assert pause is not None and 17 < pause <= 20


def test_pauses_grow_are_spread_and_are_bounded(start: Start) -> None:
    capture: Any = CapturingTransport()

    def dead(*_: Any) -> Answer:
        raise Unreachable("nobody is there")

    capture.request = dead
    run = start(transport=capture, flush_seconds=60.0)
    channel = run._sender.channels[0]  # type: ignore[union-attr]
    while (delivery := channel.delivery) is None or delivery.last_failure is None:
        time.sleep(0.01)
    pauses: list[list[float]] = []
    for _ in range(40):
        delivery._failures = 0
        pauses.append([])
        for _ in range(12):
            delivery.not_before = 0.0
            began = time.monotonic()
            assert delivery.step(1.0) is False
            pauses[-1].append(delivery.not_before - began)
    for number, column in enumerate(zip(*pauses, strict=True)):
        grown = min(delivering.LONGEST_PAUSE_SECONDS, delivering.FIRST_PAUSE_SECONDS * 2**number)
        assert grown / 2 <= min(column) and max(column) <= grown + 0.1
        assert max(column) - min(column) > grown / 5
    assert delivery.last_failure == "no answer: nobody is there"


def test_one_request_is_under_way_and_each_goes_on_where_the_last_one_ended(start: Start, server: RecordingServer) -> None:
    under_way, together, sequences = [0], [0], []
    answer = server.ledger.answer
    lock = threading.Lock()

    def counted(method: str, path: str, body: bytes) -> Answer:
        with lock:
            under_way[0] += 1
            together.append(under_way[0])
        if method == "POST":
            block = json.loads(body)["ranks"][0]
            sequences.append(sorted(seq for columns in block.values() if isinstance(columns, dict) for seq in columns["seq"]))
            time.sleep(0.02)
        try:
            return answer(method, path, body)
        finally:
            with lock:
                under_way[0] -= 1

    server.ledger.answer = counted  # type: ignore[method-assign]
    run = start(url=server.url, flush_seconds=0.01)
    for number in range(300):
        train(run, number)
        run.counter("steps", number)
        # A group that is left before its outcome is told later, in the place of the row it has or behind it.
        with run.update(10_000 + number) as left:
            left.microbatch(input_slots=1)
        left.skipped("other")
        time.sleep(0.001)
    assert run.close()
    assert max(together) == 1 and len(sequences) > 3
    joined = [seq for batch in sequences for seq in batch]
    assert joined == list(range(1, len(joined) + 1))


def test_a_batch_that_is_lost_behind_its_commit_is_sent_as_it_was(start: Start, server: RecordingServer) -> None:
    batches: list[bytes] = []

    def lost(ledger: RecordingLedger, method: str, path: str, body: bytes) -> Answer | None:
        ledger.faults.append(lost)
        if method != "POST":
            return None
        batches.append(body)
        if len(batches) % 3:
            ledger.carry_out(method, path, body)
            raise Unreachable
        return None

    server.ledger.faults = [lost]
    run = start(url=server.url, flush_seconds=0.01)
    train(run, *range(20))
    assert run.close()
    assert len(server.ledger.duplicates) >= 20 and not server.ledger.conflicts
    assert [row["seq"] for row in server.ledger.rows("updates")] == list(range(1, 21))
