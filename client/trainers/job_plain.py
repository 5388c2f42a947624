"""Two ranks of a plain loop, under DDP and then under FSDP2: each crashes after update 4 and goes on from the checkpoint of update 2.

Every update has two microbatches of two rows a rank. In the first launch the gradient of update 3 is not finite.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ledger_client
from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.integrations.torch import Accumulation, accept_when_done, mesh_layout, saving

SLOTS, VOCABULARY = 8, 11
ROWS = {0: (8, 5), 1: (6, 3)}
ROWS_OF_UPDATE_3 = {0: (4, 4), 1: (4, 2)}


class Model(torch.nn.Module):
    """A next-token model that sees one token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(VOCABULARY, 4)
        self.head = torch.nn.Linear(4, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.table(tokens))


def microbatch(number: int, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, mask and labels of two padded rows."""
    lengths = torch.tensor((ROWS_OF_UPDATE_3 if number == 3 else ROWS)[rank])
    mask = (torch.arange(SLOTS) < lengths[:, None]).long()
    tokens = (torch.arange(2 * SLOTS).reshape(2, SLOTS) * number) % VOCABULARY
    return tokens * mask, mask, torch.where(mask == 1, tokens, -100)


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All that this rank holds of the weights."""
    parts = [getattr(parameter, "to_local", lambda held=parameter: held)() for parameter in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts]).clone()


def one_update(run: Any, model: Any, optimizer: Any, scaler: Any, number: int, rank: int, poisoned: bool) -> None:
    """A whole update, and whether the weights moved."""
    before = weights(model)
    optimizer.zero_grad()
    with Accumulation(run, number, optimizer, scaler) as update:
        for _ in range(2):
            tokens, mask, labels = microbatch(number, rank)
            logits = model(tokens)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            update.microbatch(
                input_slots=input_slots(mask), consumed_tokens=consumed_tokens(mask), valid_targets=valid_targets(labels),
                samples=len(labels), loss_sum=loss,
            )  # fmt: skip
            scaler.scale(loss * float("inf") if poisoned and rank == 0 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(before, weights(model)) == poisoned, "a poisoned update leaves the weights as they are, and no other"


def attempt(name: str, folder: Path, rank: int, resumes: bool) -> None:
    """One launch: it ends after update 4, the first one without having saved that."""
    sharded = name == "plain-fsdp2"
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model: Any = fully_shard(Model(), mesh=mesh) if sharded else torch.nn.parallel.DistributedDataParallel(Model())
    # Under DDP a fused optimizer, whose step runs, and whose step hook fires, on a withheld update too.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=not sharded)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    path = folder / name / "2"
    cursor = None
    if resumes and sharded:
        state = {"model": model.state_dict(), "ledger": ""}
        dcp.load(state, checkpoint_id=path)
        model.load_state_dict(state["model"])
        cursor = json.loads(state["ledger"])
    elif resumes:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        cursor = state["ledger"]
    run = ledger_client.start(name, resumed_from=cursor, layout=mesh_layout(mesh))
    for number in range(3 if resumes else 1, 5):
        one_update(run, model, optimizer, scaler, number, rank, poisoned=number == 3 and not resumes)
        if number == (4 if resumes else 2):
            save(run, model, folder / name / str(number), number, rank, sharded)
    run.close(ended="completed" if resumes else "crashed")


def save(run: Any, model: Any, path: Path, number: int, rank: int, sharded: bool) -> None:
    """A checkpoint: by all ranks in the background where the weights are sharded, else by the first."""
    path.parent.mkdir(exist_ok=True)
    if sharded:
        checkpoint = run.checkpoint(f"step-{number}", update=number)
        future = dcp.async_save({"model": model.state_dict(), "ledger": json.dumps(checkpoint.cursor())}, checkpoint_id=path)
        accept_when_done(checkpoint, future)
        future.result()
    elif rank == 0:
        with saving(run, f"step-{number}", update=number) as checkpoint:
            torch.save({"model": model.state_dict(), "ledger": checkpoint.cursor()}, path)
    dist.barrier()


def main() -> None:
    """Both kinds of data parallelism, two launches each."""
    dist.init_process_group("gloo")
    rank, folder = int(os.environ["RANK"]), Path.cwd()
    for name in ("plain-ddp", "plain-fsdp2"):
        for resumes in (False, True):
            attempt(name, folder, rank, resumes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
