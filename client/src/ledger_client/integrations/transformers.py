"""The Hugging Face Trainer and its subclasses, recorded without a change to them.

    trainer = Trainer(...)
    record(trainer, "llama-8b", project="pretraining")
    trainer.train(resume_from_checkpoint=...)

Callbacks see no batch and no outcome, so some methods of this one trainer are wrapped beside a callback:

| recorded | when |
|---|---|
| attempt | training begins, when the state is loaded; a second `train()`, or a restart with another batch size, is another attempt |
| microbatch | `training_step` returns, or raises: counts from its inputs, targets as the trainer's own divisor counts them |
| applied, or skipped, `overflow` | after the optimizer's step, as `StepWatch` saw it; by `optimizer_step_was_skipped` without a scaler |
| checkpoint started | `_save_checkpoint` begins |
| checkpoint accepted | `_save_checkpoint` has returned in every process; rejected where it raises |
| cursor | with the callbacks' states in `trainer_state.json`; read when that has been loaded |
| data position | ranges of sampler positions, where the data has a length and every process draws its own batches |
| evaluation | `evaluate` returns, during training |
| counters | at the end of each update: `global_step`, and `num_input_tokens_seen` where the trainer counts tokens without padding |

A batch without an attention mask holds no padding as far as the model knows: each slot of it is a token. The last group of an epoch may
have fewer microbatches, and is an update like the others. With several processes the sampler fills up the last batches with samples from
the beginning: they are drawn twice, and the ledger says so.
"""

from __future__ import annotations

import os
import time

from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

import ledger_client
from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.integrations.accelerate import accelerator_layout, judge
from ledger_client.integrations.batches import STREAM, Counting, totals
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.torch import StepWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ledger_client.run import Run
    from ledger_client.update import Update

CALLBACK = "LedgerCallback"


def record(
    trainer: Any, run: str, *, counts: Callable[[Mapping[str, Any]], Mapping[str, object]] | None = None, **options: Any
) -> Recording:
    """Record what this trainer does from its next `train()` on.

    `counts` gives `input_slots`, `consumed_tokens`, `valid_targets` and `samples` of a batch, where they are not what its mask and its
    labels say. The rest goes to `ledger_client.start`; what was resumed from is read from the checkpoint.
    """
    recording = Recording(trainer, run, counts, options)
    # The trainer may make callbacks anew from what they have exported: so they are told apart by their class, and hold nothing.
    trainer.add_callback(type(CALLBACK, (LedgerCallback,), {"recording": recording}))
    return recording


class LedgerCallback(TrainerCallback, ExportableState):
    """Tells the recording of the trainer's events, and brings the cursor into its state."""

    recording: Recording

    def state(self) -> dict[str, Any]:
        """What the trainer writes into `trainer_state.json`."""
        return {"args": {}, "attributes": {"cursor": self.recording.cursor}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The state is loaded: the attempt begins."""
        self.recording.begin(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The sampler starts again."""
        self.recording.drawn.next_epoch()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has been asked for its step."""
        self.recording.stepped()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The update is over and counted."""
        self.recording.counted(state)


class Drawn:
    """Where this process stands in the data: batches of `size` samples are dealt to the processes in turn."""

    def __init__(self, trainer: Any, global_step: int) -> None:
        accelerator, loader = trainer.accelerator, trainer.callback_handler.train_dataloader
        config = getattr(accelerator, "dataloader_config", None)
        dealt = not (getattr(config, "split_batches", False) or getattr(config, "dispatch_batches", False))
        data = getattr(loader, "dataset", None)
        self.known = dealt and data is not None and not isinstance(data, IterableDataset) and accelerator_mesh(trainer) is None
        self._ranks, self._rank = accelerator.num_processes, accelerator.process_index
        self._size = trainer._train_batch_size
        self._samples = len(loader.dataset) if self.known else 0
        self._batches = len(loader) if self.known else 0
        groups = -(-self._batches // trainer.args.gradient_accumulation_steps) or 1
        self._epoch = global_step // groups - 1
        self._next = 0
        self._first = 0 if trainer.args.ignore_data_skip else global_step % groups * trainer.args.gradient_accumulation_steps

    def next_epoch(self) -> None:
        """The sampler starts again; after a resume it is moved to where the checkpoint stood."""
        self._epoch += 1
        self._next, self._first = self._first, 0

    def batch(self) -> list[tuple[str, int, int, int]]:
        """The ranges of the next batch of this process; past the end of the data it begins anew."""
        start = (self._next * self._ranks + self._rank) * self._size
        stop = start + self._size
        self._next += 1
        if self._ranks == 1:
            stop = min(stop, self._samples)
        length, ranges = self._samples, []
        while start < stop:
            end = min(stop, start - start % length + length)
            ranges.append((STREAM, self._epoch, start % length, start % length + end - start))
            start = end
        return ranges

    def position(self) -> dict[str, object] | None:
        """Where the next batch of all processes begins."""
        if not self.known:
            return None
        if self._next >= self._batches:
            return {STREAM: {"epoch": self._epoch + 1, "position": 0}}
        return {STREAM: {"epoch": self._epoch, "position": self._next * self._ranks * self._size}}


def accelerator_mesh(trainer: Any) -> Any:
    """The device mesh, where some processes share their samples."""
    return getattr(trainer.accelerator, "torch_device_mesh", None)


class Recording:
    """What records one trainer; made by `record`."""

    def __init__(
        self, trainer: Any, run: str, counts: Callable[[Mapping[str, Any]], Mapping[str, object]] | None, options: dict[str, Any]
    ) -> None:
        self.run: Run | None = None
        """The run while it trains."""
        self.cursor: Mapping[str, object] | None = None
        """Of the newest checkpoint."""
        self.drawn: Drawn
        self._trainer = trainer
        self._name = run
        self._counts_of = counts
        self._counted = Counting(self._counts)
        self._options = options
        self._path: str | None = None
        self._update: Update | None = None
        self._watch: StepWatch | None = None
        self._evaluated: list[Mapping[str, object]] | None = None
        for name in ("_inner_training_loop", "training_step", "_save_checkpoint", "evaluate", "prediction_step"):
            self._wrap(name)

    def skipped(self, reason: str = "other") -> None:
        """The update under way is withheld by something that the trainer does not know of; as `Update.skipped`."""
        if self._update is not None:
            self._update.skipped(reason)

    def begin(self, state: Any) -> None:
        """The attempt begins, from what the trainer has loaded."""
        exported = state.stateful_callbacks.get(CALLBACK)
        exported = exported[0] if isinstance(exported, list) else exported
        self.cursor = (exported or {}).get("attributes", {}).get("cursor")
        # The trainer writes only what it has read: a checkpoint from before the ledger was in use has no place for the cursor.
        state.stateful_callbacks.setdefault(CALLBACK, {"args": {}, "attributes": {"cursor": None}})
        accelerator = self._trainer.accelerator
        source = None
        if self._path is not None:
            source = resume_source(os.path.basename(os.path.normpath(self._path)), self.cursor, state.global_step)
        place = {"layout": accelerator_layout(accelerator), "rank": accelerator.process_index, "conventions": self._conventions()}
        self.run = ledger_client.start(self._name, resumed_from=source, **(place | self._options))
        self.drawn = Drawn(self._trainer, state.global_step)

    def stepped(self) -> None:
        """The optimizer was asked for its step: the update has its outcome."""
        update, watch = self._update, self._watch
        if update is None or watch is None:
            return
        judge(watch, self._trainer.accelerator)
        watch.tell(update)
        update.leave()
        self._update = self._watch = None

    def counted(self, state: Any) -> None:
        """The trainer's own counters after an update."""
        if self.run is not None:
            self.run.counter("global_step", state.global_step, update=state.global_step)
            if self._trainer.args.include_num_input_tokens_seen == "non_padding":
                self.run.counter("num_input_tokens_seen", int(state.num_input_tokens_seen), update=state.global_step)

    def _wrap(self, name: str) -> None:
        inner = getattr(self._trainer, name)
        around = getattr(self, f"_around_{name.strip('_')}")
        setattr(self._trainer, name, lambda *args, **kwargs: around(inner, *args, **kwargs))

    def _around_inner_training_loop(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """One attempt, from the loading of the state to the end of the training."""
        self._path = kwargs.get("resume_from_checkpoint")
        try:
            returned = inner(*args, **kwargs)
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return returned

    def _end(self, error: BaseException | None) -> None:
        if self._watch is not None:
            self._watch.end()
        run, self.run, self._update, self._watch = self.run, None, None, None
        if run is not None:
            run.__exit__(None if error is None else type(error), error, None)

    def _around_training_step(self, inner: Any, model: Any, inputs: Any, num_items_in_batch: Any = None, *args: Any, **kwargs: Any) -> Any:
        """One microbatch: its counts stand before it, its loss behind it."""
        if self.run is None:
            return inner(model, inputs, num_items_in_batch, *args, **kwargs)
        trainer = self._trainer
        if self._update is None:
            self._update = self.run.update(trainer.state.global_step + 1)
            self._watch = StepWatch(getattr(trainer.optimizer, "optimizer", trainer.optimizer), trainer.accelerator.scaler)
        counts = self._counted(inputs)
        if self.drawn.known:
            counts["ranges"] = ranges = self.drawn.batch()
            counts["samples"] = sum(stop - start for _, _, start, stop in ranges)
        update, loss = self._update, None
        try:
            loss = inner(model, inputs, num_items_in_batch, *args, **kwargs)
        finally:
            update.microbatch(**counts, loss_sum=self._loss_sum(loss, num_items_in_batch))
        return loss

    def _around_save_checkpoint(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """A save, which is accepted when every process is through with it."""
        if self.run is None:
            return inner(*args, **kwargs)
        trainer = self._trainer
        number = trainer.state.global_step
        uri = os.path.join(trainer.args.output_dir, f"checkpoint-{number}")
        checkpoint = self.run.checkpoint(f"checkpoint-{number}", update=number, uri=uri, positions=self.drawn.position())
        self.cursor = checkpoint.cursor()
        try:
            returned = inner(*args, **kwargs)
            trainer.accelerator.wait_for_everyone()
        except BaseException:
            checkpoint.rejected()
            raise
        checkpoint.accepted()
        return returned

    def _around_prediction_step(self, inner: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._evaluated is not None:
            self._evaluated.append(self._counted(inputs))
        return inner(model, inputs, *args, **kwargs)

    def _around_evaluate(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """An evaluation; one over several data sets is one for each of them, and nothing by itself."""
        outer, self._evaluated = self._evaluated, []
        began = time.monotonic()
        try:
            returned = inner(*args, **kwargs)
            if self.run is not None and self._evaluated:
                prefix = kwargs.get("metric_key_prefix") or (args[2] if len(args) > 2 else "eval")
                seconds, found = time.monotonic() - began, totals(self._evaluated)
                self.run.evaluation(name=prefix, update=self._trainer.state.global_step, seconds=seconds, **found)
        finally:
            self._evaluated = outer
        return returned

    def _counts(self, inputs: Mapping[str, Any]) -> Mapping[str, object]:
        """What a batch holds, as its loss counts it."""
        if self._counts_of is not None:
            return self._counts_of(inputs)
        trainer = self._trainer
        tokens = inputs.get(getattr(trainer.model, "main_input_name", "input_ids"))
        mask, labels, shifted = inputs.get("attention_mask"), inputs.get("labels"), inputs.get("shift_labels")
        slots = None if tokens is None else input_slots(tokens)
        targets = None
        if shifted is not None:
            targets = valid_targets(shifted, shift=False)
        elif labels is not None:
            targets = valid_targets(labels, shift=shifts_labels(trainer)) if labels.ndim > 1 else (labels != -100).sum()
        return {
            "input_slots": slots,
            "consumed_tokens": slots if mask is None or mask.ndim != 2 else consumed_tokens(mask),
            "valid_targets": targets,
            "samples": None if tokens is None else len(tokens),
        }

    def _loss_sum(self, loss: Any, divisor: Any) -> Any:
        """The sum of the losses of a microbatch, where the trainer has divided it by the targets of the whole group."""
        trainer = self._trainer
        plain = trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None and trainer.label_smoother is None
        routed = getattr(trainer.model.config, "output_router_logits", False)
        if loss is None or divisor is None or not plain or routed or trainer.args.n_gpu > 1 or accelerator_mesh(trainer) is not None:
            return None
        factor = trainer.accelerator.num_processes if trainer.args.average_tokens_across_devices else 1
        return loss * divisor / factor

    def _conventions(self) -> ledger_client.Conventions:
        """What the trainer's arguments say of the numbers."""
        args = self._trainer.args
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else None
        return ledger_client.Conventions(
            optimizer=str(getattr(args.optim, "value", args.optim)), precision=precision, schedule_clock="applied_updates",
            sample_meaning="element of the data set", data={"unit": "position"},
        )  # fmt: skip


def shifts_labels(trainer: Any) -> bool:
    """Whether the model's loss shifts the labels, as the trainer itself judges it; older ones do not say."""
    config = getattr(trainer.model, "config", None)
    return bool(getattr(trainer, "_loss_shifts_labels", not getattr(config, "is_encoder_decoder", False)))
