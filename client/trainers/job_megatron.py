"""Ranks of one job on Megatron Core.

`python job_megatron.py alone`: a withheld update, a crash in the middle of an accumulation, a resume, and an iteration passed over; then
saves that fail, a pass that is run again, and a rollback.

`python job_megatron.py WAY`, two ranks: `data`, `tensor`, `pipeline` or `context`.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.rerun_state_machine import RerunDataIterator, RerunMode, initialize_rerun_state_machine
from on_processor import on_processor
from tiny_megatron import Tiny, rows

from ledger_client.integrations.megatron import MegatronLedger, accept_when_finalized
from ledger_client.integrations.torch import saving

WAYS = {"data": {}, "tensor": {"tensor_model_parallel_size": 2}, "pipeline": {"pipeline_model_parallel_size": 2},
        "context": {"context_parallel_size": 2}}  # fmt: skip


def state_of(tiny: Tiny, cursor: Any) -> dict[str, Any]:
    """What is saved."""
    return {"model": tiny.model.module.sharded_state_dict(), "training_ledger": cursor}


def saved(tiny: Tiny, ledger: MegatronLedger, name: str) -> AsyncCallsQueue:
    """An asynchronous save that has begun."""
    queue = AsyncCallsQueue()
    Path(name).mkdir()
    checkpoint = ledger.save_begins(name, uri=str(Path(name).absolute()))
    with on_processor():
        request = dist_checkpointing.save(state_of(tiny, checkpoint.cursor()), name, async_sharded_save=True)
        accept_when_finalized(checkpoint, request)
        queue.schedule_async_request(request)
    return queue


def finalized(queue: AsyncCallsQueue) -> None:
    """Wait for it."""
    with on_processor():
        queue.maybe_finalize_async_calls(blocking=True)


def loaded(tiny: Tiny, ledger: MegatronLedger, name: str, iteration: int) -> None:
    """Load a state."""
    with on_processor():
        state = dist_checkpointing.load(state_of(tiny, None), name)
    tiny.model.module.load_state_dict(state["model"])
    ledger.loaded(name, state["training_ledger"], iteration)


def crashing() -> None:
    """Two launches."""
    tiny = Tiny()
    ledger = MegatronLedger([tiny.model], tiny.optimizer, "megatron")
    batches = ledger.batches(rows(0))
    tiny.update(batches)
    tiny.poisoned = True
    tiny.update(batches)
    tiny.poisoned = False
    tiny.update(batches)
    queue = saved(tiny, ledger, "iter_3")
    tiny.update(batches)  # while it is written
    finalized(queue)
    tiny.passes(batches, 1)
    ledger.close(ended="crashed")

    with MegatronLedger(tiny.model, tiny.optimizer, "megatron") as ledger:
        loaded(tiny, ledger, "iter_3", 3)
        batches = ledger.batches(rows(6), position=6)
        with ledger.passing_over():
            for _ in range(2):
                next(batches)
        tiny.update(batches)
        finalized(saved(tiny, ledger, "iter_5"))


def faults() -> None:
    """What goes wrong, and what is done again."""
    tiny = Tiny()
    with MegatronLedger(tiny.model, tiny.optimizer, "megatron-faults", project="faults") as ledger:
        initialize_rerun_state_machine(mode=RerunMode.VALIDATE_RESULTS)
        batches = RerunDataIterator(ledger.batches(rows(0)))
        tiny.passes(batches)
        batches.rewind()
        tiny.passes(batches)
        with on_processor():
            tiny.optimizer.step()
        with saving(ledger.run, "one", update=ledger.number) as checkpoint:
            Path("one").mkdir()
            with on_processor():
                dist_checkpointing.save(state_of(tiny, checkpoint.cursor()), "one")
        try:
            with saving(ledger.run, "missing", update=ledger.number), on_processor():
                dist_checkpointing.save(state_of(tiny, None), "missing")
        except OSError as error:
            print(type(error).__name__)
        others = ledger.batches(({"tokens": row["tokens"], "cu_seqlens": None} for row in rows(2)), position=None)
        padded = ledger.batches(({**row, "cu_seqlens": None} for row in rows(2)), position=None)
        next(others)
        next(padded)
        ledger.skipped("spike_guard")
        loaded(tiny, ledger, "one", 1)
        tiny.update(padded)


def ranks(way: str) -> None:
    """Two updates of two microbatches, and their checkpoint."""
    tiny = Tiny(**WAYS[way])
    with MegatronLedger(tiny.model, tiny.optimizer, f"megatron-{way}") as ledger:
        place, places = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
        draws = parallel_state.get_tensor_model_parallel_rank() == 0
        batches = ledger.batches(rows(0, place, places)) if draws else rows(0, place, places)
        for _ in range(2):
            tiny.update(batches)
        ledger.save_begins("iter_2").accepted()


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    if sys.argv[1] == "alone":
        crashing()
        parallel_state.destroy_model_parallel()
        faults()
    else:
        ranks(sys.argv[1])
    torch.distributed.destroy_process_group()
