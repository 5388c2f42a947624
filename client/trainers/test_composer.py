"""Composer's Trainer: a tiny Llama trained for two epochs with a crash, a resume and a withheld update, against a real ledger."""

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

pytest.importorskip("torchvision", reason="Composer imports it, and there is none beside this torch for a newer Python")

import tiny_llama
import torch
from composer import Callback, Trainer
from composer.callbacks import CheckpointSaver
from composer.core import Precision
from composer.models import ComposerModel, HuggingFaceModel
from composer.utils import RemoteFilesExistingCheckStatus, RemoteUploader
from conftest import Books, expected, summed

import ledger_client
from ledger_client.integrations.composer import LedgerCallback, accept_when_all_arrived
from ledger_client.testing import CapturingTransport

LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2, 7, 1)
# Batches of four rows in microbatches of two; the last batch of an epoch has two rows. A row has one target less than tokens.
FIRST = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
SECOND = {"valid_targets": 3 + 3 + 3 + 1, "consumed_tokens": 4 + 4 + 4 + 2, "input_slots": 4 * 8, "samples": 4}
REMAINDER = {"valid_targets": 6 + 0, "consumed_tokens": 7 + 1, "input_slots": 2 * 8, "samples": 2}


class Model(ComposerModel):
    """A model of the user's own, which runs out of memory for so many of its calls, after the first one."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__()
        self.inner = tiny_llama.model()
        self.calls = 0
        self.failing = failing

    def forward(self, batch: Any) -> Any:
        """Logits and loss."""
        self.calls += 1
        if 1 < self.calls <= 1 + self.failing:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return self.inner(**batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        """The mean over the targets."""
        return outputs.loss


class Fate(Callback):
    """Makes the gradient of one update infinite, and ends the training after the first microbatch of another."""

    def __init__(self, poisoned: int | None, crashing: int | None) -> None:
        self.poisoned = poisoned
        self.crashing = crashing

    def after_backward(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch + 1 == self.poisoned:
            next(state.model.parameters()).grad[0, 0] = float("inf")
        if state.timestamp.batch + 1 == self.crashing:
            raise RuntimeError("the node is gone")


def made(
    folder: Path | None,
    run: str,
    *,
    poisoned: int | None = None,
    crashing: int | None = None,
    counts: Any = None,
    callbacks: tuple[Any, ...] = (),
    model: Any = None,
    **more: Any,
) -> Trainer:
    """A trainer of the same rows, with a real scaler for the processor: Composer has one for accelerators alone."""
    model = model or Model()
    loader = torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS), batch_size=4)
    given: dict[str, Any] = {
        "train_dataloader": loader, "device_train_microbatch_size": 2, "max_duration": "2ep", "save_interval": "2ba", "device": "cpu",
        "progress_bar": False, "run_name": run,
    }  # fmt: skip
    trainer = Trainer(
        model=model, optimizers=torch.optim.AdamW(model.parameters(), fused=True), save_folder=None if folder is None else str(folder),
        callbacks=[Fate(poisoned, crashing), *callbacks, LedgerCallback(run, counts=counts)], **given | more,
    )  # fmt: skip
    trainer.state.precision = Precision.AMP_FP16
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return trainer


def trained(folder: Path | None, run: str, **more: Any) -> None:
    """One launch of the same training."""
    with closing(made(folder, run, **more)) as trainer:
        trainer.fit()


def test_accumulation_padding_overflow_and_resume(tmp_path: Path, books: Books) -> None:
    run = "composer"
    evaluated = torch.utils.data.DataLoader(tiny_llama.rows(8, 5, 6), batch_size=2)
    with pytest.raises(RuntimeError, match="the node is gone"):
        trained(tmp_path, run, poisoned=2, crashing=5, eval_dataloader=evaluated, eval_interval="2ba")
    trained(tmp_path, run, load_path=str(tmp_path / "latest-rank0.pt"), save_overwrite=True)
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "preserved"), (4, "applied", "preserved"),
        (5, "open", "lost"), (5, "applied", "preserved"), (6, "applied", "preserved"),
    ]  # fmt: skip
    crashed = {"valid_targets": 3 + 3, "consumed_tokens": 4 + 4, "input_slots": 2 * 8, "samples": 2}
    kept = summed(FIRST, REMAINDER, FIRST, SECOND, REMAINDER)
    assert books.counters(run) == expected(attempted=summed(kept, SECOND, crashed), applied=kept, preserved=kept)
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": SECOND["valid_targets"]}
    assert {name: report["evaluation"][name] for name in FIRST} == {
        "valid_targets": 2 * 16, "consumed_tokens": 2 * 19, "input_slots": 2 * 24, "samples": 2 * 3,
    }  # fmt: skip
    assert report["accepted_checkpoint"]["checkpoint"] == "ep1-ba6-rank0.pt" and report["findings"] == {}
    first, second = books.ask(run)["attempts"]
    assert (first["ended"], first["resumed_from"], second["ended"]) == ("crashed", None, "completed")
    assert second["resumed_from"] == {"checkpoint": "ep1-ba4-rank0.pt", "attempt": first["attempt"], "update": 4}


def test_the_data_position_is_that_of_the_sampler(tmp_path: Path, books: Books) -> None:
    run = "composer-position"
    with pytest.raises(RuntimeError, match="the node is gone"):
        trained(tmp_path, run, save_interval="1ba", crashing=4)
    trained(tmp_path, run, save_interval="1ba", load_path=str(tmp_path / "ep0-ba2-rank0.pt"), save_overwrite=True)
    first, second = books.ask(run, "coverage")["streams"]
    assert (first["epoch"], first["effective_unique"], first["times_seen"]) == (0, 10, {"1": 10})
    assert (second["epoch"], second["effective_unique"], second["gaps"]) == (1, 10, [])
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert [(one["checkpoint"], one["positions"]["train"]) for one in saves if one["on_trajectory"]] == [
        ("ep0-ba1-rank0.pt", {"epoch": 0, "position": 4}),
        ("ep0-ba2-rank0.pt", {"epoch": 0, "position": 8}),
        ("ep0-ba3-rank0.pt", {"epoch": 1, "position": 0}),
        ("ep1-ba4-rank0.pt", {"epoch": 1, "position": 4}),
        ("ep1-ba5-rank0.pt", {"epoch": 1, "position": 8}),
        ("ep1-ba6-rank0.pt", {"epoch": 2, "position": 0}),
    ]  # fmt: skip
    assert books.ask(run, "exposure")["findings"] == {}


def test_a_loader_that_is_not_moved_on_draws_its_data_again(tmp_path: Path, books: Books) -> None:
    run = "composer-again"
    trained(tmp_path, run, max_duration="2ba")
    trained(None, run, max_duration="3ba", load_path=str(tmp_path / "ep0-ba2-rank0.pt"), spin_dataloaders=False)
    assert books.ask(run, "coverage")["streams"][0]["repeated"] == [[0, 4]]


def test_a_batch_that_ran_out_of_memory_is_counted_once(tmp_path: Path, books: Books) -> None:
    run = "composer-memory"
    with closing(made(None, run, model=Model(failing=1), max_duration="2ba")) as trainer:
        trainer.state.auto_microbatching = True
        trainer.fit()
    both = summed(FIRST, SECOND)
    assert books.counters(run) == expected(attempted=both, applied=both, preserved=dict.fromkeys(both, 0))
    assert books.outcomes(run) == [(1, "applied", "pending"), (2, "applied", "pending")]
    assert books.ask(run, "coverage")["streams"][0]["times_seen"] == {"1": 8}
    assert trainer.state.model.calls == 1 + 1 + 4 + 4, "two calls in vain, then microbatches of one row"


class Fails(Callback):
    """A batch that fails in its second microbatch, when the first one is computed."""

    def after_backward(self, state: Any, logger: Any) -> None:
        raise RuntimeError("the node is gone")


@pytest.mark.parametrize("known", [False, True])
def test_what_waits_when_the_process_ends_is_an_open_group(known: bool, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    run = f"composer-waiting-{known}"
    trainer = made(None, run, callbacks=(Fails(),))
    trainer.state.auto_microbatching = True
    with pytest.raises(RuntimeError, match="the node is gone") as raised:
        trainer.fit()
    if known:
        # As the interpreter leaves it for what is called at its exit, after an error that nobody has caught; not after a signal.
        monkeypatch.setattr(sys, "last_value", raised.value, raising=False)
    trainer.close()
    assert [(row["outcome"], row["samples"]) for row in books.ask(run, "updates")["items"]] == [("open", 2)]
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed" if known else None]


class Twice(torch.optim.SGD):
    """Computes a batch a second time where it has stepped to."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One step of two computations."""
        closure()
        super().step(closure)


def test_a_batch_that_is_computed_twice_for_a_step_is_drawn_once(books: Books) -> None:
    run = "composer-twice"
    model = Model()
    trainer = Trainer(
        model=model, optimizers=Twice(model.parameters(), lr=0.1), max_duration="2ba", device="cpu", device_train_microbatch_size=2,
        train_dataloader=torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS), batch_size=4), progress_bar=False,
        callbacks=LedgerCallback(run),
    )  # fmt: skip
    # Without half precision there is a scaler too, and nobody asks it.
    trainer.state.scaler = torch.amp.GradScaler("cpu")
    with closing(trainer):
        trainer.fit()
    both = summed(FIRST, SECOND)
    assert books.counters(run) == expected(attempted=both, applied=both, preserved=dict.fromkeys(both, 0))


def test_the_loss_of_a_transformers_model_is_a_mean_over_its_targets(books: Books) -> None:
    run = "composer-loss"
    trained(None, run, model=HuggingFaceModel(tiny_llama.model(), shift_labels=True), max_duration="2ba", train_dataloader=(
        torch.utils.data.DataLoader(tiny_llama.rows(8, 5, 2, 2, 3, 3, 3, 3), batch_size=4)
    ))  # fmt: skip
    first, second = books.ask(run, "updates")["items"]
    # Two rows of 7 + 4 targets weigh as much as two of 1 + 1.
    assert first["loss_verdict"] == "mean_of_microbatch_means" != second["loss_verdict"]
    assert first["reported_loss"] == pytest.approx(first["mean_of_microbatch_means"]) != pytest.approx(first["token_mean"])


def test_a_later_fit_goes_on_with_the_attempt(tmp_path: Path, books: Books) -> None:
    run = "composer-fits"
    with closing(made(tmp_path, run, crashing=2, max_duration="2ba")) as trainer:
        with pytest.raises(RuntimeError, match="the node is gone"):
            trainer.fit()
        trainer.state.callbacks[0].crashing = None
        trainer.fit()
        trainer.fit(duration="1ba")
        assert "update" not in vars(trainer.state.scaler), "the scaler is left as it was"
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "open", "pending"), (2, "applied", "preserved"), (3, "applied", "preserved"),
    ]  # fmt: skip
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["completed"]


def test_weights_alone_are_no_checkpoint_and_nothing_to_resume_from(tmp_path: Path, books: Books) -> None:
    run = "composer-weights"
    saver = CheckpointSaver(str(tmp_path), save_interval="1ba", weights_only=True)
    trained(None, run, callbacks=(saver,), max_duration="1ba")
    assert books.ask(run, "checkpoints")["checkpoints"] == []
    trained(None, f"{run}-tuned", load_path=str(tmp_path / "latest-rank0.pt"), load_weights_only=True, max_duration="1ba")
    assert [one["resumed_from"] for one in books.ask(f"{run}-tuned")["attempts"]] == [None]


def test_a_checkpoint_without_a_cursor_is_named_by_its_file(tmp_path: Path, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    run = "composer-older"
    with pytest.raises(RuntimeError, match="the node is gone"):
        trained(tmp_path, run, crashing=3)
    file, latest = tmp_path / "ep0-ba2-rank0.pt", tmp_path / "latest-rank0.pt"
    saved = torch.load(file, weights_only=False)
    del saved["state"]["callbacks"]["LedgerCallback"]
    torch.save(saved, file)
    with caplog.at_level(logging.WARNING, "ledger_client"), closing(made(None, run, load_path=str(latest), max_duration="3ba")) as trainer:
        trainer.fit()
        trainer.save_checkpoint(str(tmp_path / "by-hand.pt"))
    trained(None, run, load_path=str(tmp_path / "by-hand.pt"), max_duration="4ba")
    assert "ep0-ba2-rank0.pt holds no cursor" in caplog.text
    assert [(one["after"], one["through"]) for one in books.ask(run, "exposure")["trajectory"]] == [(0, 2), (2, 3), (3, 4)]
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert [(one["checkpoint"], one["update"], one["accepted_by"]) for one in saves] == [
        ("ep0-ba2-rank0.pt", 2, "event"), ("by-hand.pt", 3, "resume"),
    ]  # fmt: skip


class Stream(torch.utils.data.IterableDataset):
    """Rows without an end, as they come."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from tiny_llama.rows(*LENGTHS)


def sized_batches() -> Any:
    """A loader that is told its batches."""
    rows = tiny_llama.rows(*LENGTHS)
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(rows), 4, drop_last=False)
    return torch.utils.data.DataLoader(rows, batch_sampler=sampler)


@pytest.mark.parametrize(
    ("run", "loader"),
    [("composer-stream", torch.utils.data.DataLoader(Stream(), batch_size=4)), ("composer-batches", sized_batches())],
)
def test_data_without_positions_has_counts_and_no_ranges(run: str, loader: Any, tmp_path: Path, books: Books) -> None:
    trained(tmp_path, run, train_dataloader=loader, max_duration="2ba")
    both = summed(FIRST, SECOND)
    assert books.counters(run) == expected(attempted=both, applied=both, preserved=both)
    assert books.ask(run, "coverage")["streams"] == [] and books.ask(run, "exposure")["findings"] == {}


def test_what_fails_and_what_cannot_be_counted(
    tmp_path: Path, books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = "composer-faults"

    def unknown(batch: Any) -> Any:
        raise KeyError("lengths")

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("composer.utils.checkpoint._write_checkpoint_file", full)
    with caplog.at_level(logging.WARNING, "ledger_client"), pytest.raises(OSError, match="the disk is full"):
        trained(tmp_path, run, counts=unknown)
    assert caplog.text.count("recorded as unknown: KeyError('lengths')") == 1
    rows = books.ask(run, "updates")["items"]
    assert [(row["outcome"], row["valid_targets"]) for row in rows] == [("applied", None), ("applied", None)]
    assert [one["state"] for one in books.ask(run, "checkpoints")["checkpoints"]] == ["rejected"]


def test_counts_of_the_users_own(books: Books) -> None:
    run = "composer-counts"

    def counts(batch: Any) -> Any:
        return {"input_slots": 10, "consumed_tokens": 9, "valid_targets": 8, "samples": 2}

    trained(None, run, counts=counts, max_duration="1ba")
    one = {"input_slots": 20, "consumed_tokens": 18, "valid_targets": 16, "samples": 4}
    assert books.counters(run) == expected(attempted=one, applied=one, preserved=dict.fromkeys(one, 0))


class FolderUploader(RemoteUploader):
    """Uploads in the background, as Composer's own does, to a store that is a folder."""

    def __init__(self, remote_folder: Path) -> None:
        self.remote_folder = str(remote_folder)
        self.upload_executor = ThreadPoolExecutor(1)
        self.futures: list[Any] = []
        self.is_remote_upload_failed = Event()

    def init(self) -> None:
        """Nothing is to be asked for."""

    def upload_file_async(self, remote_file_name: str, file_path: Path, overwrite: bool) -> Any:
        """A copy, when its turn has come."""
        future = self.upload_executor.submit(shutil.copy, file_path, f"{self.remote_folder}/{Path(remote_file_name).name}")
        self.futures.append(future)
        return future

    def wait_and_close(self) -> None:
        """As the trainer is closed."""
        self.wait()


def test_a_remote_save_is_accepted_when_it_is_uploaded(tmp_path: Path, books: Books) -> None:
    run = "composer-remote"
    uploaded = tmp_path / "store"
    uploaded.mkdir()
    saver = CheckpointSaver(str(tmp_path / "local"), save_interval="1ba", latest_remote_file_name=None)
    saver.remote_uploader = uploader = FolderUploader(uploaded)
    ledger = LedgerCallback(run)
    gates: list[Future[None]] = []
    seen: list[list[str]] = []

    class Looks(Callback):
        """Asks the ledger before the newest upload may go, and lets it go; the next one has to wait."""

        def batch_end(self, state: Any, logger: Any) -> None:
            if gates:
                assert ledger.run is not None
                ledger.run.flush()
                seen.append([one["state"] for one in books.ask(run, "checkpoints")["checkpoints"]])
                gates[-1].set_result(None)
                uploader.futures[-1].result()
            if len(gates) == 2:
                uploaded.rename(tmp_path / "gone")
            gates.append(Future())
            uploader.upload_executor.submit(gates[-1].result)

        def fit_end(self, state: Any, logger: Any) -> None:
            gates[-1].set_result(None)

    model = Model()
    trainer = Trainer(
        model=model, optimizers=torch.optim.AdamW(model.parameters()), max_duration="3ba", device="cpu", run_name=run, progress_bar=False,
        train_dataloader=torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS), batch_size=4), callbacks=[Looks(), ledger, saver],
    )  # fmt: skip
    uploader.check_workers = lambda: None
    with pytest.raises(FileNotFoundError), closing(trainer):
        trainer.fit()
    assert seen == [["started"], ["accepted", "started"]]
    assert [(one["checkpoint"], one["state"], one["uri"]) for one in books.ask(run, "checkpoints")["checkpoints"]] == [
        ("ep0-ba1-rank0.pt", "accepted", f"{uploaded}/ep0-ba1-rank0.pt"), ("ep0-ba2-rank0.pt", "accepted", f"{uploaded}/ep0-ba2-rank0.pt"),
        ("ep0-ba3-rank0.pt", "rejected", f"{uploaded}/ep0-ba3-rank0.pt"),
    ]  # fmt: skip
    assert "_save_checkpoint" not in vars(saver)


def test_an_upload_is_waited_for_when_the_training_has_failed(tmp_path: Path, books: Books) -> None:
    run = "composer-upload"
    (tmp_path / "store").mkdir()
    saver = CheckpointSaver(str(tmp_path / "local"), save_interval="1ba", latest_remote_file_name=None)
    saver.remote_uploader = uploader = FolderUploader(tmp_path / "store")
    gate: Future[None] = Future()
    uploader.upload_executor.submit(gate.result)
    with pytest.raises(RuntimeError, match="the node is gone"), closing(made(None, run, callbacks=(saver,), crashing=2)) as trainer:
        Timer(0.3, gate.set_result, (None,)).start()
        trainer.fit()
    assert [(one["checkpoint"], one["state"]) for one in books.ask(run, "checkpoints")["checkpoints"]] == [("ep0-ba1-rank0.pt", "accepted")]


def test_a_sharded_remote_save_is_accepted_when_all_ranks_are_seen_to_be_through(tmp_path: Path) -> None:
    capture = CapturingTransport()
    run = ledger_client.start("demo", spool=tmp_path, transport=capture, mode="memory")
    uploads: list[Future[int]] = [Future() for _ in range(3)]
    checks: list[Future[Any]] = [Future() for _ in range(3)]
    for number in range(3):
        accept_when_all_arrived(run.checkpoint(f"c{number}", update=1), uploads[number : number + 1], checks[number : number + 1])
    uploads[0].set_result(0)
    run.flush()
    assert {row["state"] for row in capture.ledger.rows("checkpoints")} == {"started"}
    checks[0].set_result(RemoteFilesExistingCheckStatus.EXIST)
    uploads[1].set_exception(OSError("the store is gone"))
    checks[2].set_result(RemoteFilesExistingCheckStatus.TIMEOUT)
    run.flush()
    assert {row["checkpoint"]: row["state"] for row in capture.ledger.rows("checkpoints")} == {
        "c0": "accepted", "c1": "rejected", "c2": "rejected",
    }  # fmt: skip
    run.close()


def test_two_ranks_with_an_overflow_and_a_resume(launch: Callable[..., list[str]], books: Books) -> None:
    run = "composer-ranks"
    launch("job_composer.py", ranks=2, NODE_RANK="0")
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "lost"), (4, "open", "lost"),
        (3, "applied", "preserved"), (4, "applied", "preserved"),
    ]  # fmt: skip
    # Rank 0 draws every other row from the first on, and rank 1 the others: of nine rows the last one, and the first one again.
    whole, rest = summed(FIRST, SECOND), {"valid_targets": 6 + 7, "consumed_tokens": 7 + 8, "input_slots": 2 * 8, "samples": 2}
    kept = summed(whole, whole, rest)
    assert books.counters(run) == expected(attempted=summed(kept, rest, whole, rest), applied=summed(kept, whole), preserved=kept)
    first, second = books.ask(run, "coverage")["streams"]
    assert (first["epoch"], first["times_seen"], first["without_effect"]) == (0, {"1": 8}, [[8, 9]])
    assert (second["epoch"], second["times_seen"], second["repeated"]) == (1, {"1": 8, "2": 1}, [[0, 1]])
    saves = [
        (one["checkpoint"], one["state"], one["positions"]["train"], one["on_trajectory"])
        for one in books.ask(run, "checkpoints")["checkpoints"]
    ]
    assert saves == [
        ("ep0-ba1-rank0.pt", "accepted", {"epoch": 0, "position": 8}, True),
        ("ep0-ba2-rank0.pt", "accepted", {"epoch": 1, "position": 0}, True),
        ("ep1-ba3-rank0.pt", "accepted", {"epoch": 1, "position": 8}, False),
        ("ep1-ba3-rank0.pt", "accepted", {"epoch": 1, "position": 8}, True),
        ("ep1-ba4-rank0.pt", "accepted", {"epoch": 2, "position": 0}, True),
    ]  # fmt: skip
    assert books.ask(run, "exposure")["findings"].keys() == {"sample_repeat"}
    assert [one["ended"] for one in books.ask(run)["attempts"]] == ["crashed", "completed"]
