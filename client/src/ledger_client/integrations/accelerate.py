"""Loops on Hugging Face Accelerate: updates as `accelerator.accumulate` groups them, and checkpoints as `save_state` ends them.

    ledger = AccelerateLedger(accelerator, optimizer, "llama-8b", project="pretraining")
    for batch in loader:
        with accelerator.accumulate(model):
            ledger.microbatch(**counts_of(batch))
            accelerator.backward(loss_of(batch))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("step-10")
    ledger.close()

| recorded | when |
|---|---|
| attempt | before the first microbatch or save; after `load_state` as resumed from what was loaded |
| microbatch | when the loop says so, inside `accumulate` |
| applied, or skipped, `overflow` | when that `accumulate` block is left in which the gradients were synchronised: as `StepWatch` saw it |
| checkpoint started | `save_state` is called |
| checkpoint accepted | `save_state` has returned in every process; rejected where it raises |
| cursor | a file beside the saved state, read by `load_state` |
| rollback | `load_state` after the first update |

Where there is no scaler, as under DeepSpeed, `accelerator.optimizer_step_was_skipped` tells. With a scaler it is not enough: it asks
whether the optimizer's step was called, and fused optimizers are called on a withheld step too.

`accelerator.backward` divides by the number of accumulation steps, also in a shorter last group: that is the trainer's convention.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path

import ledger_client
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.torch import StepWatch, around, mesh_layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.run import Run
    from ledger_client.update import Update

CURSOR_FILE = "training_ledger.json"


def accelerator_layout(accelerator: Any, cp_counts: Any = "whole") -> ledger_client.Layout:
    """Which processes hold the same examples; every one its own where no device mesh says otherwise."""
    mesh = getattr(accelerator, "torch_device_mesh", None)
    return ledger_client.Layout(dp=accelerator.num_processes) if mesh is None else mesh_layout(mesh, cp_counts=cp_counts)


def judge(watch: StepWatch, accelerator: Any) -> None:
    """Where no scaler tells, and where the optimizer is another library's, the accelerator's own word stands."""
    watch.end()
    withheld = bool(accelerator.optimizer_step_was_skipped)
    if watch.skipped is None and (withheld or watch.stepped is None):
        watch.skipped = withheld


class AccelerateLedger:
    """What records a loop on an accelerator. `optimizer` is the one whose steps are the updates; the rest goes to `ledger_client.start`."""

    def __init__(self, accelerator: Any, optimizer: Any, run: str, **options: Any) -> None:
        self.number = 0
        """The last update that is over, in the trainer's own count; set it after loading a state that holds no cursor."""
        self.positions: Mapping[str, object] | None = None
        """Where each data stream stands, told with every checkpoint: `{stream: {"epoch": 0, "position": 4}}`."""
        self._accelerator = accelerator
        self._optimizer = getattr(optimizer, "optimizer", optimizer)
        self._started: Run | None = None
        self._source: dict[str, object] | None = None
        self._name = run
        self._options = options
        self._update: Update | None = None
        self._watch: StepWatch | None = None
        self._checkpoint: Checkpoint | None = None
        self._loaded: Path | None = None
        self._undo = self._wrapped()

    @property
    def run(self) -> Run:
        """The run, which is started when it is first asked for."""
        if self._started is None:
            accelerator = self._accelerator
            place = {"layout": accelerator_layout(accelerator), "rank": accelerator.process_index}
            self._started = ledger_client.start(self._name, resumed_from=self._source, **(place | self._options))
        return self._started

    def microbatch(
        self,
        *,
        input_slots: object = None,
        consumed_tokens: object = None,
        valid_targets: object = None,
        samples: object = None,
        loss_sum: object = None,
        ranges: Iterable[Sequence[object]] | None = None,
    ) -> None:
        """Add one forward/backward pass of this rank to the update under way; as `Update.microbatch`."""
        if self._update is None:
            self._update = self.run.update(self.number + 1)
            self._watch = StepWatch(self._optimizer, self._accelerator.scaler)
        self._update.microbatch(
            input_slots=input_slots, consumed_tokens=consumed_tokens, valid_targets=valid_targets, samples=samples, loss_sum=loss_sum,
            ranges=ranges,
        )  # fmt: skip

    def skipped(self, reason: str = "other") -> None:
        """The loop withholds the step of the update under way, for a reason of its own; as `Update.skipped`."""
        if self._update is not None:
            self._update.skipped(reason)
            self._over()

    def close(self, *, ended: str | None = None) -> bool:
        """Leave the accelerator as it was and close the run; as `Run.close`."""
        for undo in self._undo:
            undo()
        self._undo = []
        if self._watch is not None:
            self._watch.end()
        return self._started is not None and self._started.close(ended=ended)

    def __enter__(self) -> AccelerateLedger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        started = self._started
        if started is not None:
            started.__exit__(kind, error, trace)
        self.close()

    def _wrapped(self) -> list[Callable[[], None]]:
        accelerator = self._accelerator
        accumulate, save_state = accelerator.accumulate, accelerator.save_state

        @contextmanager
        def accumulated(*models: Any) -> Iterator[None]:
            with accumulate(*models):
                yield
            if accelerator.sync_gradients:
                self._synchronised()

        def saved(output_dir: str | None = None, *arguments: Any, **options: Any) -> Any:
            named = f"checkpoint_{accelerator.save_iteration}" if output_dir is None else os.path.basename(os.path.normpath(output_dir))
            uri = None if output_dir is None else str(output_dir)
            self._checkpoint = checkpoint = self.run.checkpoint(named, update=self.number, uri=uri, positions=self.positions)
            try:
                returned = save_state(output_dir, *arguments, **options)
                accelerator.wait_for_everyone()
            except BaseException:
                checkpoint.rejected()
                raise
            checkpoint.accepted()
            return returned

        accelerator.accumulate, accelerator.save_state = accumulated, saved
        return [
            lambda: delattr(accelerator, "accumulate"),
            lambda: delattr(accelerator, "save_state"),
            around(accelerator, "load_state", after=self._read),
            accelerator.register_save_state_pre_hook(self._write).remove,
            accelerator.register_load_state_pre_hook(self._note).remove,
        ]

    def _synchronised(self) -> None:
        """The gradients were those of a whole group: whatever came of the step, the update is over."""
        if self._update is None or self._watch is None:
            return
        judge(self._watch, self._accelerator)
        self._watch.tell(self._update)
        self._over()

    def _over(self) -> None:
        assert self._update is not None and self._watch is not None
        self._watch.end()
        self._update.leave()
        self._update = self._watch = None
        self.number += 1

    def _write(self, models: object, weights: object, output_dir: str) -> None:
        if self._accelerator.is_main_process and self._checkpoint is not None:
            Path(output_dir, CURSOR_FILE).write_text(json.dumps(self._checkpoint.cursor()), encoding="utf-8")

    def _note(self, models: object, input_dir: str) -> None:
        self._loaded = Path(input_dir)

    def _read(self, returned: object) -> None:
        """A state has been loaded: where the attempt begins, or goes back to."""
        if self._loaded is None:
            return
        file = self._loaded / CURSOR_FILE
        cursor = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        self._source = resume_source(self._loaded.name, cursor, None)
        if cursor is not None:
            self.number = cursor["update"]
        if self._started is not None:
            self._started.rolled_back_to(self._source)
