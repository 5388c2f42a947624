"""Loops on DeepSpeed engines: updates as the engine accumulates them, and checkpoints as its checkpoint engine completes them.

    engine, *_ = deepspeed.initialize(...)
    ledger = DeepSpeedLedger(engine, "llama-8b", project="pretraining")
    engine.load_checkpoint("out")
    for batch in loader:
        ledger.microbatch(**counts_of(batch))
        engine.backward(loss_of(engine, batch))
        engine.step()
    engine.save_checkpoint("out")
    ledger.close()

| recorded | when |
|---|---|
| attempt | before the first microbatch or save; after `load_checkpoint` as resumed from what was loaded |
| microbatch | when the loop says so; with a pipeline engine, when it draws one from `ledger.microbatches(...)` |
| applied, or skipped, `overflow` | `step` or `train_batch` has advanced `global_steps`: by `was_step_applied` |
| checkpoint started | `save_checkpoint` is called |
| checkpoint accepted | `save_checkpoint` has returned; of a decoupled checkpoint engine, its `commit`. Rejected where either raises |
| cursor | in the client state, read by `load_checkpoint` |
| rollback | `load_checkpoint` after the first update |
| counters | after each update: `global_steps`, `skipped_steps` |

`was_step_applied` is not enough under `torch_autocast` in float16 without ZeRO: there a scaler of torch withholds the step, the engine
does not ask it, and `skipped_steps` stands still, which the ledger says. The scaler is asked instead.

`engine.backward` divides by the number of accumulation steps: that is the engine's convention. An optimizer without loss scaling and
without a check for overflow steps whatever its gradient is.
"""

from __future__ import annotations

import os

import torch.distributed

import ledger_client
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.loop import Loop, gathered_layout, replaced
from ledger_client.integrations.torch import StepWatch, around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Literal

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.update import Update

CURSOR = "training_ledger"
"""The key of the cursor in the client state."""


def engine_layout(engine: Any) -> ledger_client.Layout:
    """Which ranks hold the same examples, as the engine's process groups say. All ranks must ask, as each knows its own groups only."""
    rank, parts = torch.distributed.get_rank(), engine.sequence_parallel_size
    group = engine.data_parallel_group
    # Ranks that share a sequence lie side by side where a library for sequence parallelism keeps the groups to itself.
    dp_rank = rank // parts if group is None else torch.distributed.get_rank(group)
    part = torch.distributed.get_rank(engine.seq_parallel_group) if parts > 1 else 0
    return gathered_layout(dp_rank, part, parts)


def engine_conventions(engine: Any) -> ledger_client.Conventions:
    """What the engine's configuration says of the numbers."""
    clock: Literal["attempted_updates", "applied_updates"] | None = None
    if engine.lr_scheduler is not None:
        clock = "attempted_updates" if engine.torch_autocast_z0_gradscaler else "applied_updates"
    precision = "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else None
    return ledger_client.Conventions(gradient_reducer="mean", accumulation_divides="trainer", schedule_clock=clock, precision=precision)


class DeepSpeedLedger(Loop):
    """What records a loop on an engine. Every rank makes one, before `load_checkpoint`; the options go to `ledger_client.start`.

    Raises: ValueError where the engine has taken steps already.
    """

    def __init__(self, engine: Any, run: str, **options: Any) -> None:
        if engine.global_steps:
            raise ValueError(
                f"the engine stands at step {engine.global_steps} already: make the ledger before load_checkpoint, so that it sees what "
                "is resumed from"
            )
        place = {"layout": engine_layout(engine), "rank": torch.distributed.get_rank(), "conventions": engine_conventions(engine)}
        super().__init__(run, place, options)
        self._engine = engine
        self._watch: StepWatch | None = None
        self._pending: Checkpoint | None = None
        step = "train_batch" if engine.pipeline_parallelism else "step"
        # Every rank opens the attempt, also one that has no microbatches of its own.
        self._undo.append(around(engine, step, before=lambda: self.run, after=self._stepped))
        self._undo.append(replaced(engine, "save_checkpoint", self._around_save_checkpoint))
        self._undo.append(replaced(engine, "load_checkpoint", self._around_load_checkpoint))
        if engine.checkpoint_engine.is_decoupled():
            self._undo.append(replaced(engine.checkpoint_engine, "commit", self._around_commit))

    def microbatches(self, batches: Iterable[Any], counts: Callable[[Any], Mapping[str, Any]]) -> Iterator[Any]:
        """The batches themselves, each recorded as a microbatch when it is drawn: what `train_batch(data_iter=)` of a pipeline is given.

        `counts` gives what `microbatch` takes. In a pipeline the first and the last stage draw the same batches, and are replicas.
        """
        for batch in batches:
            self.microbatch(**counts(batch))
            yield batch

    def _begun(self) -> Update:
        engine = self._engine
        scaler = engine.torch_autocast_z0_gradscaler
        if scaler is not None:
            self._watch = StepWatch(engine.optimizer, scaler)
        return self.run.update(engine.global_steps + 1)

    def leave(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        super().leave()

    def _stepped(self, returned: object) -> None:
        """The engine has made its step, which ends the update at a boundary of the accumulation."""
        update, engine = self._update, self._engine
        if update is None or engine.global_steps < update.number:
            return
        if self._watch is not None:
            self._watch.end()
            self._watch.tell(update)
        elif engine.was_step_applied():
            update.applied()
        else:
            update.skipped("overflow")
        self.leave()
        for name in ("global_steps", "skipped_steps"):
            self.run.counter(name, getattr(engine, name), update=engine.global_steps)

    def _around_save_checkpoint(
        self, inner: Any, save_dir: Any, tag: Any = None, client_state: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        engine = self._engine
        name = f"global_step{engine.global_steps}" if tag is None else str(tag)
        checkpoint = self.save_begins(name, engine.global_steps, os.path.join(save_dir, name))
        state = {**(client_state or {}), CURSOR: checkpoint.cursor()}
        try:
            returned = inner(save_dir, tag, state, *arguments, **options)
        except BaseException:
            checkpoint.rejected()
            raise
        if engine.checkpoint_engine.is_decoupled():
            self._pending = checkpoint
        else:
            checkpoint.accepted()
        return returned

    def _around_commit(self, inner: Any, *arguments: Any, **options: Any) -> Any:
        """The files of a decoupled save are complete, or will never be."""
        checkpoint, self._pending = self._pending, None
        try:
            returned = inner(*arguments, **options)
        except BaseException:
            if checkpoint is not None:
                checkpoint.rejected()
            raise
        if checkpoint is not None:
            checkpoint.accepted()
        return returned

    def _around_load_checkpoint(
        self,
        inner: Any,
        load_dir: Any,
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """A state has been loaded. Weights alone are none: the engine counts its steps on as if nothing had been."""
        returned = inner(
            load_dir, tag, load_module_strict, load_optimizer_states, load_lr_scheduler_states, load_module_only, *arguments, **options
        )
        path, state = returned
        if path is not None and not load_module_only:
            name = os.path.basename(os.path.dirname(path))
            self.has_loaded(resume_source(name, state.get(CURSOR), self._engine.global_steps))
        return returned
