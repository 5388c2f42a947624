"""DeepSpeed: a tiny Llama on an engine, with a withheld update, a crash in the middle of an accumulation, a resume and a rollback."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from conftest import Books, expected, summed

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # looks for an accelerator when it is imported

from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.integrations.deepspeed import DeepSpeedLedger

LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2)
# Batches of two rows, groups of two batches. A row has one target less than tokens.
FIRST = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
SECOND = {"valid_targets": 3 + 3 + 3 + 1, "consumed_tokens": 4 + 4 + 4 + 2, "input_slots": 4 * 8, "samples": 4}
HALF = {"valid_targets": 7 + 4, "consumed_tokens": 8 + 5, "input_slots": 2 * 8, "samples": 2}

CHECKING = {"bf16": {"enabled": True, "check_grad_overflow": True}, "zero_optimization": {"stage": 1}}
SCALING = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
"""Without ZeRO: then a scaler of torch withholds the step, and the engine does not know."""


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A process group of this process alone."""
    # DeepSpeed would compile a collective of its own for the processor.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed()
    yield
    deepspeed.comm.destroy_process_group()


@pytest.fixture(autouse=True)
def launched(surroundings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What DeepSpeed asks of its launcher."""
    monkeypatch.setenv("LOCAL_RANK", "0")


class Loop:
    """A training loop on an engine, over the same rows again and again."""

    def __init__(self, run: str, config: dict[str, Any]) -> None:
        model = tiny_llama.model()
        given = {
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
        }  # fmt: skip
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=given | config)
        self.ledger = DeepSpeedLedger(self.engine, run)
        self.batches = list(torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS), batch_size=2))

    def microbatch(self, place: int, factor: float = 1.0) -> None:
        """The forward and the backward pass of a batch, and its counts."""
        batch = self.batches[place % len(self.batches)]
        self.ledger.microbatch(
            input_slots=input_slots(batch["input_ids"]), consumed_tokens=consumed_tokens(batch["attention_mask"]),
            valid_targets=valid_targets(batch["labels"]), samples=len(batch["input_ids"]),
        )  # fmt: skip
        self.engine.backward(self.engine(**batch).loss * factor)

    def update(self, number: int, factor: float = 1.0) -> None:
        """A whole update."""
        accumulated = self.engine.gradient_accumulation_steps()
        for place in range(accumulated):
            self.microbatch((number - 1) * accumulated + place, factor)
            self.engine.step()

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten().clone() for parameter in self.engine.module.parameters()])


@pytest.mark.parametrize(("name", "config", "missed"), [("zero", CHECKING, 0), ("scaler", SCALING, 1)])
def test_accumulation_padding_overflow_and_resume(tmp_path: Path, books: Books, name: str, config: dict[str, Any], missed: int) -> None:
    run = f"deepspeed-{name}"
    loop = Loop(run, config)
    with pytest.raises(RuntimeError, match="the node is gone"), loop.ledger:
        loop.update(1)
        before = loop.weights()
        loop.update(2, float("inf"))
        assert torch.equal(loop.weights(), before) and loop.engine.skipped_steps == 1 - missed
        loop.update(3)
        loop.engine.save_checkpoint(str(tmp_path), client_state={"epoch": 0})
        loop.update(4)
        loop.microbatch(8)
        raise RuntimeError("the node is gone")
    again = Loop(run, config)
    _, state = again.engine.load_checkpoint(str(tmp_path))
    assert state["epoch"] == 0
    with again.ledger:
        again.update(4)
        again.update(5)
        again.engine.save_checkpoint(str(tmp_path))
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "preserved"), (4, "applied", "lost"), (5, "open", "lost"),
        (4, "applied", "preserved"), (5, "applied", "preserved"),
    ]  # fmt: skip
    kept = summed(FIRST, FIRST, SECOND, FIRST)
    assert books.counters(run) == expected(attempted=summed(kept, SECOND, SECOND, HALF), applied=summed(kept, SECOND), preserved=kept)
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": SECOND["valid_targets"]}
    assert report["accepted_checkpoint"]["checkpoint"] == "global_step5"
    # What the engine's own counter misses is found, and nothing else.
    assert set(report["findings"]) == ({"skip_counter_mismatch"} if missed else set())
    attempts = books.ask(run)["attempts"]
    assert [(one["ended"], (one["resumed_from"] or {}).get("update")) for one in attempts] == [("crashed", None), ("completed", 3)]
    assert attempts[0]["conventions"]["schedule_clock"] == ("attempted_updates" if missed else "applied_updates")


def test_a_state_loaded_in_the_middle_is_a_rollback(tmp_path: Path, books: Books) -> None:
    run = "deepspeed-rollback"
    loop = Loop(run, {"gradient_accumulation_steps": 1})
    with loop.ledger:
        loop.update(1)
        loop.ledger.positions = {"train": {"epoch": 0, "position": 2}}
        loop.engine.save_checkpoint(str(tmp_path), "one")
        loop.microbatch(1)
        loop.engine.zero_grad()
        loop.ledger.skipped("spike_guard")
        loop.update(2)
        loop.microbatch(2)
        loop.engine.load_checkpoint(str(tmp_path), "one", load_module_only=True)
        loop.engine.load_checkpoint(str(tmp_path), "one")
        loop.update(2)
    assert [(row["update"], row["retry"], row["outcome"], row["fate"]) for row in books.ask(run, "updates")["items"]] == [
        (1, 0, "applied", "preserved"), (2, 0, "skipped", "lost"), (2, 1, "applied", "lost"), (3, 0, "open", "lost"),
        (2, 0, "applied", "pending"),
    ]  # fmt: skip
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert [(one["checkpoint"], one["positions"]) for one in saves] == [("one", {"train": {"epoch": 0, "position": 2}})]
    assert [one["resumed_from"] and one["resumed_from"]["checkpoint"] for one in books.ask(run)["attempts"]] == [None, "one"]


def test_a_state_without_a_cursor_is_named_by_its_tag(tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    run = "deepspeed-older"
    loop = Loop(run, {})
    with loop.ledger:
        loop.update(1)
        loop.update(2)
    loop.engine.save_checkpoint(str(tmp_path), "two")
    with pytest.raises(ValueError, match="the engine stands at step 2 already"):
        DeepSpeedLedger(loop.engine, run)
    again = Loop(run, {})
    # DeepSpeed's own logger does not hand on.
    with caplog.at_level(logging.WARNING, "ledger_client"):
        again.engine.load_checkpoint(str(tmp_path))
    assert "checkpoint two holds no cursor" in caplog.text and "after update 2" in caplog.text
    with again.ledger:
        again.update(3)
    assert [(one["after"], one["through"]) for one in books.ask(run, "exposure")["trajectory"]] == [(0, 2), (2, 3)]


def test_a_save_that_fails_is_rejected_and_the_engine_is_left_as_it_was(tmp_path: Path, books: Books) -> None:
    run = "deepspeed-faults"
    loop = Loop(run, SCALING)
    (tmp_path / "full").write_text("no folder can be made here")
    with loop.ledger:
        loop.update(1)
        with pytest.raises(FileExistsError):
            loop.engine.save_checkpoint(str(tmp_path / "full"))
        loop.microbatch(2)
    assert [one["state"] for one in books.ask(run, "checkpoints")["checkpoints"]] == ["rejected"]
    assert not {"step", "save_checkpoint", "load_checkpoint"} & set(vars(loop.engine))
    assert "update" not in vars(loop.engine.torch_autocast_z0_gradscaler)


def test_a_decoupled_save_is_accepted_when_it_is_committed(launch: Callable[..., list[str]], books: Books) -> None:
    (printed,) = launch("job_deepspeed.py", "decoupled")
    assert "checkpoint process is not running" in printed
    run = "deepspeed-decoupled"
    saves = [(one["checkpoint"], one["update"], one["state"]) for one in books.ask(run, "checkpoints")["checkpoints"]]
    assert saves == [("whole", 1, "accepted"), ("half", 2, "rejected")]
    assert books.outcomes(run) == [(1, "applied", "preserved"), (2, "applied", "pending"), (3, "open", "pending")]


def test_ranks_count_their_own_rows_and_stages_the_same_ones_once(launch: Callable[..., list[str]], books: Books) -> None:
    launch("job_deepspeed.py", "ranks", ranks=2)
    # An update is two rows of 8 and 5 tokens on one rank and two of 6 and 3 on the other.
    both = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
    four = summed(both, both, both, both)
    assert books.counters("deepspeed-data") == expected(attempted=four, applied=four, preserved=four)
    report = books.ask("deepspeed-data", "exposure")
    assert [(one["after"], one["through"]) for one in report["trajectory"]] == [(0, 2), (2, 4)] and report["findings"] == {}

    # The stages of a pipeline draw the same two rows of 8 and 5 tokens.
    twice = summed(HALF, HALF)
    assert books.counters("deepspeed-pipeline") == expected(attempted=twice, applied=twice, preserved=twice)
    (attempt,) = books.ask("deepspeed-pipeline")["attempts"]
    assert attempt["layout"]["shards"] == [0, 0] and books.ask("deepspeed-pipeline", "exposure")["findings"] == {}

    # Halves of the same sequence, with 3 targets and with 4, in each of two microbatches.
    (update,) = books.ask("deepspeed-sequence", "updates")["items"]
    assert {name: update[name] for name in HALF} == {"valid_targets": 14, "consumed_tokens": 16, "input_slots": 16, "samples": 2}
    (attempt,) = books.ask("deepspeed-sequence")["attempts"]
    assert (attempt["layout"]["shards"], attempt["layout"]["dp_ranks"]) == ([0, 1], [0, 0])
