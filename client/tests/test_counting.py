"""What a row says of its microbatches: exact sums, and unknown where one of them did not say."""

import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
from conftest import train

import ledger_client
from ledger_client import Conventions, Layout, batch, records
from ledger_client.backlog import Backlog
from ledger_client.testing import CapturingTransport, RecordingServer

Start = Callable[..., ledger_client.Run]


@pytest.fixture
def capture() -> CapturingTransport:
    return CapturingTransport()


def test_an_update_is_the_sum_of_its_microbatches(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    with run.update(7) as update:
        update.microbatch(input_slots=8, consumed_tokens=7, valid_targets=4, samples=2, loss_sum=2.0, ranges=[("train", 0, 0, 2)])
        update.microbatch(input_slots=8, consumed_tokens=6, valid_targets=0, samples=2, loss_sum=0.0, ranges=[("train", 0, 2, 4)])
        update.microbatch(input_slots=8, consumed_tokens=5, valid_targets=2, samples=2, loss_sum=3.0, ranges=[("code", 1, 9, 11)])
        update.applied(reported_loss=0.9, schedule_step=3, participants=[0, 2])
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert row.pop("seconds") > 0
    assert row.pop("started_at").endswith("Z")
    assert row == {
        "seq": 1, "update": 7, "retry": 0, "outcome": "applied", "input_slots": 24, "consumed_tokens": 18, "valid_targets": 6,
        "samples": 6, "microbatches": 3, "loss_sum": 5.0, "microbatch_mean_sum": 2.0, "microbatches_scored": 2, "reported_loss": 0.9,
        "schedule_step": 3, "ranges": [["train", 0, 0, 4], ["code", 1, 9, 11]], "participants": [0, 2],
    }  # fmt: skip


def test_a_quantity_unknown_in_one_microbatch_is_unknown_for_the_row_alone(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    for unknown in (None, -3, 1.5, True, "9"):
        with run.update(1) as update:
            update.microbatch(input_slots=8, valid_targets=unknown, loss_sum=1.0, ranges=[("train", 0, 0, 1)])
            update.microbatch(input_slots=8, valid_targets=4, loss_sum=1.0)
            update.applied()
    assert run.flush()
    for row in capture.ledger.rows("updates"):
        assert (row["input_slots"], row["loss_sum"], row["microbatches"]) == (16, 2.0, 2)
        assert not {"valid_targets", "microbatch_mean_sum", "microbatches_scored", "ranges", "consumed_tokens", "samples"} & row.keys()
    assert run.health()["invalid"] == 4


def test_an_outcome_without_microbatches_says_nothing_about_counts(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    with run.update(1) as update:
        update.skipped("overflow")
    with run.update(2):
        pass
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert {"seq", "update", "retry", "outcome", "reason", "seconds", "started_at"} == row.keys()


def test_a_loss_that_is_no_number_is_kept_as_such(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    with run.update(1) as update:
        update.microbatch(valid_targets=2, loss_sum=math.inf)
        update.microbatch(valid_targets=2, loss_sum=-math.inf)
        update.skipped("nonfinite", reported_loss=-math.inf)
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert (row["loss_sum"], row["microbatch_mean_sum"], row["reported_loss"]) == ("NaN", "NaN", "-Infinity")


def test_numpy_integers_are_exact(start: Start, capture: CapturingTransport) -> None:
    numpy = pytest.importorskip("numpy")
    run = start(transport=capture)
    with run.update(numpy.int64(3)) as update:
        update.microbatch(valid_targets=numpy.int32(2**31 - 1), loss_sum=numpy.float32(0.5), ranges=[("train", 0, numpy.int64(1), 3)])
        update.microbatch(valid_targets=numpy.asarray(2**31 - 1), loss_sum=1, ranges=[])
        update.applied(schedule_step=numpy.int16(5))
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert (row["update"], row["valid_targets"], row["loss_sum"], row["schedule_step"]) == (3, 2**32 - 2, 1.5, 5)
    assert row["ranges"] == [["train", 0, 1, 3]]


def test_outcomes_tries_and_reasons(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    for close in (
        lambda update: update.skipped("spike_guard"),
        lambda update: update.skipped("of my own"),
        lambda update: update.abandoned(),
        lambda update: update.outcome_unknown(),
        lambda update: (update.applied(), update.skipped("overflow")),
    ):
        with run.update(4) as update:
            update.microbatch(input_slots=1)
            close(update)
            update.microbatch(input_slots=100)
    assert run.flush()
    rows = capture.ledger.rows("updates")
    assert [(row.get("outcome"), row.get("reason"), row["retry"], row["input_slots"]) for row in rows] == [
        ("skipped", "spike_guard", 0, 1),
        ("skipped", "other", 1, 1),
        ("abandoned", None, 2, 1),
        (None, None, 3, 1),
        ("applied", None, 4, 1),
    ]


def test_an_open_row_that_nobody_has_read_gives_its_place_to_the_closing_row(start: Start, server: RecordingServer) -> None:
    run = start(mode="offline")
    with run.update(1) as update:
        update.microbatch(input_slots=1)
    update.applied()
    with run.update(2) as late:
        late.microbatch(input_slots=1)
    run.counter("global_step", 1)
    late.skipped("overflow")
    run.close()
    spool = run_spool(run)
    rows = [(kind, row["seq"], row.get("outcome")) for kind, row in Backlog(spool).take(100).events]
    assert rows == [("updates", 1, "applied"), ("updates", 2, "open"), ("counters", 3, None), ("updates", 4, "skipped")]


def run_spool(run: ledger_client.Run) -> Any:
    """The storage behind a run."""
    sender = run._sender
    assert sender is not None
    return sender.channels[0].spool.storage


def test_the_other_kinds_of_events(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    train(run, 1, 2)
    saved = run.checkpoint("c2", update=2, uri="s3://b/c2", positions={"train": (0, 4), "code": {"epoch": 1, "position": 2}})
    saved.accepted(uri="s3://b/c2-final")
    run.checkpoint("c3").rejected()
    run.reject({"checkpoint": "c1", "attempt": "a0", "update": 1})
    run.evaluation(input_slots=8, valid_targets=6, seconds=0.5)
    run.evaluation(input_slots=8, valid_targets=6)
    run.discard("remainder", input_slots=4, samples=1, ranges=[("train", 0, 4, 5)])
    run.pass_over("train", 5, 9)
    run.counter("consumed_train_samples", 4)
    run.idle("restart", seconds=3)
    with run.idle("waiting"):
        pass
    assert run.flush()
    rows = capture.ledger.rows
    states = [{name: value for name, value in row.items() if name != "seconds"} for row in rows("checkpoints")]
    assert states == [
        {"seq": 3, "checkpoint": "c2", "state": "started", "update": 2, "uri": "s3://b/c2",
         "positions": {"train": {"epoch": 0, "position": 4}, "code": {"epoch": 1, "position": 2}}},
        {"seq": 4, "checkpoint": "c2", "state": "accepted", "update": 2, "uri": "s3://b/c2-final"},
        {"seq": 5, "checkpoint": "c3", "state": "started", "update": 2},
        {"seq": 6, "checkpoint": "c3", "state": "rejected", "update": 2},
        {"seq": 7, "checkpoint": "c1", "state": "rejected", "attempt": "a0", "update": 1},
    ]  # fmt: skip
    assert [(row["update"], row["name"], row["retry"], row["valid_targets"]) for row in rows("evaluations")] == [
        (2, "validation", 0, 6),
        (2, "validation", 1, 6),
    ]
    assert rows("discards") == [
        {"seq": 10, "update": 3, "retry": 0, "reason": "remainder", "input_slots": 4, "samples": 1, "ranges": [["train", 0, 4, 5]]}
    ]
    assert rows("passes") == [{"seq": 11, "update": 3, "stream": "train", "epoch": 0, "start": 5, "stop": 9}]
    assert rows("counters") == [{"seq": 12, "update": 2, "name": "consumed_train_samples", "value": 4}]
    assert [(row["label"], row["seconds"] >= 0) for row in rows("idles")] == [("restart", True), ("waiting", True)]


class DeviceArray:
    """An array of one element that is not on the host."""

    device = "accelerator:0"

    def __init__(self, value: object) -> None:
        self.value = value

    def __index__(self) -> int:
        raise AssertionError("a record call must not make the host wait for the device")

    __float__ = __index__

    def item(self) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_values_on_a_device_are_read_off_the_training_thread(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    with run.update(1) as update:
        update.microbatch(input_slots=8, valid_targets=2, loss_sum=1.0)
        update.microbatch(input_slots=8, valid_targets=DeviceArray(4), loss_sum=DeviceArray(2.0))
        update.microbatch(input_slots=8, valid_targets=2, loss_sum=1.0)
        update.applied(reported_loss=DeviceArray(0.5))
    with run.update(2) as update:
        update.microbatch(input_slots=8, valid_targets=DeviceArray(RuntimeError("the device is gone")))
        update.applied()
    run.evaluation(valid_targets=DeviceArray(11))
    assert run.flush()
    first, second = capture.ledger.rows("updates")
    assert (first["valid_targets"], first["loss_sum"], first["microbatch_mean_sum"], first["microbatches_scored"]) == (8, 4.0, 1.5, 3)
    assert first["reported_loss"] == 0.5
    assert second["input_slots"] == 8 and "valid_targets" not in second
    assert capture.ledger.rows("evaluations")[0]["valid_targets"] == 11
    assert not capture.ledger.conflicts and len(capture.ledger.events) == 3


def test_declarations(start: Start, capture: CapturingTransport) -> None:
    run = start(
        transport=capture,
        project="pretraining",
        rank=3,
        layout=Layout(dp=2, tp=2),
        conventions=Conventions(objective="token_mean", sequence_length=128, data={"unit": "position"}),
        resumed_from={"checkpoint": "c4", "attempt": "a0", "update": 4},
        forked_from={"project": "pretraining", "run": "older", "checkpoint": "c2"},
    )
    assert run.flush()
    assert capture.ledger.requests[:2] == [
        ("PUT", "/v1/projects/pretraining/runs/demo"),
        ("PUT", "/v1/projects/pretraining/runs/demo/attempts/a1"),
    ]
    assert capture.ledger.runs["demo"]["forked_from"]["run"] == "older"
    body = capture.ledger.attempts["a1"]
    assert body.pop("started_at").endswith("Z")
    assert body == {
        "resumed_from": {"checkpoint": "c4", "attempt": "a0", "update": 4},
        "layout": {"dp": 2, "tp": 2, "pp": 1, "cp": 1, "order": "tp-cp-dp-pp", "cp_counts": "shard"},
        "conventions": {"objective": "token_mean", "sequence_length": 128, "data": {"unit": "position"}},
        "rank": 3,
    }


def test_a_rollback_is_a_further_attempt(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    train(run, 1, 2)
    saved = run.checkpoint("c1", update=1)
    saved.accepted()
    with run.update(3) as update:
        update.microbatch(input_slots=5)
        run.rolled_back_to(saved)
    assert run.attempt == "a1.1"
    train(run, 2)
    assert run.close()
    assert capture.ledger.attempts["a1.1"]["resumed_from"] == {"checkpoint": "c1", "attempt": "a1", "update": 1}
    assert [row["outcome"] for row in capture.ledger.rows("updates", attempt="a1")] == ["applied", "applied", "open"]
    (redone,) = capture.ledger.rows("updates", attempt="a1.1")
    assert (redone["seq"], redone["update"], redone["retry"]) == (1, 2, 0)


def test_a_block_says_how_the_attempt_ended(start: Start, capture: CapturingTransport) -> None:
    with start(transport=capture) as run:
        train(run, 1)
    endings = {"a1": "completed"}
    for error, ended in (
        (ZeroDivisionError(), "crashed"), (KeyboardInterrupt(), "stopped"), (SystemExit(0), "completed"), (SystemExit(1), "crashed"),
        (SystemExit(128 + signal.SIGTERM), "preempted"), (SystemExit(128 + signal.SIGINT), "stopped"),
    ):  # fmt: skip
        attempt = f"a{len(endings) + 1}"
        with pytest.raises(type(error)), start(transport=capture, attempt=attempt):
            raise error
        endings[attempt] = ended
    assert capture.ledger.endings == {attempt: {"ended": ended} for attempt, ended in endings.items()}
    assert capture.ledger.requests[3][0] == "PATCH"


def test_nothing_raises_into_the_loop(start: Start, capture: CapturingTransport) -> None:
    run = start(transport=capture)
    with run.update("three") as update:  # type: ignore[arg-type]
        update.microbatch(input_slots=1)
        update.applied()
    with run.update(1) as update:
        update.microbatch(input_slots=1, ranges=[("train", 0, 5, 1)], loss_sum="much")
        update.microbatch(input_slots=1, ranges=7)  # type: ignore[arg-type]
        update.applied(participants=["x"])  # type: ignore[list-item]
        update.applied(reported_loss=object(), schedule_step=object())
    run.counter("steps", "many")
    run.counter("steps", object())
    run.checkpoint("c", update=-4, positions={"train": 3}).accepted()
    run.pass_over("train", None, 3)  # type: ignore[arg-type]
    run.rolled_back_to(object())
    run.evaluation(seconds="long")  # type: ignore[arg-type]
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert row["outcome"] == "applied" and row["input_slots"] == 2
    assert run.close()
    with run.update(2) as update:
        update.microbatch(input_slots=1)
        update.applied()
    run.counter("steps", 1)
    assert run.close() is False


def test_disabled_does_nothing(start: Start, tmp_path: Any) -> None:
    run = start(mode="disabled")
    train(run, 1)
    run.checkpoint("c1").accepted()
    run.rolled_back_to("c1")
    assert not run.recording and not run.close() and not (tmp_path / "spool").exists()


def test_wrong_arguments_are_told_at_the_launch(start: Start) -> None:
    for wrong in ({"attempt": "no/slug"}, {"project": ""}, {"mode": "loud"}, {"url": "ledger:8400"}, {"resumed_from": 3}):
        with pytest.raises((ValueError, TypeError)):
            start(**wrong)
    with pytest.raises(ValueError, match="together"):
        Layout(shards=[0, 1])


def test_columns_are_those_of_the_ledger() -> None:
    events = pytest.importorskip("ledger.domain.events")
    assert {kind: tuple(column.name for column in described.columns) for kind, described in events.KINDS.items()} == batch.COLUMNS
    assert set(records.OUTCOMES) == {*events.OUTCOMES, None} and set(records.REASONS) == {*events.SKIP_REASONS, None}
