"""Composer's Trainer, recorded by a callback; the model stays as it is.

    trainer = Trainer(model=..., callbacks=[LedgerCallback("llama-8b", project="pretraining")], save_folder=..., ...)
    trainer.fit()
    trainer.close()

A callback is not told of a save, so the saves of the trainer's checkpoint savers are wrapped beside it, until the trainer is closed:

| recorded | when |
|---|---|
| attempt | `fit` begins; a later `fit` of the same trainer goes on with it |
| microbatch | its loss is known; counts from the microbatch as it was before the forward pass |
| applied, or skipped, `overflow` | at the end of the batch, as `StepWatch` saw it |
| checkpoint started | a checkpoint saver begins to save; one that saves weights alone makes no checkpoint |
| checkpoint accepted | the save has returned; with a remote folder, its files are uploaded; rejected where that failed |
| cursor | with the callbacks' states in the checkpoint; read when that has been loaded |
| data position | ranges of sampler positions, where the data has a length and is drawn in batches of one size |
| evaluation | an evaluation ends, during the training |
| counters | at the end of each batch: `global_step` and `consumed_samples`, from the trainer's timestamp |

A batch of the trainer is an update, and the timestamp moves with a withheld one too. With automatic microbatching a batch is computed
anew after it has run out of memory: its microbatches wait for its end, so that those of the last try are counted alone. An optimizer that
computes a batch several times for one step draws it once. Weights that are loaded alone are nothing to resume from.
"""

from __future__ import annotations

import json
import os
import sys
import time
from threading import Event

from composer.callbacks import CheckpointSaver
from composer.core import Callback, Precision
from composer.models import HuggingFaceModel
from composer.utils import RemoteFilesExistingCheckStatus, dist
from composer.utils.checkpoint import get_save_filename

import ledger_client
from ledger_client.integrations.batches import Counting, Dealt, language_counts, totals
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.torch import StepWatch, accept_when_done, mesh_layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.run import Run
    from ledger_client.update import Update

DATA_AXES = ("data_parallel_replicate", "data_parallel_shard")


def state_layout(state: Any) -> ledger_client.Layout:
    """Which processes hold the same examples; every one its own where no device mesh says otherwise."""
    mesh = state.device_mesh
    return ledger_client.Layout(dp=dist.get_world_size()) if mesh is None else mesh_layout(mesh, data=DATA_AXES)


def conventions(state: Any) -> ledger_client.Conventions:
    """What the trainer says of the numbers."""
    return ledger_client.Conventions(
        optimizer=", ".join(type(optimizer).__name__ for optimizer in state.optimizers), precision=state.precision.value,
        schedule_clock="attempted_updates", sample_meaning="element of the data set", data={"unit": "position"},
    )  # fmt: skip


def save_name(saver: Any, state: Any) -> str:
    """What all ranks call a save: the folder of a sharded one, else the file of the first rank."""
    template = saver.filename.format(state, keep_placeholders=True).replace("{rank}", "0")
    path = get_save_filename(state, template)
    return os.path.basename(os.path.dirname(path) if state.fsdp_sharded_state_dict_enabled else path)


def accept_when_all_arrived(checkpoint: Checkpoint, uploads: Iterable[Any], checks: Iterable[Any]) -> None:
    """Accept a save whose files are uploaded by all ranks when the first rank's check has seen all of them; reject it where one failed."""
    for upload in uploads:
        upload.add_done_callback(lambda done: checkpoint.rejected() if done.cancelled() or done.exception() is not None else None)
    for check in checks:
        check.add_done_callback(
            lambda done: checkpoint.accepted()
            if not done.cancelled() and done.exception() is None and done.result() == RemoteFilesExistingCheckStatus.EXIST
            else checkpoint.rejected()
        )


class Drawn:
    """Where this process stands in the data."""

    def __init__(self, loader: Any) -> None:
        self._dealt = Dealt(loader, dist.get_world_size())
        self.known = self._dealt.known
        self.batches = 0
        """Drawn so far in this epoch, passed over ones included."""
        self._offset = 0

    def rewind(self) -> None:
        """The newest batch is computed from its beginning."""
        self._offset = 0

    def microbatch(self, epoch: int, samples: int) -> list[tuple[str, int, int, int]]:
        """The ranges of the next samples of the newest batch."""
        start = (self.batches - 1) * self._dealt.size + self._offset
        self._offset += samples
        return self._dealt.ranges(epoch, start, start + samples)

    def position(self, state: Any) -> dict[str, object] | None:
        """Where the next batch of all processes begins."""
        if not self.known:
            return None
        epoch, length = int(state.timestamp.epoch), state.dataloader_len
        over = length is not None and self.batches >= int(length)
        return self._dealt.position(*((epoch + 1, 0) if over else (epoch, self.batches)))


class LedgerCallback(Callback):
    """Records a trainer; `counts` gives what a batch or microbatch holds where that is not what `language_counts` says.

    The rest goes to `ledger_client.start`; what was resumed from is read from the checkpoint.
    """

    def __init__(self, run: str, *, counts: Callable[[Any], Mapping[str, object]] | None = None, **options: Any) -> None:
        self.run: Run | None = None
        """The run, from the first `fit` until the trainer is closed."""
        self._name = run
        self._counts_of = counts
        self._counted = Counting(self._counts)
        self._options = options
        self._cursor: Mapping[str, object] | None = None
        self._loaded: Mapping[str, object] | None = None
        self._drawn: Drawn
        self._update: Update | None = None
        self._watch: StepWatch | None = None
        self._passes = 0
        self._given: dict[str, Any] | None = None
        self._waiting: list[dict[str, Any]] = []
        self._evaluated: list[Mapping[str, Any]] = []
        self._began = 0.0
        self._finished = False
        self._wrapped: list[Any] = []
        self._settling: list[Event] = []

    def state_dict(self) -> dict[str, Any]:
        """What the trainer writes into a checkpoint: a text, since a sharded one takes mappings apart."""
        return {"cursor": json.dumps(self._cursor)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The cursor of the checkpoint that is loaded."""
        self._loaded = json.loads(state["cursor"])

    def fit_start(self, state: Any, logger: Any) -> None:
        """The state is loaded: the attempt begins, or goes on."""
        self._finished = False
        self._drawn = Drawn(state.train_dataloader)
        self._leave()
        if self.run is None:
            number, source = int(state.timestamp.batch), None
            if self._loaded is not None or (state.load_path is not None and number):
                source = resume_source(os.path.basename(os.path.realpath(state.load_path)), self._loaded, number)
            place = {"layout": state_layout(state), "rank": dist.get_global_rank(), "conventions": conventions(state)}
            self.run = ledger_client.start(self._name, resumed_from=source, **(place | self._options))
            for saver in state.callbacks:
                if isinstance(saver, CheckpointSaver) and not saver.weights_only:
                    self._wrap(saver)

    def before_dataloader(self, state: Any, logger: Any) -> None:
        """A batch is asked for; after a resume also those that are passed over."""
        self._drawn.batches += 1

    def epoch_end(self, state: Any, logger: Any) -> None:
        """The sampler starts again."""
        self._drawn.batches = 0

    def batch_start(self, state: Any, logger: Any) -> None:
        """An update begins."""
        assert self.run is not None
        scaled = state.precision == Precision.AMP_FP16
        self._update = self.run.update(int(state.timestamp.batch) + 1)
        self._watch = StepWatch(state.optimizers[0], state.scaler if scaled else None)
        self._passes = 0

    def before_train_batch(self, state: Any, logger: Any) -> None:
        """The batch is computed, for the first time or again."""
        self._passes += 1
        self._waiting = []
        self._given = None
        self._drawn.rewind()

    def before_forward(self, state: Any, logger: Any) -> None:
        """A microbatch begins; it is counted before the model can take something out of it."""
        self._given = given = self._counted(state, state.batch)
        if self._drawn.known and type(given.get("samples")) is int:
            given["ranges"] = self._drawn.microbatch(int(state.timestamp.epoch), given["samples"])

    def after_loss(self, state: Any, logger: Any) -> None:
        """The loss of a microbatch is known."""
        given, self._given = self._given, None
        if self._update is None or given is None:
            return
        given["loss_sum"] = loss_sum(state, given.get("valid_targets"))
        if state.auto_microbatching:
            self._waiting.append(given)
        elif self._passes == 1:
            self._update.microbatch(**given)

    def batch_end(self, state: Any, logger: Any) -> None:
        """The update has its outcome."""
        assert self.run is not None
        update, watch, number = self._update, self._watch, int(state.timestamp.batch)
        if update is None or watch is None:
            return
        for given in self._waiting:
            update.microbatch(**given)
        watch.end()
        watch.tell(update, reported_loss=state.total_loss_dict.get("loss/train/total"))
        self._waiting = []
        self._leave()
        self.run.counter("global_step", number, update=number)
        self.run.counter("consumed_samples", int(state.timestamp.sample), update=number)

    def fit_end(self, state: Any, logger: Any) -> None:
        """The training has come to its end."""
        self._finished = True

    def eval_start(self, state: Any, logger: Any) -> None:
        """An evaluation begins."""
        self._evaluated = []
        self._began = time.monotonic()

    def eval_batch_start(self, state: Any, logger: Any) -> None:
        """A batch is evaluated."""
        self._evaluated.append(self._counted(state, state.batch))

    def eval_end(self, state: Any, logger: Any) -> None:
        """An evaluation is over."""
        found = self._evaluated
        if self.run is not None and found:
            seconds = time.monotonic() - self._began
            self.run.evaluation(name=state.dataloader_label, update=int(state.timestamp.batch), seconds=seconds, **totals(found))

    def close(self, state: Any, logger: Any) -> None:
        """The trainer is closed, by a call or as the process ends: an error that ended the training is known by now."""
        for saver in self._wrapped:
            del saver._save_checkpoint
        self._wrapped = []
        self._leave()
        run, self.run = self.run, None
        if run is None:
            return
        for settled in self._settling:
            settled.wait()  # Composer waits for its uploads too, behind this.
        error = None if self._finished else sys.exc_info()[1] or getattr(sys, "last_value", None)
        if self._finished or error is not None:
            run.__exit__(None if error is None else type(error), error, None)
        else:
            run.close()

    def _leave(self) -> None:
        """The update under way is over, or came to no end; then what was computed of it counts."""
        update, watch = self._update, self._watch
        if update is not None and watch is not None:
            watch.end()
            for given in [*self._waiting, *([] if self._given is None else [self._given])]:
                update.microbatch(**given)
            update.leave()
        self._update = self._watch = self._given = None
        self._waiting = []

    def _wrap(self, saver: Any) -> None:
        inner = saver._save_checkpoint
        saver._save_checkpoint = lambda state, logger: self._save(saver, inner, state, logger)
        self._wrapped.append(saver)

    def _save(self, saver: Any, inner: Callable[[Any, Any], None], state: Any, logger: Any) -> None:
        """A save; all ranks are through with it when it returns, but for its uploads."""
        assert self.run is not None
        uploader, name = saver.remote_uploader, save_name(saver, state)
        uri = os.path.join(saver.folder if uploader is None else uploader.remote_folder, name)
        number = int(state.timestamp.batch)
        checkpoint = self.run.checkpoint(name, update=number, uri=uri, positions=self._drawn.position(state))
        self._cursor = checkpoint.cursor()
        known, checked = [] if uploader is None else list(uploader.futures), len(saver.symlink_upload_tasks)
        try:
            inner(state, logger)
        except BaseException:
            checkpoint.rejected()
            raise
        if uploader is None:
            checkpoint.accepted()
            return
        uploads, checks = [future for future in uploader.futures if future not in known], []
        if state.fsdp_sharded_state_dict_enabled:
            checks = [task[0] for task in saver.symlink_upload_tasks[checked:]]
            accept_when_all_arrived(checkpoint, uploads, checks)
        else:
            for upload in uploads:
                accept_when_done(checkpoint, upload)
        for future in [*uploads, *checks]:
            self._settling.append(settled := Event())
            future.add_done_callback(lambda done, settled=settled: settled.set())

    def _counts(self, state: Any, batch: Any) -> Mapping[str, object]:
        if self._counts_of is not None:
            return self._counts_of(batch)
        return language_counts(batch, shift=getattr(plain_model(state), "shift_labels", True))


def plain_model(state: Any) -> Any:
    """The model as it was given to the trainer."""
    return getattr(state.model, "module", state.model)


def loss_sum(state: Any, targets: Any) -> Any:
    """The sum of the losses of a microbatch, where the model is known to give their mean over its targets."""
    model = plain_model(state)
    known = isinstance(model, HuggingFaceModel) and type(model).loss is HuggingFaceModel.loss
    if targets is None or not known or getattr(model.config, "output_router_logits", False):
        return None
    return state.loss.detach() * targets
