"""torchtitan's Trainer, recorded without a change to it.

    trainer = config.build()
    record(trainer, "llama-8b", project="pretraining")
    trainer.train()
    trainer.close()

There are no callbacks, so some methods of this one trainer and of its components are wrapped:

| recorded | when |
|---|---|
| attempt | `train` has loaded the state; it ends with `train` |
| microbatch | `forward_backward_step` returns, or raises: counts from its batch as the loader gave it |
| discarded, `remainder` | the loader ran out of data within a group: its batches were drawn, and are in no update |
| applied | `train_step` is over and the optimizers have stepped, also where it raises behind that |
| open | `train_step` raised before |
| checkpoint started | the checkpointer's `dcp_save` begins, of the last step too, which may hold the model alone |
| checkpoint accepted | `dcp_save` has returned; in the asynchronous modes its future is done; rejected where it failed |
| cursor | in the trainer's own state, the same on all ranks; read with it, so not where the model alone is loaded |
| evaluation | the validator is through |
| counters | `global_step` at the end of each update, and `consumed_tokens` where the trainer logs what it has seen |

Nothing withholds a step: a loss that is not finite ends the training, where it is logged, after the step. The counts of a batch lie before
its split over context-parallel ranks, so those share them, and none of them records its part of the loss. Under pipeline parallelism the
trainer knows the losses of a group together only. The data has no positions: rows are packed from a stream.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from functools import partial
from threading import Event

import torch.distributed
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.dataloader import DataloaderExhaustedError

import ledger_client
from ledger_client.counting import input_slots, valid_targets
from ledger_client.integrations.batches import Counting, totals
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.torch import accept_when_done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ledger_client.run import Run
    from ledger_client.update import Update

KEY = "training_ledger"


def record(
    trainer: Any, run: str, *, counts: Callable[[Mapping[str, Any], Any], Mapping[str, object]] | None = None, **options: Any
) -> Recording:
    """Record what this trainer does from its `train()` on.

    `counts` gives `input_slots`, `consumed_tokens`, `valid_targets` and `samples` of an input dictionary and its labels, where they are
    not what `packed_counts` says. The rest goes to `ledger_client.start`; what was resumed from is read from the checkpoint.
    """
    return Recording(trainer, run, counts or packed_counts, options)


def packed_counts(inputs: Mapping[str, Any], labels: Any) -> dict[str, Any]:
    """What a batch of packed rows holds: each slot is a token, and its label is that of the next one."""
    slots = input_slots(inputs["input"])
    return {
        "input_slots": slots,
        "consumed_tokens": slots,
        "valid_targets": valid_targets(labels, shift=False),
        "samples": len(inputs["input"]),
    }


def trainer_layout(trainer: Any) -> ledger_client.Layout:
    """Which ranks hold the same rows: those of one place in the mesh of the loader, whose context-parallel ranks count the whole."""
    dims = trainer.parallel_dims
    return ledger_client.Layout(dp=dims.dp_replicate * dims.dp_shard, cp=dims.cp, tp=dims.tp, pp=dims.pp, cp_counts="whole")


def conventions(trainer: Any) -> ledger_client.Conventions:
    """What the trainer's configuration says of the numbers."""
    config = trainer.config
    return ledger_client.Conventions(
        objective="token_mean", gradient_reducer="sum", schedule_clock="applied_updates",
        optimizer=", ".join(sorted({group.optimizer_name for group in config.optimizer.param_groups})),
        precision=config.training.mixed_precision_param, sequence_length=config.training.seq_len, sample_meaning="packed row",
    )  # fmt: skip


def sum_of(loss: Any, global_valid_tokens: Any, dims: Any) -> Any:
    """The sum over the targets of a microbatch, of which the trainer gives the quotient by all targets of the update.

    None where a rank has a part of it only, or the losses of several microbatches together.
    """
    if dims.pp_enabled or dims.cp_enabled:
        return None
    local = loss.to_local() if hasattr(loss, "to_local") else loss
    return local.detach() * global_valid_tokens


class Recording:
    """What records a trainer; made by `record`."""

    def __init__(
        self, trainer: Any, run: str, counts: Callable[[Mapping[str, Any], Any], Mapping[str, object]], options: dict[str, Any]
    ) -> None:
        self.run: Run | None = None
        """The run while it trains."""
        self._trainer = trainer
        self._name = run
        self._packed = counts is packed_counts
        self._counted = Counting(counts)
        self._options = options
        self._cursor: Mapping[str, object] | None = None
        self._holds_cursor = True
        self._loaded: Mapping[str, Any] | None = None
        self._saved = Event()
        self._saved.set()
        self._update: Update | None = None
        self._drawn: deque[Mapping[str, Any]] = deque()
        self._stepped = False
        self._reported: float | None = None
        self._evaluated: list[Mapping[str, Any]] = []
        self._wrap(trainer, "train", "train_step", "batch_generator", "forward_backward_step", "state_dict", "load_state_dict")
        self._wrap(trainer.optimizers, "step")
        self._wrap(trainer.metrics_processor, "log")
        self._wrap(trainer.checkpointer, "load", "dcp_save", "dcp_load")
        if trainer.config.validator.enable:
            self._wrap(trainer.validator, "validate", "post_dataloading_process")

    def _wrap(self, owner: Any, *names: str) -> None:
        for name in names:
            setattr(owner, name, partial(getattr(self, f"_around_{name}"), getattr(owner, name)))

    def _around_train(self, inner: Any) -> Any:
        """One attempt."""
        try:
            returned = inner()
            # The trainer leaves a save that is still going on; where the training failed it may never end.
            self._saved.wait()
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return returned

    def _end(self, error: BaseException | None) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.__exit__(None if error is None else type(error), error, None)

    def _around_load(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """The state is loaded: the attempt begins."""
        self._loaded = None
        returned = inner(*args, **kwargs)
        source = None
        if self._loaded is not None:
            number = self._trainer.step
            source = resume_source(f"step-{number}", json.loads(self._loaded.get(KEY, "null")), number)
        place = {"layout": trainer_layout(self._trainer), "rank": torch.distributed.get_rank(), "conventions": conventions(self._trainer)}
        self.run = ledger_client.start(self._name, resumed_from=source, **(place | self._options))
        return returned

    def _around_dcp_load(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint from before the ledger was in use has no place for the cursor, and what is not there cannot be asked for."""
        try:
            return inner(*args, **kwargs)
        except CheckpointException as error:  # with what went wrong on each rank
            if f"Missing key in checkpoint state_dict: train_state.{KEY}" not in str(error):
                raise
        self._holds_cursor = False
        try:
            return inner(*args, **kwargs)
        finally:
            self._holds_cursor = True

    def _around_state_dict(self, inner: Any) -> Any:
        """A text, since a checkpoint takes mappings apart."""
        state = inner()
        return state | {KEY: json.dumps(self._cursor)} if self._holds_cursor else state

    def _around_load_state_dict(self, inner: Any, state_dict: Mapping[str, Any]) -> None:
        self._loaded = dict(state_dict)
        inner(state_dict)

    def _around_dcp_save(self, inner: Any, state_dict: Any, checkpoint_id: str, *args: Any, **kwargs: Any) -> Any:
        """A save, which gives a future where it goes on in the background."""
        if self.run is None:
            return inner(state_dict, checkpoint_id, *args, **kwargs)
        name = os.path.basename(os.path.normpath(checkpoint_id))
        checkpoint = self.run.checkpoint(name, update=self._trainer.step, uri=str(checkpoint_id))
        self._cursor = checkpoint.cursor()
        try:
            returned = inner(state_dict, checkpoint_id, *args, **kwargs)
        except BaseException:
            checkpoint.rejected()
            raise
        future = getattr(returned, "upload_completion", returned)
        if hasattr(future, "add_done_callback"):
            self._saved = saved = Event()
            accept_when_done(checkpoint, future)
            future.add_done_callback(lambda done: saved.set())
        else:
            checkpoint.accepted()
        return returned

    def _around_train_step(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """One update."""
        self._stepped, self._reported = False, None
        try:
            return inner(*args, **kwargs)
        except DataloaderExhaustedError:
            if self.run is not None:
                for counts in self._drawn:
                    self.run.discard("remainder", update=self._trainer.step, **counts)
            raise
        finally:
            self._over()

    def _over(self) -> None:
        update, self._update = self._update, None
        if update is None or self.run is None:
            return
        if self._stepped:
            update.applied(reported_loss=self._reported)
            self.run.counter("global_step", update.number, update=update.number)
        else:
            update.leave()

    def _around_batch_generator(self, inner: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Batches are counted as they come, on the host; the trainer draws those of a whole group first."""
        for inputs, labels in inner(*args, **kwargs):
            self._drawn.append(self._counted(inputs, labels))
            yield inputs, labels

    def _around_forward_backward_step(self, inner: Any, **kwargs: Any) -> Any:
        """One microbatch, or all those of a pipeline's group."""
        if self.run is None:
            return inner(**kwargs)
        if self._update is None:
            self._update = self.run.update(self._trainer.step)
        labels, loss_sum = kwargs["labels"], None
        try:
            loss = inner(**kwargs)
            loss_sum = sum_of(loss, kwargs["global_valid_tokens"], self._trainer.parallel_dims)
            return loss
        finally:
            for _ in range(len(labels) if isinstance(labels, list) else 1):
                counts = self._drawn.popleft() if self._drawn else {}
                self._update.microbatch(**counts, loss_sum=loss_sum)

    def _around_step(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        returned = inner(*args, **kwargs)
        self._stepped = True
        return returned

    def _around_log(self, inner: Any, step: int, global_avg_loss: float, *args: Any, **kwargs: Any) -> Any:
        """What the trainer reports of an update; of a pipeline its last stage knows the loss."""
        trainer = self._trainer
        if not trainer.parallel_dims.pp_enabled or trainer.pp_has_last_stage:
            self._reported = global_avg_loss
        seen = (kwargs.get("extra_metrics") or {}).get("n_tokens_seen")
        # The trainer counts slots: as tokens they can be compared where every slot is one.
        if self.run is not None and seen is not None and self._packed:
            self.run.counter("consumed_tokens", int(seen), update=step)
        return inner(step, global_avg_loss, *args, **kwargs)

    def _around_validate(self, inner: Any, model_parts: Any, step: int) -> Any:
        """An evaluation."""
        self._evaluated = []
        began = time.monotonic()
        returned = inner(model_parts, step)
        found = self._evaluated
        if self.run is not None and found:
            self.run.evaluation(update=step, seconds=time.monotonic() - began, **totals(found))
        return returned

    def _around_post_dataloading_process(self, inner: Any, inputs: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        """A batch of the validator, before it is split."""
        self._evaluated.append(self._counted(inputs, labels))
        return inner(inputs, labels, *args, **kwargs)
