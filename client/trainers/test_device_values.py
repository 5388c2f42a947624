"""Values that lie on a device: the training thread queues copies and goes on, and the sender's thread reads what has landed.

The device here is a queue in the test: its tensors do nothing by themselves, and copies happen when the test lets them. The client does
the same with them as with tensors of a GPU, but that its places are not pinned.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy
import pytest
import torch

import ledger_client
from ledger_client import landing
from ledger_client.backlog import Backlog
from ledger_client.storage import Directory
from ledger_client.testing import CapturingTransport

QUEUE: list[Callable[[], object]] = []
"""The copies that were queued and have not been made."""
WAITS = ("item", "tolist", "cpu", "numpy", "__index__", "__int__", "__float__", "__bool__", "__len__")


class OnDevice(torch.Tensor):
    """A tensor whose values reach the host only by the queue."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch does it, but for the place, copies to the host, and whatever would wait for the device."""
        name = getattr(function, "__name__", "")
        if name == "__get__" and getattr(function, "__self__", None) is torch.Tensor.device:
            return torch.device("cuda", 0)
        if name == "copy_" and not isinstance(args[0], OnDevice):
            target, source = args[0], args[1].as_subclass(torch.Tensor).clone()
            assert kwargs == {"non_blocking": True}
            QUEUE.append(lambda: target.copy_(source))
            return target
        assert name not in WAITS, f"{name} waits for the device"
        return super().__torch_function__(function, types, args, kwargs or {})


def on_device(value: Any, dtype: torch.dtype | None = None) -> Any:
    """A tensor on the device."""
    return torch.tensor(value, dtype=dtype).as_subclass(OnDevice)


@pytest.fixture(autouse=True)
def emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with nothing in its queue, and no places from the test before."""
    QUEUE.clear()
    monkeypatch.setattr(landing, "LANDINGS", {})


@pytest.fixture
def capture() -> CapturingTransport:
    """A ledger in this process."""
    return CapturingTransport()


@pytest.fixture
def run(tmp_path: Path, capture: CapturingTransport) -> Iterator[ledger_client.Run]:
    """A run with a quick sender."""
    started = ledger_client.start("demo", spool=tmp_path / "spool", attempt="a1", transport=capture, flush_seconds=0.02)
    yield started
    started.close(timeout=0.2)


def land(count: int | None = None) -> None:
    """Let the device make the copies that were queued first."""
    for _ in range(len(QUEUE) if count is None else count):
        QUEUE.pop(0)()


def test_a_value_is_sent_once_it_has_landed_and_is_unknown_until_then(
    run: ledger_client.Run, capture: CapturingTransport, tmp_path: Path
) -> None:
    targets, loss = on_device(4), on_device(2.5, torch.bfloat16).requires_grad_()
    with run.update(1) as update:
        update.microbatch(input_slots=8, valid_targets=targets, loss_sum=loss * 2)
        targets += 100
        update.microbatch(input_slots=8, valid_targets=3, loss_sum=1.0)
        update.applied(reported_loss=on_device(0.75, torch.float64))
    with run.update(2) as update:
        update.microbatch(input_slots=8)
        update.applied()
    assert not run.flush(timeout=0.2) and not capture.ledger.rows("updates")
    # The second value has landed, and of the third its number, but not the one behind it.
    land(5)
    assert not run.flush(timeout=0.2) and not capture.ledger.rows("updates")
    (spool,) = (tmp_path / "spool").iterdir()
    first, second = (row for _, row in Backlog(Directory(spool), writable=False).take(10).events)
    assert first["outcome"] == second["outcome"] == "applied" and first["input_slots"] == 16
    assert first.get("valid_targets") is first.get("loss_sum") is first.get("reported_loss") is None
    land()
    assert run.flush()
    first, second = capture.ledger.rows("updates")
    assert (first["valid_targets"], first["loss_sum"], first["reported_loss"]) == (7, 6.0, 0.75)
    assert (first["seq"], second["seq"]) == (1, 2) and not capture.ledger.conflicts


def test_places_are_used_again(run: ledger_client.Run, capture: CapturingTransport) -> None:
    for number in range(300):
        with run.update(number) as update:
            update.microbatch(valid_targets=on_device(number), loss_sum=on_device(number / 8))
            update.applied()
        if not number % 20:
            land()
            assert run.flush()
    land()
    assert run.flush()
    assert [(row["valid_targets"], row["loss_sum"]) for row in capture.ledger.rows("updates")] == [
        (number, number / 8) for number in range(300)
    ]
    assert len(landing.LANDINGS["cuda"]._free) == landing.PLACES


def test_other_records_take_values_from_a_device(run: ledger_client.Run, capture: CapturingTransport) -> None:
    with torch.inference_mode():
        run.evaluation(update=1, valid_targets=on_device(11), seconds=1.0)
    run.discard("filtered", update=1, samples=on_device(3, torch.int32))
    run.counter("tokens", on_device(2**40), update=1)
    with run.update(1) as update:
        update.applied(schedule_step=on_device(5))
    land()
    assert run.flush()
    assert [capture.ledger.rows(kind)[0][name] for kind, name in
            (("evaluations", "valid_targets"), ("discards", "samples"), ("counters", "value"), ("updates", "schedule_step"))
            ] == [11, 3, 2**40, 5]  # fmt: skip


@pytest.mark.parametrize("wrong", [3.0, True, [1, 2], 2j, -1, 2**60])
def test_what_is_no_count_is_unknown_and_said(
    run: ledger_client.Run, capture: CapturingTransport, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    with run.update(1) as update:
        update.microbatch(input_slots=8, valid_targets=on_device(wrong))
        update.applied()
    land()
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert row["input_slots"] == 8 and "valid_targets" not in row
    assert run.health()["invalid"] == 1 and any("valid_targets is recorded as unknown" in record.message for record in caplog.records)


def test_nothing_is_queued_into_a_graph_that_is_captured(
    run: ledger_client.Run, capture: CapturingTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with run.update(1) as update:
        update.microbatch(input_slots=8, valid_targets=on_device(4))
        update.applied()
    assert not QUEUE and run.flush()
    assert "valid_targets" not in capture.ledger.rows("updates")[0]
    assert any("a graph is captured" in record.message for record in caplog.records)


def test_the_trainers_settings_do_not_reach_the_places(run: ledger_client.Run, capture: CapturingTransport) -> None:
    previous = torch.get_default_dtype()
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float16)
    try:
        with run.update(1) as update:
            update.microbatch(loss_sum=torch.tensor(70_000.5, dtype=torch.float32, device="cpu").as_subclass(OnDevice))
            update.applied()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(previous)
    land()
    assert run.flush() and capture.ledger.rows("updates")[0]["loss_sum"] == 70_000.5


def test_a_tensor_of_the_host_is_read_at_once(run: ledger_client.Run, capture: CapturingTransport) -> None:
    with run.update(1) as update:
        update.microbatch(valid_targets=torch.tensor([[4]]), loss_sum=torch.tensor(2.0, requires_grad=True))
        update.applied()
    assert not landing.LANDINGS and run.flush()
    (row,) = capture.ledger.rows("updates")
    assert (row["valid_targets"], row["loss_sum"]) == (4, 2.0)


def test_a_jax_value_is_waited_for_elsewhere(run: ledger_client.Run, capture: CapturingTransport) -> None:
    @jax.jit
    def slow(matrix: Any) -> tuple[Any, Any]:
        product = jax.lax.fori_loop(0, 30, lambda _, value: value @ matrix, matrix)
        return (product[0, 0] * 0 + 7).astype(int), product[0, 0] * 0 + 1.5

    matrix = jax.numpy.full((400, 400), 1.0 / 400)
    jax.block_until_ready(slow(matrix))
    count, loss = slow(matrix)
    assert not count.is_ready()
    began = time.perf_counter()
    with run.update(1) as update:
        update.microbatch(input_slots=8, valid_targets=count, loss_sum=loss)
        update.applied()
    assert not count.is_ready(), f"recording waited for {time.perf_counter() - began} s"
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert (row["valid_targets"], row["loss_sum"]) == (7, 1.5)


def test_a_jax_value_of_another_device_is_brought_to_the_host(run: ledger_client.Run, capture: CapturingTransport) -> None:
    class Far:
        """As a ready jax array of one element on a GPU."""

        dtype = "int32"
        brought = deleted = False

        def devices(self) -> list[Any]:
            return [type("Device", (), {"platform": "gpu"})]

        def is_ready(self) -> bool:
            return True

        def copy_to_host_async(self) -> None:
            self.brought = True

        def item(self) -> int:
            if self.deleted:
                raise RuntimeError("Array has been deleted")
            assert self.brought, "the host would wait for the copy"
            return 9

        __index__ = None

    donated = Far()
    donated.deleted = True
    with run.update(1) as update:
        update.microbatch(valid_targets=Far(), input_slots=donated)
        update.applied()
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert row["valid_targets"] == 9 and "input_slots" not in row
