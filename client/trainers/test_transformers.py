"""The Hugging Face Trainer: a tiny Llama trained for two epochs with a crash, a resume and a withheld update, against a real ledger."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from conftest import Books, expected, summed
from transformers import Trainer, TrainerCallback, TrainingArguments

from ledger_client.integrations.transformers import record

LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2, 7, 1)
# Batches of two rows, groups of two batches; the last group of an epoch has one. A row has one target less than tokens.
FIRST = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
SECOND = {"valid_targets": 3 + 3 + 3 + 1, "consumed_tokens": 4 + 4 + 4 + 2, "input_slots": 4 * 8, "samples": 4}
REMAINDER = {"valid_targets": 6 + 0, "consumed_tokens": 7 + 1, "input_slots": 2 * 8, "samples": 2}


class Fate(TrainerCallback):
    """Makes a gradient infinite before one step, and ends the process's training at the beginning of another."""

    def __init__(self, poisoned: int | None, crashing: int | None) -> None:
        self.poisoned = poisoned
        self.crashing = crashing

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step + 1 == self.poisoned:
            next(model.parameters()).grad[0, 0] = float("inf")

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.crashing:
            raise RuntimeError("the node is gone")


def trained(
    folder: Path,
    run: str,
    *,
    poisoned: int | None = None,
    crashing: int | None = None,
    resume: Path | None = None,
    forked_from: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """One launch of the same training."""
    given: dict[str, Any] = {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 2, "train_sampling_strategy": "sequential",
        "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "logging_steps": 1, "max_grad_norm": 0.0, "optim": "adamw_torch_fused",
        "include_num_input_tokens_seen": "non_padding", "use_cpu": True, "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    trainer = Trainer(
        tiny_llama.model(), TrainingArguments(str(folder), **given | more), train_dataset=tiny_llama.rows(*LENGTHS),
        eval_dataset=tiny_llama.rows(8, 5, 6), callbacks=[Fate(poisoned, crashing)],
    )  # fmt: skip
    # Accelerate has a scaler for half precision on accelerators alone; a real one for the processor withholds steps the same way.
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    record(trainer, run, forked_from=forked_from)
    if crashing is None:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    else:
        with pytest.raises(RuntimeError, match="the node is gone"):
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))


def test_accumulation_padding_overflow_and_resume(tmp_path: Path, books: Books) -> None:
    run = "transformers"
    trained(tmp_path, run, poisoned=2, crashing=5)
    trained(tmp_path, run, resume=tmp_path / "checkpoint-3")
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "preserved"), (4, "applied", "lost"), (5, "open", "lost"),
        (4, "applied", "preserved"), (5, "applied", "preserved"), (6, "applied", "preserved"),
    ]  # fmt: skip
    crashed = {"valid_targets": 3 + 3, "consumed_tokens": 4 + 4, "input_slots": 2 * 8, "samples": 2}
    kept = summed(FIRST, REMAINDER, FIRST, SECOND, REMAINDER)
    assert books.counters(run) == expected(
        attempted=summed(kept, SECOND, FIRST, crashed), applied=summed(kept, FIRST), preserved=kept
    )
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": SECOND["valid_targets"]}
    assert report["evaluation"] == {"valid_targets": 2 * 16, "consumed_tokens": 2 * 19, "input_slots": 2 * 24, "samples": 2 * 3} | {
        name: report["evaluation"][name] for name in report["evaluation"] if name not in FIRST
    }
    assert report["accepted_checkpoint"]["checkpoint"] == "checkpoint-6" and report["findings"] == {}
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed", "completed"]
    means = [row["token_mean"] for row in books.ask(run, "updates")["items"]]
    assert all(2.0 < mean < 3.0 for mean in means if mean is not None) and len(means) == 8


def test_the_data_position_is_that_of_the_sampler(tmp_path: Path, books: Books) -> None:
    run = "transformers-position"
    trained(tmp_path, run, save_steps=2, crashing=4)
    trained(tmp_path, run, resume=tmp_path / "checkpoint-2")
    first, second = books.ask(run, "coverage")["streams"]
    assert (first["epoch"], first["effective_unique"], first["times_seen"]) == (0, 10, {"1": 10})
    assert (second["epoch"], second["effective_unique"], second["gaps"]) == (1, 10, [])
    positions = {one["checkpoint"]: one["positions"]["train"] for one in books.ask(run, "checkpoints")["checkpoints"]}
    assert positions == {
        "checkpoint-2": {"epoch": 0, "position": 8},
        "checkpoint-4": {"epoch": 1, "position": 4},
        "checkpoint-6": {"epoch": 2, "position": 0},
    }
    assert books.ask(run, "exposure")["findings"] == {}


def changed_state(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites what the trainer has saved about itself."""
    file = checkpoint / "trainer_state.json"
    state = json.loads(file.read_text())
    change(state)
    file.write_text(json.dumps(state))


def test_a_checkpoint_without_a_cursor_is_named_by_its_folder(tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    run = "transformers-older"
    trained(tmp_path, run, crashing=5)
    changed_state(tmp_path / "checkpoint-3", lambda state: state["stateful_callbacks"].pop("LedgerCallback"))
    with caplog.at_level(logging.WARNING, "ledger_client"):
        trained(tmp_path, run, resume=tmp_path / "checkpoint-3")
    assert "checkpoint-3 holds no cursor" in caplog.text
    assert [one["after"] for one in books.ask(run, "exposure")["trajectory"]] == [0, 3]
    saved = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())["stateful_callbacks"]["LedgerCallback"]
    assert saved["attributes"]["cursor"]["checkpoint"] == "checkpoint-6"


def test_a_state_that_was_saved_later_than_its_cursor_is_a_save_of_its_own(
    tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    run = "transformers-later"
    trained(tmp_path, run, crashing=5)
    later = (tmp_path / "checkpoint-3").rename(tmp_path / "copied")
    changed_state(later, lambda state: state.update(global_step=4))
    with caplog.at_level(logging.WARNING, "ledger_client"):
        trained(tmp_path, run, resume=later)
    assert "copied holds the cursor of update 3, and the trainer stands at 4" in caplog.text
    assert [one["after"] for one in books.ask(run, "exposure")["trajectory"]] == [0, 4]
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert ("copied", 4, "resume") in [(one["checkpoint"], one["update"], one["accepted_by"]) for one in saves]


def test_another_run_is_refused_and_a_fork_is_told_how(tmp_path: Path, books: Books) -> None:
    trained(tmp_path, "transformers-origin", crashing=5)
    with pytest.raises(ValueError, match="give the same mapping as forked_from"):
        trained(tmp_path, "transformers-fork", resume=tmp_path / "checkpoint-3")
    cursor = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())["stateful_callbacks"]["LedgerCallback"]
    fork = cursor["attributes"]["cursor"]
    trained(tmp_path, "transformers-fork", resume=tmp_path / "checkpoint-3", forked_from=fork, max_steps=4)
    assert books.outcomes("transformers-fork") == [(4, "applied", "preserved")]
    led = books.ask("transformers-fork", "checkpoints/checkpoint-4/exposure")
    assert [stretch["run"] for stretch in led["path"]] == ["transformers-origin", "transformers-fork"]


def test_callbacks_that_are_made_anew_still_record(tmp_path: Path, books: Books) -> None:
    run = "transformers-restored"
    trained(tmp_path, run, crashing=5)
    trained(tmp_path, run, resume=tmp_path / "checkpoint-3", restore_callback_states_from_checkpoint=True)
    assert [number for number, outcome, fate in books.outcomes(run) if fate == "preserved"] == [1, 2, 3, 4, 5, 6]


def test_a_restart_with_a_smaller_batch_is_another_attempt(tmp_path: Path, books: Books) -> None:
    run = "transformers-batch"

    class TooLarge(torch.nn.Module):
        """Runs out of memory for batches of more than two rows."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_llama.model()
            self.config = self.inner.config

        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            if len(input_ids) > 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate")
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, auto_find_batch_size=True, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
        save_strategy="no", train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = Trainer(TooLarge(), arguments, train_dataset=tiny_llama.rows(*LENGTHS))
    record(trainer, run)
    trainer.train()
    attempts = books.ask(run)["attempts"]
    assert [one["ended"] for one in attempts] == ["crashed", *["crashed"] * (len(attempts) - 2), "completed"] and len(attempts) > 1
    newest = [row for row in books.ask(run, "updates")["items"] if row["attempt"] == attempts[-1]["attempt"]]
    assert [(row["outcome"], row["samples"]) for row in newest] == [("applied", 2), ("applied", 2)]
    assert books.ask(run, "exposure")["balance"]["samples"]["lost_to_restart"] >= 4


class Miscounting(TrainerCallback):
    """Leads the trainer's own counter astray."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.num_input_tokens_seen += 5


def test_left_out_rows_are_never_drawn_and_a_counter_that_drifts_is_found(tmp_path: Path, books: Books) -> None:
    run = "transformers-drift"
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, dataloader_drop_last=True, num_train_epochs=2, save_strategy="no", use_cpu=True,
        report_to=[], disable_tqdm=True, include_num_input_tokens_seen="non_padding", train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = Trainer(tiny_llama.model(), arguments, train_dataset=tiny_llama.rows(*LENGTHS), callbacks=[Miscounting()])
    record(trainer, run)
    trainer.train()
    assert [(one["epoch"], one["effective_unique"]) for one in books.ask(run, "coverage")["streams"]] == [(0, 8), (1, 8)]
    drift = [one for one in books.ask(run, "findings")["findings"] if one["kind"] == "counter_drift"]
    counted = 2 * (FIRST["consumed_tokens"] + SECOND["consumed_tokens"])
    assert (drift[-1]["expected"], drift[-1]["found"]) in [(counted, counted + 20), (counted + 20, counted)]


class Stream(torch.utils.data.IterableDataset):
    """Rows without an end, as they come."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from tiny_llama.rows(*LENGTHS)


def test_data_without_positions_has_counts_and_no_ranges(tmp_path: Path, books: Books) -> None:
    run = "transformers-stream"
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=2, save_steps=2, use_cpu=True, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(tiny_llama.model(), arguments, train_dataset=Stream())
    record(trainer, run)
    trainer.train()
    both = summed(FIRST, SECOND)
    assert books.counters(run) == expected(attempted=both, applied=both, preserved=both)
    assert books.ask(run, "coverage")["streams"] == [] and books.ask(run, "exposure")["findings"] == {}


def test_what_fails_and_what_cannot_be_counted(tmp_path: Path, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    run = "transformers-faults"
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=2, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
        max_grad_norm=0.0,
    )  # fmt: skip

    def unknown(inputs: Any) -> Any:
        raise KeyError("lengths")

    trainer = Trainer(tiny_llama.model(), arguments, train_dataset=tiny_llama.rows(*LENGTHS))
    recording = record(trainer, run, counts=unknown)
    monkeypatch.setattr(trainer, "_save_rng_state", lambda folder: (_ for _ in ()).throw(OSError("the disk is full")))

    class Withholding(TrainerCallback):
        """A guard that the trainer does not know of."""

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                recording.skipped("spike_guard")

    trainer.add_callback(Withholding())
    with pytest.raises(OSError, match="the disk is full"):
        trainer.train()
    rows = books.ask(run, "updates")["items"]
    assert [(row["outcome"], row["reason"], row["valid_targets"]) for row in rows] == [
        ("applied", None, None), ("skipped", "spike_guard", None),
    ]  # fmt: skip
    assert [one["state"] for one in books.ask(run, "checkpoints")["checkpoints"]] == ["rejected"]
