"""Two ranks of torchtitan's Trainer: they hold different rows, and end in update 4 and go on; or the same ones."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import tiny_titan
import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.config.configs import ParallelismConfig

from ledger_client.integrations.torchtitan import record

WAYS: dict[str, dict[str, Any]] = {
    "data": {"data_parallel_shard_degree": 2},
    "tensor": {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2, "enable_sequence_parallel": False},
    "pipeline": {"data_parallel_shard_degree": 1, "pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B"},
}


def trained(way: str, steps: int, crashing: int | None = None) -> None:
    """One launch."""
    ways = ParallelismConfig(spmd_backend="partial_dtensor", **WAYS[way])
    trainer = tiny_titan.tiny(
        dump_folder=str(Path.cwd() / way), steps=steps, layers=2, parallel=1 if way == "data" else 2, parallelism=ways
    ).build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo cannot scale while it reduces.
    record(trainer, f"torchtitan-{way}")
    tiny_titan.crashes_in(trainer, crashing)
    with suppress(RuntimeError):
        trainer.train()
    trainer.close()


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    for way in sys.argv[1:]:
        if way == "data":
            trained(way, 4, crashing=4)
        trained(way, 4 if way == "data" else 2)
    torch.distributed.destroy_process_group()
