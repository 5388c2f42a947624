"""Ranks of one job on DeepSpeed.

`python job_deepspeed.py ranks`, two of them: two launches under ZeRO 1, the second from what the first has saved; a pipeline of two
stages, which draws its batches by itself; and halves of the same sequences.

`python job_deepspeed.py decoupled`, alone: saves that another process writes, until it is killed.
"""

import itertools
import os
import sys
from collections.abc import Iterable
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "CROSS_SIZE": "1", "CROSS_RANK": "0", "LOCAL_SIZE": os.environ["WORLD_SIZE"]}
import deepspeed  # looks for an accelerator when it is imported
import torch
import torch.distributed as dist

from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.integrations.deepspeed import DeepSpeedLedger

SLOTS, VOCABULARY = 8, 11
LENGTHS = {0: (8, 5), 1: (6, 3)}
CONFIG = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
}  # fmt: skip
Pair = tuple[torch.Tensor, torch.Tensor]


def rows(rank: int) -> list[Pair]:
    """Batches of one padded row: its tokens, and labels that are shifted already."""
    found = []
    for length in LENGTHS[rank]:
        tokens = (1 + torch.arange(SLOTS)) * (torch.arange(SLOTS) < length)
        following = torch.cat([tokens[1:], torch.tensor([0])])
        found.append((tokens[None], torch.where(following == 0, -100, following)[None]))
    return found


def counts(batch: Pair) -> dict[str, Any]:
    """What a batch holds."""
    tokens, labels = batch
    return {
        "input_slots": input_slots(tokens), "consumed_tokens": consumed_tokens(tokens),
        "valid_targets": valid_targets(labels, shift=False), "samples": len(tokens),
    }  # fmt: skip


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over the targets."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def layers() -> list[torch.nn.Module]:
    """A next-token model that sees one token."""
    torch.manual_seed(0)
    return [torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)]


def engine_of(model: torch.nn.Module, **config: Any) -> Any:
    """The model on an engine."""
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG | config)
    return engine


def train(engine: Any, ledger: DeepSpeedLedger, batches: Iterable[Pair]) -> None:
    """An update for every second batch."""
    for tokens, labels in batches:
        ledger.microbatch(**counts((tokens, labels)))
        engine.backward(loss(engine(tokens), labels))
        engine.step()


def data(rank: int) -> None:
    """Each rank holds rows of its own."""
    for resumes in (False, True):
        engine = engine_of(torch.nn.Sequential(*layers()), bf16={"enabled": True}, zero_optimization={"stage": 1})
        ledger = DeepSpeedLedger(engine, "deepspeed-data")
        if resumes:
            engine.load_checkpoint("data")
        with ledger:
            train(engine, ledger, rows(rank) * 2)
            engine.save_checkpoint("data")


def pipeline() -> None:
    """Both stages draw the same batches; an evaluation in between draws others, which are not trained."""
    engine = engine_of(deepspeed.pipe.PipelineModule(layers=layers(), num_stages=2, loss_fn=loss, partition_method="uniform"))
    with DeepSpeedLedger(engine, "deepspeed-pipeline") as ledger:
        batches = ledger.microbatches(itertools.cycle(rows(0)), counts)
        for _ in range(2):
            engine.train_batch(data_iter=batches)
            engine.eval_batch(data_iter=itertools.cycle(rows(1)))
        engine.save_checkpoint("pipeline")


def sequence(rank: int) -> None:
    """Each rank counts its own half."""
    engine = engine_of(torch.nn.Linear(2, 2), data_parallel_size=1, sequence_parallel_size=2)
    with DeepSpeedLedger(engine, "deepspeed-sequence") as ledger:
        for _ in range(2):
            ledger.microbatch(input_slots=4, consumed_tokens=4, valid_targets=3 + rank, samples=1)
            engine.backward(engine(torch.ones(1, 2)).sum())
            engine.step()


def decoupled() -> None:
    """A save is over when another process has written its files; that is asked at the next step."""
    writer = {"type": "PYTHON", "decoupled": True, "data_parallel": "REPLICA"}
    engine = engine_of(torch.nn.Sequential(*layers()), checkpoint={"writer": writer})
    ledger = DeepSpeedLedger(engine, "deepspeed-decoupled")
    for tag in ("whole", "half"):
        train(engine, ledger, rows(0))
        engine.save_checkpoint("decoupled", tag=tag)
    process = engine.checkpoint_engine.ckpt_process
    process.kill()
    process.join()
    try:
        train(engine, ledger, rows(0))
    except RuntimeError as error:
        print(error)
    ledger.close(ended="crashed")
    engine.destroy()


def main(what: str) -> None:
    """One of the above."""
    # DeepSpeed would compile a collective of its own for the processor.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    if what == "ranks":
        data(dist.get_rank())
        pipeline()
        deepspeed.utils.groups.mpu = None  # it has the pipeline's until the process ends
        sequence(dist.get_rank())
    else:
        decoupled()
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
