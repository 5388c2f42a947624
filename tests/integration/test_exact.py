"""Integers stay exact beyond 2^53 and beyond 2^63: in the database, in the reports, over HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from ledger.app import create_app
from ledger.config import Settings
from ledger.storage.store import Store

RUN = "/v1/projects/exact/runs/large"
LARGEST = 2**53
UPDATES = 1500
RANKS = 2
COUNTS = {"input_slots": LARGEST, "consumed_tokens": LARGEST - 1, "valid_targets": LARGEST - 3}


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    """The whole service on an empty database."""
    address = store.engine.url.render_as_string(hide_password=False)
    with TestClient(create_app(Settings(database_url=address, metrics_cache_seconds=0))) as running:
        assert running.put(RUN, json={}).is_success
        assert running.put(f"{RUN}/attempts/a1", json={"layout": {"dp": RANKS}}).is_success
        yield running


def block(first: int, count: int, seq: int, **more: Any) -> dict[str, Any]:
    """Columns of consecutive updates with the largest counts."""
    numbers = [*range(first, first + count)]
    columns: dict[str, Any] = {"seq": [*range(seq, seq + count)], "update": numbers}
    return columns | {name: [value] * count for name, value in COUNTS.items()} | {name: [value] * count for name, value in more.items()}


def post(client: TestClient, attempt: str, rank: int, **blocks: Any) -> Any:
    """The answer to a batch of one rank."""
    return client.post(f"{RUN}/attempts/{attempt}/events", json={"ranks": [{"rank": rank, "writer": "w0", **blocks}]})


def exposure(client: TestClient, integers: str = "number") -> Any:
    """The exposure report."""
    return client.get(f"{RUN}/exposure", params={"integers": integers}).json()


@pytest.fixture
def large(client: TestClient) -> TestClient:
    """1,500 applied updates of two ranks; another attempt redoes 100 of them; each count is the largest there may be."""
    for rank in range(RANKS):
        assert post(client, "a1", rank, updates=block(1, UPDATES, 1, outcome="applied")).json()["accepted"] == UPDATES
    saved = {"seq": [9001], "checkpoint": ["c"], "state": ["accepted"], "update": [UPDATES - 100]}
    assert post(client, "a1", 0, checkpoints=saved, evaluations=block(UPDATES, 3, 9002)).json()["accepted"] == 4
    again = {"layout": {"dp": RANKS}, "resumed_from": {"checkpoint": "c"}}
    assert client.put(f"{RUN}/attempts/a2", json=again).is_success
    for rank in range(RANKS):
        redone = block(UPDATES - 99, 100, 1, outcome="skipped", reason="overflow")
        assert post(client, "a2", rank, updates=redone, discards=block(UPDATES + 1, 5, 200)).json()["accepted"] == 105
    return client


def test_sums_beyond_64_bits_are_exact_in_every_report(large: TestClient) -> None:
    report = exposure(large)
    for name, count in COUNTS.items():
        balance = report["balance"][name]
        right = {
            "attempted": (UPDATES + 105) * RANKS * count,
            "preserved": (UPDATES - 100) * RANKS * count,
            "lost_to_restart": 100 * RANKS * count,
            "skipped": 100 * RANKS * count,
            "dropped": 5 * RANKS * count,
            "pending": 0,
        }
        assert {bucket: balance[bucket] for bucket in right} == right
        assert right["attempted"] > 2**63
        assert balance["skipped_by_reason"] == {"overflow": right["skipped"]}
        assert report["matrix"][name]["applied"]["preserved"] == right["preserved"]
        assert report["recomputed"][name] == 100 * RANKS * count
        assert report["evaluation"][name] == 3 * count
    as_text = exposure(large, "string")["balance"]["input_slots"]
    assert as_text["attempted"] == str((UPDATES + 105) * RANKS * LARGEST)
    (item,) = large.get(f"{RUN}/updates", params={"limit": 1}).json()["items"]
    assert item["consumed_tokens"] == RANKS * (LARGEST - 1)
    rate = large.get(f"{RUN}/rates", params={"quantity": "consumed_tokens", "work": "applied"}).json()
    assert rate["numerator"] == UPDATES * RANKS * (LARGEST - 1)
    path = large.get(f"{RUN}/checkpoints/c/exposure").json()
    assert path["exposure"]["valid_targets"]["applied"] == (UPDATES - 100) * RANKS * COUNTS["valid_targets"]


def test_json_numbers_are_integers_never_floats(large: TestClient) -> None:
    text = large.get(f"{RUN}/exposure").text
    exact = (UPDATES + 105) * RANKS * (LARGEST - 3)
    assert f'"attempted":{exact}' in text.replace(": ", ":")
    floats: list[str] = []
    json.loads(text, parse_float=lambda found: floats.append(found) or float(found))
    occupancy = json.loads(text)["occupancy"]["valid_targets_per_input_slot"]
    assert [float(found) for found in floats] == [occupancy]


def test_the_largest_count_and_position_come_back_from_the_raw_log(client: TestClient) -> None:
    row = block(1, 1, LARGEST, outcome="applied") | {"ranges": [[["train", LARGEST, LARGEST - 1, LARGEST]]], "update": [LARGEST]}
    assert post(client, "a1", 0, updates=row).json()["accepted"] == 1
    entries = [json.loads(line) for line in client.get(f"{RUN}/events").text.splitlines()]
    (entry,) = [entry for entry in entries if entry["kind"] == "updates"]
    assert (entry["seq"], entry["update"], entry["input_slots"]) == (LARGEST, LARGEST, LARGEST)
    assert entry["ranges"] == [["train", LARGEST, LARGEST - 1, LARGEST]]


def test_a_count_that_is_no_count_is_refused_and_nothing_of_the_batch_is_stored(client: TestClient) -> None:
    before = exposure(client)["as_of"]["events"]
    for wrong in (LARGEST + 1, -1, 1.0, True, "1", 2**63, 2**64):
        columns = block(1, 2, 1, outcome="applied")
        columns["valid_targets"] = [5, wrong]
        answer = post(client, "a1", 0, updates=columns)
        assert answer.status_code == 422, wrong
        assert answer.json()["pointer"].startswith("/ranks/0/updates/valid_targets")
    report = exposure(client)
    assert (report["as_of"]["events"], report["updates"]["attempted"]) == (before, 0)


def test_a_count_of_nothing_is_zero_and_one_that_is_left_out_is_null(client: TestClient) -> None:
    for rank in range(RANKS):
        columns = {"seq": [1], "update": [1], "outcome": ["applied"], "valid_targets": [0], "input_slots": [None]}
        assert post(client, "a1", rank, updates=columns).is_success
    balance = exposure(client)["balance"]
    assert balance["valid_targets"]["attempted"] == 0
    assert balance["input_slots"]["attempted"] is None
    assert balance["input_slots"]["known"]["attempted"] == 0
