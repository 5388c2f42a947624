"""Loops on Megatron Core: batches as the training iterator is drawn from, updates by what the optimizer's step says of itself.

    ledger = MegatronLedger(model, optimizer, "gpt-8b", project="pretraining")
    batches = ledger.batches(iterator)
    for _ in range(iterations):
        forward_backward(forward_step_func=forward_step, data_iterator=batches, model=model, ...)
        optimizer.step()

| recorded | when |
|---|---|
| attempt | before the first batch or save; what `loaded` was told until then is what it resumes from |
| microbatch | a batch is drawn from `batches(...)`, in the ranks that draw; its samples as Megatron's samplers deal them |
| applied, or skipped, `overflow` | `optimizer.step` has returned: by `update_successful`, the first of what it returns |
| passed over | batches that are drawn in a `passing_over` block |
| checkpoint started | `save_begins` is called |
| checkpoint accepted | the finalization of the asynchronous save is over: `accept_when_finalized`; else the loop says so |
| cursor | where the loop puts it, given to `loaded` |
| rollback | `loaded` after the first update |

Batches are counted whole, before they are split over context-parallel ranks: all ranks of a data-parallel rank are replicas of each other.
A pass that is run again on saved batches, as `RerunDataIterator` does, draws nothing and is counted once.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch.distributed
from megatron.core import parallel_state
from megatron.core.utils import get_model_config

import ledger_client
from ledger_client.counting import input_slots, valid_targets
from ledger_client.integrations.batches import STREAM, Counting
from ledger_client.integrations.cursor import resume_source
from ledger_client.integrations.loop import Loop, gathered_layout
from ledger_client.integrations.torch import around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.update import Update

LANGUAGE = {"tokens", "labels", "loss_mask", "position_ids", "attention_mask"}
"""What a batch of `GPTDataset` is made of. Its training samples are cut from one another, and are never padded."""


def pretraining_counts(batch: Mapping[str, Any]) -> dict[str, object]:
    """What a batch of `GPTDataset` holds: its loss mask says which labels are scored, and every slot holds a token.

    In batches with anything else in them there may be padding: then the consumed tokens are unknown.
    """
    slots = input_slots(batch["tokens"])
    return {
        "input_slots": slots,
        "consumed_tokens": slots if set(batch) <= LANGUAGE else None,
        "valid_targets": valid_targets(batch["labels"], None, shift=False, mask=batch["loss_mask"]),
        "samples": len(batch["tokens"]),
    }


def parallel_layout() -> ledger_client.Layout:
    """Which ranks hold the same examples, as Megatron's parallel state says. All ranks must ask, as each knows its own place only."""
    return gathered_layout(parallel_state.get_data_parallel_rank())


def model_conventions(model: Any) -> ledger_client.Conventions:
    """What the configuration of a model, or of its first chunk, says of the numbers."""
    config = get_model_config(model[0] if isinstance(model, list) else model)
    per_token = config.calculate_per_token_loss
    return ledger_client.Conventions(
        objective="token_mean" if per_token else None, gradient_reducer="sum" if per_token else "mean",
        accumulation_divides="nobody" if per_token else "trainer", precision="fp16" if config.fp16 else "bf16" if config.bf16 else None,
    )  # fmt: skip


class MegatronLedger(Loop):
    """What records a loop on Megatron Core. Every rank makes one; the options go to `ledger_client.start`."""

    def __init__(self, model: Any, optimizer: Any, run: str, **options: Any) -> None:
        place = {"layout": parallel_layout(), "rank": torch.distributed.get_rank(), "conventions": model_conventions(model)}
        super().__init__(run, place, options)
        self.number = 0
        """The last iteration that is over, in the trainer's own count; `loaded` sets it."""
        self._passing = False
        # Every rank opens the attempt, also one that draws no batches.
        self._undo.append(around(optimizer, "step", before=lambda: self.run, after=self._stepped))

    def batches(
        self, iterator: Iterable[Any], counts: Callable[[Any], Mapping[str, object]] = pretraining_counts, *, position: int | None = 0
    ) -> Iterator[Any]:
        """The batches of the training iterator themselves, each recorded when it is drawn.

        `position`: the samples that all data-parallel ranks had consumed before, `consumed_train_samples` of Megatron-LM; None where its
        samplers do not deal them. `counts`: what a batch holds, whole.
        """
        counting, rank = Counting(counts), parallel_state.get_data_parallel_rank()
        ranks = parallel_state.get_data_parallel_world_size()
        for batch in iterator:
            counted = counting(batch)
            ranges = None
            if position is not None and type(size := counted.get("samples")) is int:
                start = position + rank * size
                ranges = [(STREAM, 0, start, start + size)]
                position += ranks * size
                self.positions = {STREAM: {"epoch": 0, "position": position}}
            if not self._passing:
                self.microbatch(**counted, ranges=ranges)
            elif ranges is not None:
                self.run.pass_over(STREAM, *ranges[0][2:], update=self.number + 1)
            yield batch

    @contextmanager
    def passing_over(self) -> Iterator[None]:
        """An iteration that draws its batches and computes nothing, as `dummy_train_step` of Megatron-LM: its number counts."""
        self._passing = True
        try:
            yield
        finally:
            self._passing = False
        self.number += 1

    def save_begins(self, name: str, update: int | None = None, uri: str | None = None) -> Checkpoint:
        """A save begins, by default of the state after the last iteration: put its `cursor()` into what is saved."""
        return super().save_begins(name, self.number if update is None else update, uri)

    def loaded(self, name: str, cursor: Mapping[str, object] | None, iteration: int) -> None:
        """A state has been loaded: the name of its checkpoint, the cursor found in it, and the iteration at which it stands."""
        self.number = iteration
        self.has_loaded(resume_source(name, cursor, iteration))

    def _begun(self) -> Update:
        return self.run.update(self.number + 1)

    def _stepped(self, returned: tuple[Any, ...]) -> None:
        self.number += 1
        update = self._update
        if update is not None:
            if returned[0]:
                update.applied()
            else:
                update.skipped("overflow")
            self.leave()


def accept_when_finalized(checkpoint: Checkpoint, request: Any) -> None:
    """Accept a checkpoint in the finalization of its asynchronous save; all ranks must ask, before the request is scheduled.

    A save that is never finalized stays started. Raises: RuntimeError where the request is scheduled already.
    """
    request.add_finalize_fn(checkpoint.accepted)
