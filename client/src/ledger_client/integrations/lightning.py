"""The Lightning Trainer, recorded by a callback; the training module stays as it is.

    ledger = LedgerCallback("llama-8b", project="pretraining")
    with ledger:
        Trainer(callbacks=[ledger], ...).fit(module, loader, ckpt_path=...)

A callback sees no end of a save, so the trainer's `save_checkpoint` is wrapped beside it, until the recording is closed:

| recorded | when |
|---|---|
| attempt | training begins, behind the sanity check; a later `fit` that loads a checkpoint, or begins anew, is another attempt |
| microbatch | the batch is through `training_step`, or that has raised; counts from the batch as it was before |
| discarded, `filtered` | in its place, where `training_step` gave no loss: its batch is in no gradient |
| applied, or skipped, `overflow` | at the end of the batch in which `global_step` has moved, as `StepWatch` saw it |
| skipped, `other` | `global_step` has moved and no step was asked for: an `optimizer_step` of the module's own has withheld it |
| abandoned | the epoch or the training ended within a group, so its gradients are thrown away |
| checkpoint started | `save_checkpoint` is called |
| checkpoint accepted | it has returned; under `AsyncCheckpointIO` the file is written; rejected where that raised |
| cursor | with the callbacks' states in the checkpoint; read when that has been loaded |
| data position | ranges of sampler positions, where one loader draws a data set with a length in batches of one size |
| evaluation | a validation ends; the sanity check is none |
| counter | `global_step`, at the end of each update with one optimizer |

`global_step` counts steps that were asked for, over all optimizers. With one optimizer it is the number of the update; in a manual
optimization with several, an update is what lies before the end of a batch in which any of them stepped, and the updates are numbered by
themselves. The loss of a microbatch is divided by `accumulate_grad_batches`, also in a shorter last group. After a resume within an epoch
the trainer draws from the beginning of the epoch again, unless the loader keeps its state: what is recorded is what was drawn.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import AsyncCheckpointIO

import ledger_client
from ledger_client.integrations.batches import Counting, Dealt, language_counts, totals
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.torch import StepWatch, mesh_layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.run import Run
    from ledger_client.update import Update

def trainer_layout(trainer: Any) -> ledger_client.Layout:
    """Which processes hold the same examples; every one its own where no device mesh says otherwise."""
    mesh = getattr(trainer.strategy, "device_mesh", None)
    return ledger_client.Layout(dp=trainer.world_size) if mesh is None else mesh_layout(mesh, data=("data_parallel",))


def conventions(trainer: Any) -> ledger_client.Conventions:
    """What the trainer says of the numbers."""
    by_step = any(config.interval == "step" for config in trainer.lr_scheduler_configs)
    return ledger_client.Conventions(
        optimizer=", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers), precision=str(trainer.precision),
        accumulation_divides="accumulate_grad_batches" if trainer.lightning_module.automatic_optimization else None,
        schedule_clock="attempted_updates" if by_step else None, sample_meaning="element of the data set", data={"unit": "position"},
    )  # fmt: skip


class Drawn:
    """Where this process stands in the data."""

    def __init__(self, trainer: Any, first: int) -> None:
        self._dealt = Dealt(trainer.train_dataloader, trainer.world_size)
        self.known = self._dealt.known
        self._progress = trainer.fit_loop.epoch_loop.batch_progress
        self._epoch = 0
        self._next = first
        self._last = False

    def next_epoch(self) -> None:
        """The sampler starts again."""
        self._next = 0

    def batch(self, epoch: int) -> list[tuple[str, int, int, int]]:
        """The ranges of the next batch of this process."""
        self._epoch, self._last = epoch, self._progress.is_last_batch
        start = self._next * self._dealt.size
        self._next += 1
        return self._dealt.ranges(epoch, start, min(start + self._dealt.size, self._dealt.own))

    def position(self) -> dict[str, object] | None:
        """Where the next batch of all processes begins."""
        if not self.known:
            return None
        return self._dealt.position(*((self._epoch + 1, 0) if self._last else (self._epoch, self._next)))


class Group:
    """The microbatches of one update, and what its optimizers do."""

    def __init__(self, update: Update, trainer: Any) -> None:
        self.reason: str | None = None
        """Why somebody else withholds the step."""
        self._update = update
        self._empty = True
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._watches = [StepWatch(optimizer, scaler) for optimizer in trainer.optimizers]

    def microbatch(self, counts: Mapping[str, Any]) -> None:
        """One that is in the gradient."""
        self._empty = False
        self._update.microbatch(**counts)

    def stepped(self) -> None:
        """The trainer has counted a step: the update is applied if any of its optimizers has applied one."""
        self.end()
        stepped = [watch for watch in self._watches if watch.stepped is not False]
        if self._empty:
            self._update.microbatch(input_slots=0, consumed_tokens=0, valid_targets=0, samples=0)
            self._update.skipped("no_targets")
        elif self.reason is not None or not stepped:
            self._update.skipped(self.reason or "other")
        else:
            next((watch for watch in stepped if not watch.skipped), stepped[0]).tell(self._update)

    def abandoned(self) -> None:
        """Its gradients are thrown away."""
        if self._empty:
            self.leave()
            return
        self.end()
        self._update.abandoned()

    def leave(self) -> None:
        """It has come to no end."""
        self.end()
        self._update.leave()

    def end(self) -> None:
        """See what is still to be seen, and leave optimizers and scaler as they were."""
        # The one that was made last lies outermost.
        for watch in reversed(self._watches):
            watch.end()


class Saves:
    """The saves of one trainer: what begins one is called, and the handle that it gives is told how the save ended."""

    def __init__(self, trainer: Any, begin: Callable[[Any, str], Checkpoint | None]) -> None:
        self._trainer = trainer
        self._begin = begin
        self._begun: Checkpoint | None = None
        self._submitted: deque[Checkpoint | None] = deque()
        layers = [trainer.strategy.checkpoint_io]
        while getattr(layers[-1], "checkpoint_io", None) is not None:
            layers.append(layers[-1].checkpoint_io)
        self._background = next((layer for layer in layers if isinstance(layer, AsyncCheckpointIO)), None)
        self._save = trainer.save_checkpoint
        trainer.save_checkpoint = self._saved
        self._undo: list[Callable[[], None]] = [lambda: delattr(trainer, "save_checkpoint")]
        if self._background is not None:
            self._wrap(self._background, self._handed_over)
            self._wrap(layers[-1], self._written)

    def undo(self) -> None:
        """Leave the trainer as it was."""
        for undo in self._undo:
            undo()

    def _wrap(self, owner: Any, around: Callable[..., Any]) -> None:
        inner = owner.save_checkpoint
        owner.save_checkpoint = lambda *args, **kwargs: around(inner, *args, **kwargs)
        self._undo.append(lambda: delattr(owner, "save_checkpoint"))

    def _saved(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """A whole save, unless it is finished in the background; then this process is told there, and others cannot know."""
        self._begun = self._begin(self._trainer, str(filepath))
        try:
            returned = self._save(filepath, *args, **kwargs)
        except BaseException:
            # The failure of an earlier save may be told here, behind the handing over of this one.
            if self._begun is not None:
                self._begun.rejected()
            raise
        if self._begun is not None and (self._background is None or self._trainer.is_global_zero):
            self._begun.accepted()
        return returned

    def _handed_over(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The save goes on in the background, where one comes after the other."""
        self._submitted.append(self._begun)
        self._begun = None
        return inner(*args, **kwargs)

    def _written(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The file of a save, in the background."""
        checkpoint = self._submitted.popleft()
        try:
            returned = inner(*args, **kwargs)
        except BaseException:
            if checkpoint is not None:
                checkpoint.rejected()
            raise
        if checkpoint is not None:
            checkpoint.accepted()
        return returned


class LedgerCallback(Callback):
    """Records a trainer; `counts` gives what a batch holds where that is not what `language_counts` says.

    The rest goes to `ledger_client.start`; what was resumed from is read from the checkpoint. A `loss_sum` that `training_step` returns
    beside its loss, the sum over the valid targets of the batch, is recorded with it.
    """

    def __init__(self, run: str, *, counts: Callable[[Any], Mapping[str, object]] = language_counts, **options: Any) -> None:
        self.run: Run | None = None
        """The run, from the beginning of the training until it is closed."""
        self.number = 0
        """The last update that is over."""
        self._name = run
        self._counted = Counting(counts)
        self._options = options
        self._cursor: Mapping[str, object] | None = None
        self._loaded: Mapping[str, object] | None = None
        self._loader_resumes = False
        self._steps = 0
        self._drawn: Drawn | None = None
        self._group: Group | None = None
        self._batch: dict[str, Any] | None = None
        self._evaluated: list[Mapping[str, Any]] | None = None
        self._began = 0.0
        self._failure: BaseException | None = None
        self._preempted = False
        self._saves: Saves | None = None

    def skipped(self, reason: str = "other") -> None:
        """The update under way is withheld by something that the trainer does not know of; as `Update.skipped`."""
        if self._group is not None:
            self._group.reason = reason

    def close(self) -> bool:
        """Leave the trainer as it was and close the run, ended as its last `fit` did; as `Run.close`."""
        if self._saves is not None:
            self._saves.undo()
        if self._group is not None:
            self._group.leave()
        self._saves = self._group = None
        run, self.run, failure = self.run, None, self._failure
        if run is None:
            return False
        if self._preempted:
            return run.close(ended="preempted")
        run.__exit__(None if failure is None else type(failure), failure, None)
        return True

    def __enter__(self) -> LedgerCallback:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._failure = self._failure or error
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """What the trainer writes into a checkpoint."""
        return {"cursor": self._cursor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The cursor of the checkpoint that is loaded, be it to train on or to evaluate."""
        self._loaded = state_dict["cursor"]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Whether the loader goes on where the checkpoint stood."""
        loops = checkpoint.get("loops", {}).get("fit_loop", {})
        self._loader_resumes = bool(loops.get("state_dict", {}).get("combined_loader"))

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing is loaded yet."""
        self._loaded, self._loader_resumes = None, False
        if stage == "fit":
            if self._saves is not None:
                self._saves.undo()
            self._saves = Saves(trainer, self._save_begins)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The state is loaded: the attempt begins, or goes on with what is in memory."""
        self._failure, self._preempted = None, False
        path, steps = trainer.ckpt_path, trainer.global_step
        progress = trainer.fit_loop.epoch_loop.batch_progress
        self._drawn = Drawn(trainer, progress.current.ready if self._loader_resumes else 0)
        if self.run is not None and path is None and steps == self._steps:
            return
        source = self._source(trainer)
        self.number, self._steps = 0 if source is None else source["update"], steps
        if self.run is not None:
            self.run.rolled_back_to(source)
            return
        place = {"layout": trainer_layout(trainer), "rank": trainer.global_rank, "conventions": conventions(trainer)}
        self.run = ledger_client.start(self._name, resumed_from=source, **(place | self._options))
        atexit.register(close_at_exit, weakref.ref(self))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The sampler starts again, and so do the gradients."""
        if self._drawn is not None:
            self._drawn.next_epoch()
        self._drop(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A microbatch begins; it is counted before `training_step` can take something out of it."""
        if self.run is None or self._drawn is None:
            return
        if self._group is None:
            self._group = Group(self.run.update(self.number + 1), trainer)
        self._batch = self._counted(batch)
        if self._drawn.known:
            self._batch["ranges"] = ranges = self._drawn.batch(trainer.current_epoch)
            self._batch["samples"] = sum(stop - start for _, _, start, stop in ranges)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A microbatch is over, and with it perhaps the update."""
        counts, self._batch = self._batch, None
        if counts is None or self.run is None or self._group is None:
            return
        if pl_module.automatic_optimization and not outputs:
            self.run.discard("filtered", update=self.number + 1, **counts)
        else:
            self._group.microbatch(counts | {"loss_sum": outputs.get("loss_sum")})
        self._close_group(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """What has not come to a step never will."""
        self._drop(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The microbatch under way has been computed in part; a step that was made counts."""
        # A handler that was there before the trainer's own may end the training by itself.
        self._failure, self._preempted = exception, trainer.received_sigterm
        counts, self._batch = self._batch, None
        if self._group is not None:
            if counts is not None:
                self._group.microbatch(counts)
            self._close_group(trainer)
        if self._group is not None:
            self._group.leave()
            self._group = None

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation begins, unless it is the sanity check."""
        self._evaluated = None if self.run is None or trainer.sanity_checking else []
        self._began = time.monotonic()

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A batch is evaluated."""
        if self._evaluated is not None:
            self._evaluated.append(self._counted(batch))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation is over."""
        found, self._evaluated = self._evaluated, None
        if self.run is not None and found:
            self.run.evaluation(update=self.number, seconds=time.monotonic() - self._began, **totals(found))

    def _source(self, trainer: Any) -> dict[str, Any] | None:
        """What a training that begins goes on from: what was loaded, or the state in memory, if a new recording begins with that."""
        path, steps = trainer.ckpt_path, trainer.global_step
        if not steps:
            # A state that contains no step is none to resume from: a tuner has put it back, or it is the beginning.
            return None
        if path is not None:
            by_steps = self._loaded is None or len(trainer.optimizers) == 1
            return resume_source(os.path.basename(os.path.normpath(path)), self._loaded, steps if by_steps else None)
        number = self.number if steps == self._steps else steps
        saved = self._cursor is not None and self._cursor["update"] == number
        return resume_source(f"memory-{number}", self._cursor if saved else None, number)

    def _close_group(self, trainer: Any) -> None:
        """The update is over if the trainer has counted a step."""
        steps = trainer.global_step
        if self._group is None or self.run is None or steps == self._steps:
            return
        self._group.stepped()
        self._group = None
        self.number += 1
        self._steps = steps
        if len(trainer.optimizers) == 1:
            self.run.counter("global_step", steps, update=self.number)

    def _drop(self, trainer: Any) -> None:
        """The trainer throws away what has no step yet, unless the module or the strategy accumulates by itself."""
        accumulates = trainer.lightning_module.automatic_optimization and not trainer.strategy.handles_gradient_accumulation
        if self._group is not None and accumulates:
            self._group.abandoned()
            self._group = None

    def _save_begins(self, trainer: Any, path: str) -> Checkpoint | None:
        """The handle of a save, whose cursor goes into it; None while nothing is recorded."""
        if self.run is None:
            return None
        # A callback that saves may be called before this one hears of the step.
        stepped = trainer.global_step != self._steps
        contained = self.number + stepped
        # Within a group more has been drawn than the updates before it were trained on.
        positions = self._drawn.position() if self._drawn is not None and (stepped or self._group is None) else None
        checkpoint = self.run.checkpoint(os.path.basename(os.path.normpath(path)), update=contained, uri=path, positions=positions)
        self._cursor = checkpoint.cursor()
        return checkpoint


def close_at_exit(callback: weakref.ref[LedgerCallback]) -> None:
    """Closes what was not closed, and does not keep a trainer in memory for that."""
    left = callback()
    if left is not None:
        left.close()
