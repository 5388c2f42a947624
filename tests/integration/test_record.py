"""The record of an experiment and records side by side, on both databases."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from ledger.app import create_app
from ledger.config import Settings
from ledger.services import curves, record
from ledger.storage import schema
from ledger.storage.engine import open_engine
from worked_example import RUN, attempt, batch, columns, expect, play, saved

OTHER = "/v1/projects/default/runs/other"
CONVENTIONS = {"objective": "token_mean", "gradient_reducer": "mean", "optimizer": "AdamW", "sequence_length": 32}


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    """A service that has seen the worked example."""
    engine = open_engine(database_url)
    schema.upgrade(engine)
    engine.dispose()
    with TestClient(create_app(Settings(database_url=database_url, metrics_cache_seconds=0, projection_interval_seconds=0.05))) as service:
        play(service)
        yield service


def play_other(client: TestClient, updates: int = 12, targets: tuple[int | None, ...] = (), **changed: Any) -> None:
    """A run of one rank whose valid-token batch and loss change from update to update."""
    expect(client.put(OTHER, json={"conventions": CONVENTIONS | changed}))
    expect(client.put(f"{OTHER}/attempts/b1", json=attempt(1, None) | {"layout": {"dp": 1}}))
    block = columns(1, dict.fromkeys(range(1, updates + 1), "applied"), 0)
    counts = targets or tuple(10 + number for number in range(updates))
    block["valid_targets"] = list(counts)
    block["loss_sum"] = [None if count is None else (4 - 0.125 * number) * count for number, count in enumerate(counts)]
    block["reported_loss"] = [4 - 0.125 * number for number in range(updates)]
    block["ranges"] = [[["web" if number % 3 else "code", 0, 4 * number, 4 * number + 2]] for number in range(updates)]
    expect(client.post(f"{OTHER}/attempts/b1/events", json=batch(0, updates=block)))
    expect(client.post(f"{OTHER}/attempts/b1/events", json=batch(0, checkpoints=saved(updates + 1, "last", updates))))


def test_the_digest_is_of_what_the_documentation_says(client: TestClient) -> None:
    found = client.get(f"{RUN}/record").json()
    digest = found.pop("digest")
    written = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert digest == "sha256:" + hashlib.sha256(written).hexdigest()
    assert digest == record.digest_of(found)


def test_a_record_is_the_same_at_the_same_offset_and_another_after_an_event(client: TestClient) -> None:
    first, again = client.get(f"{RUN}/record").json(), client.get(f"{RUN}/record").json()
    assert first == again
    expect(client.post(f"{RUN}/attempts/a2/events", json=batch(0, counters={"seq": [90], "update": [7], "name": ["x"], "value": [1]})))
    later = client.get(f"{RUN}/record").json()
    assert later["as_of"]["events"] > first["as_of"]["events"]
    assert later["digest"] != first["digest"]


def test_a_record_says_what_the_reports_say(client: TestClient) -> None:
    found, exposure = client.get(f"{RUN}/record").json(), client.get(f"{RUN}/exposure").json()
    for key in ("updates", "balance", "recomputed", "evaluation", "passed_over", "occupancy"):
        assert found["exposure"][key] == exposure[key]
    assert found["trajectory"] == exposure["trajectory"]
    assert found["objective"]["statement"] == client.get(f"{RUN}/objective").json()["statement"]
    assert found["rates"][1] == client.get(f"{RUN}/rates?work=preserved&time=wall").json()
    assert [item["topology"]["data_parallel_ranks"] for item in found["attempts"]] == [2, 2]
    assert found["streams"] == [
        {"stream": "train", "unit": "position", "epochs": 1, "effective_total": 28, "effective_unique": 28, "share": 1.0}
    ]


def test_the_batch_is_distributed_as_its_updates_are(client: TestClient) -> None:
    play_other(client, 40, tuple(7 * number % 41 + 3 for number in range(40)))
    found = client.get(f"{OTHER}/record").json()["valid_token_batch"]
    counts = [item["valid_targets"] for item in client.get(f"{OTHER}/updates?limit=100").json()["items"]]
    assert [found["lowest"], found["highest"], found["updates"], found["updates_unknown"]] == [min(counts), max(counts), 40, 0]
    assert found["mean"] == sum(counts) / 40
    right = {share: int(np.quantile(counts, float(share), method="inverted_cdf")) for share in found["quantiles"]}
    assert found["quantiles"] == right
    assert found["quantiles_exact"] is True


def test_work_that_was_lost_is_in_no_distribution(client: TestClient) -> None:
    found = client.get(f"{RUN}/record").json()["valid_token_batch"]
    assert [found["updates"], found["lowest"], found["highest"]] == [7, 36, 36]


def test_of_many_updates_the_quantiles_say_what_they_are_read_from(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    play_other(client, 40)
    monkeypatch.setattr(record, "QUANTILE_ROWS", 8)
    found = client.get(f"{OTHER}/record").json()["valid_token_batch"]
    assert [found["quantiles_from"], found["quantiles_exact"], found["updates"]] == [8, False, 40]
    assert [found["lowest"], found["highest"], found["mean"]] == [10, 49, 29.5]


def test_an_unknown_batch_is_in_no_figure(client: TestClient) -> None:
    play_other(client, 4, (10, None, 30, 20))
    found = client.get(f"{OTHER}/record").json()["valid_token_batch"]
    assert [found["updates"], found["updates_unknown"], found["lowest"], found["highest"], found["mean"]] == [4, 1, 10, 30, 20.0]
    assert found["quantiles"]["0.5"] == 20
    assert found["quantiles_exact"] is True


def test_an_empty_run_has_a_record_that_knows_nothing(client: TestClient) -> None:
    expect(client.put(OTHER, json={}))
    found = client.get(f"{OTHER}/record").json()
    assert found["valid_token_batch"]["mean"] is None
    assert set(found["valid_token_batch"]["quantiles"].values()) == {None}
    assert found["streams"] == []
    compared = client.get("/v1/compare?run=default/demo&run=default/other").json()
    assert compared["curves"]["places"] == []


def compared(client: TestClient, **query: Any) -> dict[str, Any]:
    """The worked example beside the other run."""
    found: dict[str, Any] = expect(client.get("/v1/compare", params={"run": ["default/demo", "default/other"], **query}))
    return found


def test_what_differs_comes_first_and_in_order(client: TestClient) -> None:
    play_other(client, target_rule="all")
    found = compared(client)
    assert [(item["kind"], item["name"]) for item in found["differences"]] == [
        ("convention", "target_rule"), ("convention", "optimizer"),
        ("topology", "data_parallel_ranks"), ("topology", "shards"), ("topology", "ranks"), ("topology", "dp"),
        ("sequence length", "sequence_length"), ("data mixture", "streams"), ("valid-token batch", "mean"),
    ]  # fmt: skip
    by_name = {item["name"]: item["values"] for item in found["differences"]}
    assert by_name["optimizer"] == [None, "AdamW"]
    assert by_name["streams"] == [{"train": 1.0}, {"code": 0.3333, "web": 0.6667}]
    assert "target rule" in found["statements"][0]
    assert "optimizer" in found["not_declared"][0]
    assert "optimizer" not in found["not_declared"][1]


def test_a_fork_says_where_it_came_from(client: TestClient) -> None:
    source = {"project": "default", "run": "demo", "checkpoint": "c4"}
    expect(client.put(OTHER, json={"forked_from": source}))
    expect(client.put(f"{OTHER}/attempts/b1", json=attempt(3, "c4")))
    for rank in (0, 1):
        expect(client.post(f"{OTHER}/attempts/b1/events", json=batch(rank, updates=columns(1, {5: "applied", 6: "applied"}, rank))))
    record_of_fork = client.get(f"{OTHER}/record").json()
    assert record_of_fork["forked_from"]["run"] == "demo"
    # What it was trained on began in the other run; what it did itself is its own.
    assert record_of_fork["streams"][0]["effective_total"] == 24
    assert record_of_fork["valid_token_batch"]["updates"] == 2
    found = compared(client)
    assert {"kind": "origin", "name": "forked_from", "values": ["from scratch", "default/demo, checkpoint c4"]} in found["differences"]
    assert found["curves"]["runs"][1]["reach"] == 2


def test_it_says_plainly_what_it_does_not_show(client: TestClient) -> None:
    play_other(client)
    said = " ".join(compared(client)["statements"])
    for words in ("Equal token counts are not equal gradients", "sequence lengths", "document mixtures", "dropout", "reduction order"):
        assert words in said
    assert "implies no universal learning-rate rule" in said


def test_exposure_is_side_by_side_in_every_unit(client: TestClient) -> None:
    play_other(client)
    rows = {(row["quantity"], row["term"]): row for row in compared(client)["exposure"]}
    reports = [client.get(f"{run}/exposure").json() for run in (RUN, OTHER)]
    assert {quantity for quantity, _ in rows} == {"input_slots", "consumed_tokens", "valid_targets", "samples", "updates"}
    for (quantity, term), row in rows.items():
        if term == "recomputed":
            assert row["values"] == [report["recomputed"][quantity] for report in reports]
        else:
            assert row["values"] == [report["balance"][quantity][term] for report in reports]
            assert row["unit"] == reports[0]["balance"][quantity]["unit"]


@pytest.mark.parametrize("at", ["applied_updates", "valid_targets", "consumed_tokens"])
def test_curves_lie_at_equal_places(client: TestClient, at: str) -> None:
    play_other(client)
    found = compared(client, at=at, points=5)["curves"]
    items = client.get(f"{OTHER}/updates?limit=100").json()["items"]
    steps = [1 if at == "applied_updates" else item[at] for item in items]
    ends = np.cumsum(steps)
    assert found["runs"][1]["reach"] == ends[-1]
    assert found["places"][-1] <= min(run["reach"] for run in found["runs"])
    assert None not in min((run["token_mean"] for run in found["runs"]), key=lambda values: values.count(None))
    before = 0
    run = found["runs"][1]
    for place, last, mean, reported in zip(found["places"], run["last_update"], run["token_mean"], run["reported_loss"], strict=True):
        inside = [item for item, end in zip(items, ends, strict=True) if before < end <= place]
        through = [item["update"] for item, end in zip(items, ends, strict=True) if end <= place]
        assert last == (through[-1] if through else None)
        for value, key in ((mean, "token_mean"), (reported, "reported_loss")):
            assert value == (pytest.approx(np.mean([item[key] for item in inside])) if inside else None)
        before = place


def test_a_long_run_is_read_off_its_totals(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    play_other(client, 3000)
    again = OTHER.replace("other", "again")
    expect(client.put(again, json={}))
    expect(client.put(f"{again}/attempts/b1", json=attempt(1, None) | {"layout": {"dp": 1}}))
    expect(client.post(f"{again}/attempts/b1/events", json=batch(0, updates=columns(1, dict.fromkeys(range(1, 3001), "applied"), 0))))
    monkeypatch.setattr(curves, "MOST_ROWS", 10)
    query = {"run": ["default/other", "default/again"], "at": "applied_updates", "points": 9}
    found = expect(client.get("/v1/compare", params=query))["curves"]
    run = found["runs"][0]
    # Pages of 1,024 numbers, the last one cut at the checkpoint.
    assert found["places"] == run["last_update"] == [1023, 2047, 3000]
    assert [run["exact"], run["reach"]] == [False, 3000]
    losses = 4 - 0.125 * np.arange(3000)
    means = [losses[:1023].mean(), losses[1023:2047].mean(), losses[2047:].mean()]
    assert run["token_mean"] == pytest.approx(means)
    assert run["reported_loss"] == pytest.approx(means)
    targets = expect(client.get("/v1/compare", params=query | {"at": "valid_targets"}))["curves"]["runs"][0]
    assert targets["reach"] == sum(range(10, 3010))


def test_a_curve_ends_where_a_count_is_unknown(client: TestClient) -> None:
    play_other(client, 6, (10, 11, None, 13, 14, 15))
    found = compared(client, at="valid_targets")["curves"]
    assert [found["runs"][1]["reach"], found["runs"][1]["known_throughout"]] == [21, False]
    assert found["places"][-1] == 21
    assert compared(client)["curves"]["runs"][1]["known_throughout"] is True


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("run=default/demo", 422, "invalid_request"),
        ("run=default/demo&run=default/demo", 422, "invalid_request"),
        ("run=default/demo&run=nothing", 422, "invalid_request"),
        ("&".join(f"run=default/r{number}" for number in range(9)), 422, "invalid_request"),
        ("run=default/demo&run=default/none", 404, "run_unknown"),
        ("run=default/demo&run=default/other&at=seconds", 422, "invalid_request"),
        ("run=default/demo&run=default/other&points=0", 422, "invalid_request"),
    ],
)
def test_what_cannot_be_compared_is_refused(client: TestClient, query: str, status: int, code: str) -> None:
    answer = client.get(f"/v1/compare?{query}")
    assert [answer.status_code, answer.json()["code"]] == [status, code]
