"""torchtitan's Trainer: a tiny Llama, with a crash and a resume, against a real ledger."""

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="torchtitan imports it, and there is one for Linux alone")

import tiny_titan
import torch
from conftest import Books, expected, summed
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.validate import Validator
from torchtitan.distributed import ParallelDims

from ledger_client.integrations.torch import mesh_layout
from ledger_client.integrations.torchtitan import record, sum_of, trainer_layout

TORCH = tuple(int(part) for part in version("torch").split(".")[:2])
# Updates of two microbatches of two packed rows; of the labels some are not scored.
ODD = {"valid_targets": 8 + 5 + 6 + 3, "consumed_tokens": 4 * 8, "input_slots": 4 * 8, "samples": 4}
EVEN = {"valid_targets": 4 + 4 + 4 + 2, "consumed_tokens": 4 * 8, "input_slots": 4 * 8, "samples": 4}


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is left as it was: torchtitan makes its group of ranks, and collects garbage by itself."""
    monkeypatch.setattr("torchtitan.trainer.time", SimpleNamespace(sleep=lambda seconds: None, perf_counter=lambda: 0.0))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.autograd.set_multithreading_enabled(True)
    gc.enable()


def trained(folder: Path, run: str, *, crashing: int | None = None, counts: Any = None, **more: Any) -> Any:
    """One launch of the same training."""
    trainer = tiny_titan.tiny(dump_folder=str(folder), **more).build()
    tiny_titan.crashes_in(trainer, crashing)
    record(trainer, run, counts=counts)
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


def test_accumulation_padding_and_resume(tmp_path: Path, books: Books) -> None:
    run = "torchtitan"
    with pytest.raises(RuntimeError, match="the node is gone"):
        trained(tmp_path, run, crashing=4)
    trained(tmp_path, run)
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "applied", "preserved"), (3, "applied", "lost"), (4, "open", "lost"),
        (3, "applied", "preserved"), (4, "applied", "preserved"),
    ]  # fmt: skip
    kept = summed(ODD, EVEN, ODD, EVEN)
    assert books.counters(run) == expected(attempted=summed(kept, ODD, EVEN), applied=summed(kept, ODD), preserved=kept)
    report = books.ask(run, "exposure")
    assert report["accepted_checkpoint"]["checkpoint"] == "step-4" and report["findings"] == {}
    first, second = books.ask(run)["attempts"]
    assert (first["ended"], first["resumed_from"], second["ended"]) == ("crashed", None, "completed")
    assert second["resumed_from"] == {"checkpoint": "step-2", "attempt": first["attempt"], "update": 2}
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert [(one["checkpoint"], one["update"], one["state"]) for one in saves] == [("step-2", 2, "accepted"), ("step-4", 4, "accepted")]
    applied = [row for row in books.ask(run, "updates")["items"] if row["outcome"] == "applied"]
    assert [row["loss_verdict"] for row in applied] == ["token_mean"] * 5
    assert all(row["reported_loss"] == pytest.approx(row["token_mean"]) for row in applied)


def test_two_ranks_with_different_rows_and_with_the_same(launch: Callable[..., list[str]], books: Books) -> None:
    launch("job_torchtitan.py", "data", "tensor", ranks=2)
    # Of the rows one rank draws every other one from the first on, and the other rank the others: each update has all eight of them.
    run, whole = "torchtitan-data", summed(ODD, EVEN)
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "applied", "preserved"), (3, "applied", "lost"), (4, "open", "lost"),
        (3, "applied", "preserved"), (4, "applied", "preserved"),
    ]  # fmt: skip
    # The first two rows of each rank.
    kept = summed(*[whole] * 4)
    assert books.counters(run) == expected(attempted=summed(kept, whole, ODD), applied=summed(kept, whole), preserved=kept)
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed", "completed"]
    run, kept = "torchtitan-tensor", summed(ODD, EVEN)
    assert books.counters(run) == expected(attempted=kept, applied=kept, preserved=kept)
    for run in ("torchtitan-data", "torchtitan-tensor"):
        assert books.ask(run, "exposure")["findings"] == {}
        rows = [row for row in books.ask(run, "updates")["items"] if row["outcome"] == "applied"]
        assert all(row["reported_loss"] == pytest.approx(row["token_mean"]) for row in rows)


@pytest.mark.skipif(TORCH < (2, 14), reason="the pipeline schedules of this torch are older than those that torchtitan calls")
def test_two_stages_of_a_pipeline(launch: Callable[..., list[str]], books: Books) -> None:
    launch("job_torchtitan.py", "pipeline", ranks=2)
    run, kept = "torchtitan-pipeline", summed(ODD, EVEN)
    assert books.counters(run) == expected(attempted=kept, applied=kept, preserved=kept)
    # The last stage knows the loss of an update, and nobody that of a microbatch.
    rows = books.ask(run, "updates")["items"]
    assert [(row["token_mean"], 2.0 < row["reported_loss"] < 3.0) for row in rows] == [(None, True)] * 2
    assert books.ask(run, "exposure")["findings"] == {}


def test_a_save_in_the_background_is_accepted_when_it_is_done(tmp_path: Path, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    run = "torchtitan-async"
    gate, finish, seen = threading.Event(), FileSystemWriter.finish, []
    monkeypatch.setattr(FileSystemWriter, "finish", lambda *args, **kwargs: (gate.wait(), finish(*args, **kwargs)))
    # The data ends in the third update, behind the first of its two microbatches.
    saves = CheckpointManager.Config(enable=True, interval=2, async_mode="async")
    trainer = tiny_titan.tiny(dump_folder=str(tmp_path), rows=10, checkpoint=saves).build()
    recording, train_step = record(trainer, run), trainer.train_step

    def asked(batches: Any) -> None:
        if trainer.step == 3:
            assert recording.run is not None
            recording.run.flush()
            seen.extend(one["state"] for one in books.ask(run, "checkpoints")["checkpoints"])
            threading.Timer(0.3, gate.set).start()
        train_step(batches)

    trainer.train_step = asked
    trainer.train()
    trainer.close()
    assert seen == ["started"]
    assert [(one["checkpoint"], one["state"]) for one in books.ask(run, "checkpoints")["checkpoints"]] == [("step-2", "accepted")]
    rest = {"valid_targets": 8 + 5, "consumed_tokens": 2 * 8, "input_slots": 2 * 8, "samples": 2}
    kept = summed(ODD, EVEN)
    assert books.counters(run) == expected(attempted=summed(kept, rest), applied=kept, preserved=kept)
    assert books.ask(run, "exposure")["balance"]["valid_targets"]["dropped"] == 8 + 5


@pytest.mark.parametrize("mode", ["disabled", "async", "async_with_pinned_mem"])
def test_a_save_that_fails_is_rejected(mode: str, tmp_path: Path, books: Books) -> None:
    run = f"torchtitan-{mode}-fails"
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "step-2").write_text("in the way")
    saves = CheckpointManager.Config(enable=True, interval=1, async_mode=mode)
    trainer = tiny_titan.tiny(dump_folder=str(tmp_path), checkpoint=saves).build()
    # Of its own it stages to memory that an accelerator can read.
    trainer.checkpointer.stager = DefaultStager(StagingOptions(False, False, True, False))
    record(trainer, run)
    with pytest.raises(CheckpointException, match="File exists"):
        trainer.train()
    trainer.close()
    assert [(one["checkpoint"], one["state"]) for one in books.ask(run, "checkpoints")["checkpoints"]] == [
        ("step-1", "accepted"), ("step-2", "rejected"),
    ]  # fmt: skip
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed"]


def test_a_loss_that_is_not_finite_ends_the_attempt_behind_the_step(tmp_path: Path, books: Books) -> None:
    run = "torchtitan-nonfinite"
    trainer = tiny_titan.tiny(dump_folder=str(tmp_path)).build()
    record(trainer, run)
    train_step = trainer.train_step

    def poisoned(batches: Any) -> None:
        if trainer.step == 2:
            with torch.no_grad():
                next(trainer.model_parts[0].parameters()).fill_(float("inf"))
        train_step(batches)

    trainer.train_step = poisoned
    with pytest.raises(RuntimeError, match="Loss is not finite"):
        trainer.train()
    trainer.close()
    assert books.outcomes(run) == [(1, "applied", "pending"), (2, "applied", "pending")]
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed"]
    assert books.ask(run, "exposure")["findings"] == {"nonfinite_loss": 1}


def test_a_checkpoint_without_a_cursor_is_named_by_its_folder(tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    run = "torchtitan-older"
    trained(tmp_path, run, steps=2, checkpoint=CheckpointManager.Config())
    unrecorded = tiny_titan.tiny(dump_folder=str(tmp_path), steps=2).build()
    unrecorded.train()
    unrecorded.close()
    with caplog.at_level(logging.WARNING, "ledger_client"), pytest.raises(RuntimeError, match="the node is gone"):
        trained(tmp_path, run, steps=6, crashing=5)
    assert "step-2 holds no cursor" in caplog.text
    caplog.clear()
    trained(tmp_path, run, steps=6)
    assert "holds no cursor" not in caplog.text
    assert [(one["after"], one["through"]) for one in books.ask(run, "exposure")["trajectory"]] == [(0, 2), (2, 4), (4, 6)]


def test_another_run_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, "torchtitan-origin", steps=2)
    with pytest.raises(ValueError, match="give the same mapping as forked_from"):
        trained(tmp_path, "torchtitan-fork")


def test_the_last_save_may_hold_the_model_alone_and_is_nothing_to_resume_from(tmp_path: Path, books: Books) -> None:
    run = "torchtitan-model"
    trained(tmp_path / "first", run, steps=1, checkpoint=CheckpointManager.Config(enable=True))
    assert books.ask(run, "exposure")["accepted_checkpoint"]["checkpoint"] == "step-1"
    model = CheckpointManager.Config(enable=True, initial_load_path=str(tmp_path / "first" / "checkpoint" / "step-1"))
    trained(tmp_path / "second", f"{run}-tuned", steps=1, checkpoint=model)
    assert [one["resumed_from"] for one in books.ask(f"{run}-tuned")["attempts"]] == [None]


def test_an_evaluation_is_counted_beside_the_training(tmp_path: Path, books: Books) -> None:
    run = "torchtitan-evaluation"
    validator = Validator.Config(enable=True, freq=2, steps=2, dataloader=tiny_titan.Loader.Config())
    trained(tmp_path, run, steps=2, checkpoint=CheckpointManager.Config(), validator=validator)
    kept = summed(ODD, EVEN)
    assert books.counters(run) == expected(attempted=kept, applied=kept, preserved=dict.fromkeys(kept, 0))
    found = books.ask(run, "exposure")["evaluation"]
    # Behind the first and the second update, each time two batches of two rows.
    assert {name: found[name] for name in ODD} == {name: 2 * ODD[name] for name in ODD}


def test_what_the_user_counts_and_what_cannot_be_counted(tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    def unknown(inputs: Any, labels: Any) -> Any:
        raise KeyError("lengths")

    def own(inputs: Any, labels: Any) -> Any:
        return {"input_slots": 16, "consumed_tokens": 15, "valid_targets": 14, "samples": 2}

    off = CheckpointManager.Config()
    with caplog.at_level(logging.WARNING, "ledger_client"):
        trained(tmp_path, "torchtitan-unknown", steps=2, counts=unknown, checkpoint=off)
    assert caplog.text.count("recorded as unknown: KeyError('lengths')") == 1
    assert [row["valid_targets"] for row in books.ask("torchtitan-unknown", "updates")["items"]] == [None, None]
    trained(tmp_path, "torchtitan-own", steps=1, counts=own, checkpoint=off)
    one = {"input_slots": 32, "consumed_tokens": 30, "valid_targets": 28, "samples": 4}
    assert books.counters("torchtitan-own") == expected(attempted=one, applied=one, preserved=dict.fromkeys(one, 0))


def test_a_counter_of_the_trainer_that_drifts_is_found(tmp_path: Path, books: Books) -> None:
    run = "torchtitan-drift"
    trainer = tiny_titan.tiny(dump_folder=str(tmp_path), steps=2, checkpoint=CheckpointManager.Config()).build()
    record(trainer, run)
    trainer.ntokens_seen = 5
    trainer.train()
    trainer.close()
    drift = [(one["kind"], one["quantity"], one["expected"], one["found"]) for one in books.ask(run, "findings")["findings"]]
    assert drift == [("counter_drift", "consumed_tokens", 2 * 32, 2 * 32 + 5)]


def test_the_layout_is_that_of_the_mesh_of_the_loader() -> None:
    torch.distributed.init_process_group("fake", rank=0, world_size=32)
    dims = ParallelDims(dp_replicate=2, dp_shard=2, cp=2, tp=2, pp=2, ep=1, world_size=32)
    dims.build_mesh()
    mesh = dims.get_mesh(["pp", "batch", "cp", "tp"])
    same = mesh_layout(mesh, cp_counts="whole")
    declared = trainer_layout(SimpleNamespace(parallel_dims=dims))
    assert declared.declared() == {"dp": 4, "tp": 2, "pp": 2, "cp": 2, "order": "tp-cp-dp-pp", "cp_counts": "whole"}
    # The first axis in the order varies fastest: of 32 ranks each two of a pair differ in tensor, each four in context parallelism.
    assert list(same.dp_ranks) == [rank // 4 % 4 for rank in range(32)]


@pytest.mark.parametrize(("dims", "loss"), [({}, 6.0), ({"cp": 2}, None), ({"pp": 2}, None)])
def test_a_loss_is_known_where_a_rank_has_all_of_it(dims: dict[str, int], loss: float | None) -> None:
    sizes = {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1, "ep": 1} | dims
    world = sizes["cp"] * sizes["pp"]
    assert sum_of(torch.tensor(0.75), torch.tensor(8), ParallelDims(**sizes, world_size=world)) == loss
