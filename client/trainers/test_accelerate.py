"""Hugging Face Accelerate: a tiny model through `accumulate`, with a withheld update, a crash, a resume and a rollback in place."""

import logging
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from conftest import Books, expected, summed

from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.integrations.accelerate import CURSOR_FILE, AccelerateLedger

LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2, 7, 1)
# Batches of two rows, groups of two batches; the last group of an epoch has one. A row has one target less than tokens.
FIRST = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
SECOND = {"valid_targets": 3 + 3 + 3 + 1, "consumed_tokens": 4 + 4 + 4 + 2, "input_slots": 4 * 8, "samples": 4}
REMAINDER = {"valid_targets": 6 + 0, "consumed_tokens": 7 + 1, "input_slots": 2 * 8, "samples": 2}


class Loop:
    """A training loop on an accelerator, one epoch a call."""

    def __init__(self, run: str, *, fused: bool = True, project: Path | None = None) -> None:
        config = ProjectConfiguration(project_dir=str(project), automatic_checkpoint_naming=True) if project else None
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=config)
        # Accelerate has a scaler for half precision on accelerators alone; a real one for the processor withholds steps the same way.
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        model = tiny_llama.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        loader = torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS), batch_size=2)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.ledger = AccelerateLedger(self.accelerator, self.optimizer, run)

    def epoch(self, *, poisoned: int | None = None, withheld: int | None = None) -> None:
        """Three updates; one may have an infinite gradient, and of one the loop itself withholds the step."""
        for batch in self.loader:
            number = self.ledger.number + 1
            with self.accelerator.accumulate(self.model):
                loss = self.model(**batch).loss
                self.ledger.microbatch(
                    input_slots=input_slots(batch["input_ids"]), consumed_tokens=consumed_tokens(batch["attention_mask"]),
                    valid_targets=valid_targets(batch["labels"]), samples=len(batch["input_ids"]),
                )  # fmt: skip
                self.accelerator.backward(loss * float("inf") if number == poisoned else loss)
                if number == withheld and self.accelerator.sync_gradients:
                    self.ledger.skipped("spike_guard")
                else:
                    self.optimizer.step()
                self.optimizer.zero_grad()


@pytest.mark.parametrize("fused", [True, False])
def test_accumulation_padding_overflow_and_resume(tmp_path: Path, books: Books, fused: bool) -> None:
    run = f"accelerate-{'fused' if fused else 'plain'}"
    loop = Loop(run, fused=fused)
    with pytest.raises(RuntimeError, match="the node is gone"), loop.ledger:
        loop.epoch(poisoned=2)
        loop.accelerator.save_state(str(tmp_path / "step-3"))
        loop.epoch()
        raise RuntimeError("the node is gone")
    again = Loop(run, fused=fused)
    again.accelerator.load_state(str(tmp_path / "step-3"))
    with again.ledger:
        again.epoch()
        again.accelerator.save_state(str(tmp_path / "step-6"))
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "preserved"),
        (4, "applied", "lost"), (5, "applied", "lost"), (6, "applied", "lost"),
        (4, "applied", "preserved"), (5, "applied", "preserved"), (6, "applied", "preserved"),
    ]  # fmt: skip
    epoch = summed(FIRST, SECOND, REMAINDER)
    kept = summed(FIRST, REMAINDER, epoch)
    assert books.counters(run) == expected(attempted=summed(*[epoch] * 3), applied=summed(kept, epoch), preserved=kept)
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": SECOND["valid_targets"]}
    assert report["accepted_checkpoint"]["checkpoint"] == "step-6" and report["findings"] == {}
    assert [(one["ended"], one["resumed_from"] and one["resumed_from"]["update"]) for one in books.ask(run)["attempts"]] == [
        ("crashed", None), ("completed", 3),
    ]  # fmt: skip


def test_a_state_loaded_in_the_middle_is_a_rollback(tmp_path: Path, books: Books) -> None:
    run = "accelerate-rollback"
    loop = Loop(run, project=tmp_path)
    with loop.ledger:
        loop.epoch()
        loop.ledger.positions = {"train": {"epoch": 0, "position": 10}}
        loop.accelerator.save_state()
        loop.epoch(withheld=5)
        loop.accelerator.load_state(str(tmp_path / "checkpoints" / "checkpoint_0"))
        loop.epoch()
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "applied", "preserved"), (3, "applied", "preserved"),
        (4, "applied", "lost"), (5, "skipped", "lost"), (6, "applied", "lost"),
        (4, "applied", "pending"), (5, "applied", "pending"), (6, "applied", "pending"),
    ]  # fmt: skip
    assert [(one["checkpoint"], one["positions"]) for one in books.ask(run, "checkpoints")["checkpoints"]] == [
        ("checkpoint_0", {"train": {"epoch": 0, "position": 10}}),
    ]  # fmt: skip
    assert books.ask(run, "exposure")["balance"]["valid_targets"]["skipped_by_reason"] == {"spike_guard": SECOND["valid_targets"]}


def test_a_state_without_a_cursor_is_named_by_its_folder(tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    run = "accelerate-older"
    loop = Loop(run)
    with loop.ledger:
        loop.epoch()
        loop.accelerator.save_state(str(tmp_path / "step-3"))
    (tmp_path / "step-3" / CURSOR_FILE).unlink()
    again = Loop(run)
    with caplog.at_level(logging.WARNING, "ledger_client"):
        again.accelerator.load_state(str(tmp_path / "step-3"))
    assert "step-3 holds no cursor" in caplog.text
    again.ledger.number = 3
    with again.ledger:
        again.epoch()
    assert [(one["after"], one["through"]) for one in books.ask(run, "exposure")["trajectory"]] == [(0, 3), (3, 6)]


def test_a_save_that_fails_is_rejected_and_the_accelerator_is_left_as_it_was(
    tmp_path: Path, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = "accelerate-faults"
    loop = Loop(run)

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("accelerate.accelerator.save_accelerator_state", full)
    with loop.ledger:
        loop.epoch()
        with pytest.raises(OSError, match="the disk is full"):
            loop.accelerator.save_state(str(tmp_path / "step-3"))
    assert [one["state"] for one in books.ask(run, "checkpoints")["checkpoints"]] == ["rejected"]
    assert not {"accumulate", "save_state", "load_state"} & set(vars(loop.accelerator))
    assert "update" not in vars(loop.accelerator.scaler)
