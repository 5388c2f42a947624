"""The Lightning Trainer: a tiny Llama trained for two epochs with a crash, a resume and a withheld update, against a real ledger."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from conftest import Books, expected, summed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins import AsyncCheckpointIO, MixedPrecision, TorchCheckpointIO
from lightning.pytorch.tuner import Tuner
from torchdata.stateful_dataloader import StatefulDataLoader

from ledger_client.integrations.lightning import LedgerCallback

LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2, 7, 1)
# Batches of two rows, groups of two batches; the last group of an epoch has one. A row has one target less than tokens.
FIRST = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
SECOND = {"valid_targets": 3 + 3 + 3 + 1, "consumed_tokens": 4 + 4 + 4 + 2, "input_slots": 4 * 8, "samples": 4}
REMAINDER = {"valid_targets": 6 + 0, "consumed_tokens": 7 + 1, "input_slots": 2 * 8, "samples": 2}
EPOCH = summed(FIRST, SECOND, REMAINDER)
VALIDATION = {"valid_targets": 16, "consumed_tokens": 19, "input_slots": 24, "samples": 3}


class Tiny(LightningModule):
    """A Llama that may get an infinite loss in one update, and lose its node in the first microbatch of another."""

    def __init__(self, *, fused: bool = False, poisoned: int | None = None, crashing: int | None = None) -> None:
        super().__init__()
        self.model = tiny_llama.model()
        self.fused = fused
        self.poisoned = poisoned
        self.crashing = crashing

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss of a batch, whose labels are taken out of it."""
        number = self.trainer.global_step + 1
        if number == self.crashing:
            raise RuntimeError("the node is gone")
        loss = self.model(**{name: batch.pop(name) for name in list(batch)}).loss
        return loss * float("inf") if number == self.poisoned else loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing is learned."""
        self.model(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.01, fused=self.fused)


def loader(*lengths: int, kind: Any = torch.utils.data.DataLoader, batch_size: int = 2) -> Any:
    """Rows of that many tokens, in their order."""
    return kind(tiny_llama.rows(*lengths), batch_size=batch_size)


def trainer(folder: Path, *callbacks: Callback, every: int = 3, **more: Any) -> Trainer:
    """A trainer that saves after every so many steps."""
    saves = ModelCheckpoint(folder, "{step}", every_n_train_steps=every, save_top_k=-1)
    given: dict[str, Any] = {
        "accelerator": "cpu", "accumulate_grad_batches": 2, "max_epochs": 2, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "callbacks": [*callbacks, saves],
    }  # fmt: skip
    return Trainer(**given | more)


@pytest.mark.parametrize("fused", [True, False])
def test_accumulation_padding_overflow_and_resume(tmp_path: Path, books: Books, fused: bool) -> None:
    run = f"lightning-{'fused' if fused else 'plain'}"
    for module, path in ((Tiny(fused=fused, poisoned=2, crashing=5), None), (Tiny(fused=fused), tmp_path / "step=3.ckpt")):
        ledger = LedgerCallback(run)
        # Lightning has a scaler for half precision on accelerators alone; a real one for the processor withholds steps the same way.
        half = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
        launched = trainer(tmp_path, ledger, plugins=[half])
        try:
            with ledger:
                launched.fit(module, loader(*LENGTHS), loader(8, 5, 6), ckpt_path=path)
        except RuntimeError as error:
            assert str(error) == "the node is gone" and path is None
        assert "save_checkpoint" not in vars(launched) and "update" not in vars(half.scaler)
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "preserved"), (4, "applied", "lost"), (5, "open", "lost"),
        (4, "applied", "preserved"), (5, "applied", "preserved"), (6, "applied", "preserved"),
    ]  # fmt: skip
    crashed = {"valid_targets": 3 + 3, "consumed_tokens": 4 + 4, "input_slots": 2 * 8, "samples": 2}
    kept = summed(FIRST, REMAINDER, EPOCH)
    assert books.counters(run) == expected(
        attempted=summed(kept, SECOND, FIRST, crashed), applied=summed(kept, FIRST), preserved=kept
    )
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": SECOND["valid_targets"]}
    assert {name: report["evaluation"][name] for name in VALIDATION} == summed(VALIDATION, VALIDATION)
    assert report["accepted_checkpoint"]["checkpoint"] == "step=6.ckpt" and report["findings"] == {}
    assert [(one["ended"], one["resumed_from"] and one["resumed_from"]["update"]) for one in books.ask(run)["attempts"]] == [
        ("crashed", None), ("completed", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, StatefulDataLoader])
def test_within_an_epoch_only_a_loader_that_keeps_its_state_goes_on_where_it_stood(tmp_path: Path, books: Books, kind: Any) -> None:
    run = f"lightning-{kind.__name__}"
    for module, path in ((Tiny(crashing=3), None), (Tiny(), tmp_path / "step=2.ckpt")):
        with LedgerCallback(run) as ledger:
            launched = trainer(tmp_path, ledger, every=2)
            try:
                launched.fit(module, loader(*LENGTHS, kind=kind), ckpt_path=path)
            except RuntimeError:
                assert path is None
    first, second = books.ask(run, "coverage")["streams"]
    found = [one["kind"] for one in books.ask(run, "findings")["findings"]]
    # What is left of the epoch, by the trainer's count, is one batch: the last one, or the first one again.
    if kind is StatefulDataLoader:
        assert (first["repeated"], first["effective_unique"]) == ([], 10) and found == []
    else:
        assert (first["repeated"], first["effective_unique"]) == ([[0, 2]], 8) and found == ["sample_repeat", "resume_position_mismatch"]
    assert (second["times_seen"], second["gaps"]) == ({"1": 10}, [])
    positions = {one["update"]: one["positions"]["train"] for one in books.ask(run, "checkpoints")["checkpoints"] if one["positions"]}
    assert positions == {2: {"epoch": 0, "position": 8}, 4: {"epoch": 1, "position": 4}, 6: {"epoch": 2, "position": 0}}


def test_a_second_fit_goes_on_in_the_same_attempt_and_another_trainer_begins_anew(tmp_path: Path, books: Books) -> None:
    run = "lightning-twice"
    with LedgerCallback(run) as ledger:
        launched = trainer(tmp_path, ledger, every=9, max_epochs=1)
        launched.fit(Tiny(), loader(*LENGTHS))
        launched.fit_loop.max_epochs = 2
        launched.fit(launched.lightning_module, loader(*LENGTHS))
        launched.validate(launched.lightning_module, loader(8, 5, 6), verbose=False)
        launched.save_checkpoint(tmp_path / "after.ckpt")
        trainer(tmp_path, ledger, max_epochs=1).fit(Tiny(), loader(*LENGTHS))
        trainer(tmp_path, ledger, max_epochs=3).fit(Tiny(), loader(*LENGTHS), ckpt_path=tmp_path / "after.ckpt")
    assert books.counters(run) == expected(
        attempted=summed(*[EPOCH] * 4), applied=summed(*[EPOCH] * 4), preserved=summed(*[EPOCH] * 3)
    )
    attempts = books.ask(run)["attempts"]
    assert [one["resumed_from"] and one["resumed_from"]["checkpoint"] for one in attempts] == [None, None, "after.ckpt"]
    report = books.ask(run, "exposure")
    assert [(one["after"], one["through"]) for one in report["trajectory"]] == [(0, 6), (6, 9)]
    assert report["evaluation"]["consumed_tokens"] == VALIDATION["consumed_tokens"]
    # What an attempt has recorded may arrive behind the opening of the next one.
    assert set(report["findings"]) <= {"late_event"}


def test_what_goes_on_from_memory_in_a_new_recording_resumes_from_its_newest_save(
    tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    run = "lightning-memory"
    ledger = LedgerCallback(run)
    launched = trainer(tmp_path, ledger, max_epochs=1)
    for epochs in (1, 2, 3):
        launched.fit_loop.max_epochs = epochs
        with ledger, caplog.at_level(logging.WARNING, "ledger_client"):
            launched.fit(launched.lightning_module or Tiny(), loader(*LENGTHS))
        if epochs == 1:
            # From here on nothing is saved.
            launched.callbacks.pop()
    attempts = books.ask(run)["attempts"]
    assert [one["resumed_from"] and one["resumed_from"]["checkpoint"] for one in attempts] == [None, "step=3.ckpt", "memory-6"]
    assert "checkpoint memory-6 holds no cursor of the ledger" in caplog.text
    assert [(one["after"], one["through"]) for one in books.ask(run, "exposure")["trajectory"]] == [(0, 3), (3, 6), (6, 9)]


class FullDisk(TorchCheckpointIO):
    """Has no room for what is saved in the name of some update."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.room = threading.Event()

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Write when there is room."""
        assert self.room.wait(60)
        if Path(path).name == self.name:
            raise OSError("the disk is full")
        super().save_checkpoint(checkpoint, path, storage_options)


def test_a_save_that_fails_is_rejected(tmp_path: Path, books: Books) -> None:
    run = "lightning-full"
    disk = FullDisk("step=6.ckpt")
    disk.room.set()
    with pytest.raises(OSError, match="the disk is full"), LedgerCallback(run) as ledger:
        trainer(tmp_path, ledger, plugins=[disk]).fit(Tiny(), loader(*LENGTHS))
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert [(one["checkpoint"], one["state"]) for one in saves] == [("step=3.ckpt", "accepted"), ("step=6.ckpt", "rejected")]
    assert books.counters(run) == expected(attempted=summed(EPOCH, EPOCH), applied=summed(EPOCH, EPOCH), preserved=EPOCH)


class Asks(Callback):
    """Asks the ledger how the saves stand, and then makes room."""

    def __init__(self, states: Callable[[], list[Any]], disk: FullDisk) -> None:
        self.states = states
        self.disk = disk
        self.seen: list[Any] = []

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """All steps are made, and nothing is written yet."""
        ledger = next(one for one in trainer.callbacks if isinstance(one, LedgerCallback))
        assert ledger.run is not None and ledger.run.flush()
        self.seen = self.states()
        self.disk.room.set()


def test_a_save_in_the_background_is_accepted_when_it_is_written(tmp_path: Path, books: Books) -> None:
    run = "lightning-background"
    disk = FullDisk("step=3.ckpt")

    def states() -> list[Any]:
        return [(one["checkpoint"], one["state"]) for one in books.ask(run, "checkpoints")["checkpoints"]]

    asks = Asks(states, disk)
    background = AsyncCheckpointIO(disk)
    with pytest.raises(OSError, match="the disk is full"), LedgerCallback(run) as ledger:
        trainer(tmp_path, ledger, asks, plugins=[background]).fit(Tiny(), loader(*LENGTHS))
    assert asks.seen == [("step=3.ckpt", "started"), ("step=6.ckpt", "started")]
    assert states() == [("step=3.ckpt", "rejected"), ("step=6.ckpt", "accepted")]
    assert not {"save_checkpoint"} & (set(vars(background)) | set(vars(disk)))


class Choosy(Tiny):
    """Leaves out batches, ends its epochs early, and withholds steps, each in its own way."""

    def __init__(self, ledger: LedgerCallback) -> None:
        super().__init__()
        self.ledger = ledger

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """The second epoch ends within its second group."""
        return -1 if self.trainer.current_epoch == 1 and batch_idx == 3 else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The second batch, and all of the second group of the first epoch, give no loss."""
        filtered = self.trainer.current_epoch == 0 and batch_idx in (1, 2, 3)
        return None if filtered else super().training_step(batch, batch_idx)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Two steps are withheld, one of them for a reason that is told."""
        if (epoch, batch_idx) == (2, 1):
            self.ledger.skipped("spike_guard")
            optimizer_closure()
        elif (epoch, batch_idx) == (2, 3):
            optimizer_closure()
        else:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


def test_what_is_left_out_thrown_away_and_withheld(tmp_path: Path, books: Books) -> None:
    run = "lightning-choosy"
    with LedgerCallback(run) as ledger:
        trainer(tmp_path, ledger, every=99, max_epochs=3).fit(Choosy(ledger), loader(*LENGTHS))
    found = [(row["update"], row["outcome"], row["reason"], row["valid_targets"]) for row in books.ask(run, "updates")["items"]]
    assert found == [
        (1, "applied", None, 7 + 4), (2, "skipped", "no_targets", 0), (3, "applied", None, 6),
        (4, "applied", None, 18), (5, "abandoned", None, 3 + 3), (5, "skipped", "spike_guard", 18),
        (6, "skipped", "other", 10), (7, "applied", None, 6),
    ]  # fmt: skip
    report = books.ask(run, "exposure")
    assert sum(report["matrix"]["valid_targets"]["discarded"].values()) == 5 + 2 + 10
    assert report["balance"]["valid_targets"]["dropped"] == 5 + 2 + 10 + 6
    assert report["balance"]["valid_targets"]["attempted"] == 34 + 18 + 6 + 34


class Adversaries(Tiny):
    """Two optimizers, of which the second one steps on every second batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Both are trained on the same loss; its sum is told."""
        first, second = self.optimizers()
        targets = (batch["labels"][:, 1:] != -100).sum()
        loss = self.model(**batch).loss
        self.manual_backward(loss)
        for optimizer in (first, second) if batch_idx % 2 else (second,):
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss, "loss_sum": loss * targets}

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Two of them."""
        return [torch.optim.SGD(self.parameters(), lr=0.01), torch.optim.AdamW(self.parameters(), fused=True)]


def test_a_manual_optimization_with_two_optimizers_is_numbered_by_itself(tmp_path: Path, books: Books) -> None:
    run = "lightning-manual"
    for path, epochs in ((None, 1), (tmp_path / "step=7.ckpt", 2)):
        with LedgerCallback(run) as ledger:
            trainer(tmp_path, ledger, every=7, accumulate_grad_batches=1, max_epochs=epochs).fit(
                Adversaries(), loader(*LENGTHS), ckpt_path=path
            )
    assert books.outcomes(run) == [(number, "applied", "preserved") for number in range(1, 11)]
    assert books.counters(run) == expected(attempted=summed(EPOCH, EPOCH), applied=summed(EPOCH, EPOCH), preserved=summed(EPOCH, EPOCH))
    assert books.ask(run, "exposure")["findings"] == {}
    assert all(2.0 < row["token_mean"] < 3.0 for row in books.ask(run, "updates")["items"])


class Stream(torch.utils.data.IterableDataset):
    """Rows as they come."""

    def __iter__(self) -> Iterator[Any]:
        yield from tiny_llama.rows(*LENGTHS)


def test_data_without_positions_has_counts_and_no_ranges(tmp_path: Path, books: Books) -> None:
    run = "lightning-stream"
    with LedgerCallback(run) as ledger:
        trainer(tmp_path, ledger).fit(Tiny(), torch.utils.data.DataLoader(Stream(), batch_size=2))
    assert books.counters(run) == expected(attempted=summed(EPOCH, EPOCH), applied=summed(EPOCH, EPOCH), preserved=summed(EPOCH, EPOCH))
    assert books.ask(run, "coverage")["streams"] == [] and books.ask(run, "exposure")["findings"] == {}


class Raises(Callback):
    """Fails behind the step of the third update, or has the job taken away there."""

    def __init__(self, preempted: bool) -> None:
        self.preempted = preempted

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Before the ledger hears of the step."""
        if trainer.global_step == 3 and self.preempted:
            os.kill(os.getpid(), signal.SIGTERM)
        elif trainer.global_step == 3:
            raise RuntimeError("the node is gone")


@pytest.mark.parametrize(("preempted", "raised", "ended"), [(False, RuntimeError, "crashed"), (True, SystemExit, "preempted")])
def test_a_step_that_was_made_before_the_end_counts_and_lies_in_the_save_that_is_made_of_it(
    tmp_path: Path, books: Books, preempted: bool, raised: type[BaseException], ended: str
) -> None:
    run = f"lightning-{ended}"
    rescue = OnExceptionCheckpoint(tmp_path, "rescue")
    with pytest.raises(raised), LedgerCallback(run) as ledger:
        trainer(tmp_path, Raises(preempted), ledger, rescue, every=99).fit(Tiny(), loader(*LENGTHS))
    with LedgerCallback(run) as ledger:
        trainer(tmp_path, ledger, every=99).fit(Tiny(), loader(*LENGTHS), ckpt_path=tmp_path / "rescue.ckpt")
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "applied", "preserved"), (3, "applied", "preserved"),
        (4, "applied", "pending"), (5, "applied", "pending"), (6, "applied", "pending"),
    ]  # fmt: skip
    assert books.counters(run) == expected(attempted=summed(EPOCH, EPOCH), applied=summed(EPOCH, EPOCH), preserved=EPOCH)
    assert [one["ended"] for one in books.ask(run)["attempts"]] == [ended, "completed"]
    assert books.ask(run, "exposure")["findings"] == {}


def test_a_checkpoint_without_a_cursor_is_named_by_its_file_and_a_tuner_leaves_none(
    tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    run = "lightning-older"
    trainer(tmp_path, max_epochs=1).fit(Tiny(), loader(*LENGTHS))
    with LedgerCallback(run) as ledger, caplog.at_level(logging.WARNING, "ledger_client"):
        trainer(tmp_path, ledger).fit(Tiny(), loader(*LENGTHS), ckpt_path=tmp_path / "step=3.ckpt")
    assert "checkpoint step=3.ckpt holds no cursor of the ledger: it is taken to be a save of that name after update 3" in caplog.text
    assert [row[0] for row in books.outcomes(run)] == [4, 5, 6]

    run = "lightning-tuned"
    with LedgerCallback(run) as ledger:
        launched, module = trainer(tmp_path, ledger, max_epochs=1), Tiny()
        module.lr = 0.01
        Tuner(launched).lr_find(module, loader(*LENGTHS), num_training=2, early_stop_threshold=None)
        launched.fit(module, loader(*LENGTHS))
    assert books.outcomes(run) == [(1, "applied", "preserved"), (2, "applied", "preserved"), (3, "applied", "preserved")]
    assert [one["resumed_from"] for one in books.ask(run)["attempts"]] == [None]


def in_pairs(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of another form."""
    return torch.stack([row["input_ids"] for row in rows]), torch.stack([row["labels"] for row in rows])


class Paired(Tiny):
    """Takes tokens and labels."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss of a batch."""
        return self.model(input_ids=batch[0], labels=batch[1]).loss


def test_batches_of_another_form_are_counted_as_told_and_unknown_otherwise(
    tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS[:-1]), batch_size=2, collate_fn=in_pairs)
    told = {"counts": lambda batch: {"input_slots": batch[0].numel(), "valid_targets": (batch[1][:, 1:] != -100).sum()}}
    for run, given in (("lightning-told", told), ("lightning-untold", {})):
        with LedgerCallback(run, **given) as ledger, caplog.at_level(logging.WARNING, "ledger_client"):
            trainer(tmp_path, ledger, max_epochs=1).fit(Paired(), pairs)
    rows = books.ask("lightning-told", "updates")["items"]
    assert [(row["input_slots"], row["consumed_tokens"], row["valid_targets"], row["samples"]) for row in rows] == [
        (32, None, 18, 4), (32, None, 10, 4), (8, None, 6, 1),
    ]  # fmt: skip
    assert [(row["valid_targets"], row["samples"]) for row in books.ask("lightning-untold", "updates")["items"]] == [
        (None, 4), (None, 4), (None, 1),
    ]  # fmt: skip
    assert caplog.text.count("the batches cannot be counted") == 1


def test_two_ranks_count_each_their_own_rows(launch: Callable[..., list[str]], books: Books) -> None:
    run = "ranks-lightning"
    launch("job_lightning.py", ranks=2)
    # Rank 0 draws rows of 8, 6 and 4 tokens, rank 1 of 5, 3 and again 8.
    first = {"valid_targets": 7 + 5 + 4 + 2, "consumed_tokens": 8 + 6 + 5 + 3, "input_slots": 4 * 8, "samples": 4}
    second = {"valid_targets": 3 + 7, "consumed_tokens": 4 + 8, "input_slots": 2 * 8, "samples": 2}
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "lost"), (4, "open", "lost"),
        (3, "applied", "preserved"), (4, "applied", "preserved"),
    ]  # fmt: skip
    kept = summed(first, first, second)
    assert books.counters(run) == expected(
        attempted=summed(kept, second, first, second), applied=summed(kept, first), preserved=kept
    )
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": second["valid_targets"]}
    # Of both launches the validation of one epoch, and none of the sanity check.
    assert {name: report["evaluation"][name] for name in first} == {
        "valid_targets": 2 * 8, "consumed_tokens": 2 * 10, "input_slots": 2 * 16, "samples": 2 * 2
    }  # fmt: skip
    assert report["findings"] == {"sample_repeat": 1}
    streams = books.ask(run, "coverage")["streams"]
    assert [(one["epoch"], one["effective_unique"], one["repeated"]) for one in streams] == [(0, 4, []), (1, 5, [[0, 1]])]
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed", "completed"]
