"""A job of four ranks that is killed and started again until it is told that it is enough: `python killed_job.py FOLDER URL`.

Each rank trains its share of a small language model with DistributedDataParallel over gloo, records what it does, and keeps a tally of
its own: one line before each record call and one behind it, on the disk before the job goes on. The launcher starts all ranks again as
soon as one has died, from the newest checkpoint; it holds the libraries, and the ranks are forked from it.
"""

import importlib
import itertools
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ledger_client
from ledger_client import Conventions, Layout
from ledger_client.counting import consumed_tokens, input_slots, valid_targets

RANKS = 4
CHECKPOINT_EVERY = 4
MICROBATCHES = 2
SEQUENCES, LENGTH, VOCABULARY = 3, 12, 32
PADDING, IGNORED = 0, -100
ENOUGH = "enough"
"""The file that ends the job, at its next checkpoint."""


class Model(nn.Module):
    """One transformer block that predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each position."""
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        logits: torch.Tensor = self.head(self.block(self.embedding(tokens), src_mask=causal, is_causal=True))
        return logits


class Tally:
    """What a rank says it did, line by line, on the disk when `note` returns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, **line: Any) -> None:
        """One line."""
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(self._descriptor)


def batch(update: int, microbatch: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens with padding behind them, and the labels of the next tokens, some of which are not scored."""
    generator = torch.Generator().manual_seed((update * MICROBATCHES + microbatch) * RANKS + rank)
    tokens = torch.randint(1, VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (SEQUENCES, 1), generator=generator)
    tokens[torch.arange(LENGTH) >= lengths] = PADDING
    labels = tokens.masked_fill(tokens == PADDING, IGNORED)
    prompt = torch.randint(0, 2, (SEQUENCES, 1), generator=generator)
    labels[torch.arange(LENGTH) < prompt] = IGNORED
    return tokens, labels


def trained(model: nn.Module, run: ledger_client.Run, tally: Tally, optimizer: torch.optim.Optimizer, update: int, rank: int) -> None:
    """One update: its microbatches, and the step unless the gradient is not finite."""
    said: dict[str, Any] = {"attempt": run.attempt, "rank": rank, "update": update}
    optimizer.zero_grad()
    with run.update(update) as group:
        for microbatch in range(MICROBATCHES):
            tokens, labels = batch(update, microbatch, rank)
            model.require_backward_grad_sync = microbatch == MICROBATCHES - 1
            logits = model(tokens)[:, :-1].flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
            # A loss that overflows on one rank spoils the gradient of all.
            (loss * (float("inf") if update % 7 == 3 and rank == 2 else 1.0)).backward()
            counts = {
                "input_slots": input_slots(tokens),
                "consumed_tokens": int(consumed_tokens(tokens)),
                "valid_targets": int(valid_targets(labels)),
                "samples": SEQUENCES,
            }
            tally.note(**said, microbatch=microbatch, counts=counts, returned=False)
            group.microbatch(**counts, loss_sum=loss.detach())
            tally.note(**said, microbatch=microbatch, counts=counts, returned=True)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        outcome = "applied" if bool(norm.isfinite()) else "skipped"
        tally.note(**said, outcome=outcome, returned=False)
        if outcome == "applied":
            optimizer.step()
            group.applied()
        else:
            group.skipped("overflow")
        tally.note(**said, outcome=outcome, returned=True)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, run: ledger_client.Run, update: int, folder: Path) -> None:
    """A checkpoint with the ledger's cursor in it, under its name when all of it is on the disk."""
    checkpoint = run.checkpoint(f"step-{update}", update=update)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "update": update, "cursor": checkpoint.cursor()}
    with (folder / "saving").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "saving", folder / f"step-{update:06d}")
    checkpoint.accepted()


def rank_process(rank: int, port: int, folder: Path, url: str, newest: Path | None) -> None:
    """One rank of one launch, from the newest checkpoint to the end."""
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loaded: dict[str, Any] = {"update": 0, "cursor": None}
    if newest is not None:
        loaded = torch.load(newest, weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    # Every rank has a spool directory of its own, as on nodes that share nothing: they agree through their process group.
    run = ledger_client.start(
        "killed", project="trainers", url=url, spool=folder / f"spool-{rank}", rank=rank, layout=Layout(dp=RANKS),
        conventions=Conventions(objective="token_mean", precision="float32"), resumed_from=loaded["cursor"], flush_seconds=0.05,
    )  # fmt: skip
    tally = Tally(folder / f"tally-{rank}")
    tally.note(attempt=run.attempt, rank=rank, resumed_from=loaded["cursor"])
    for update in itertools.count(loaded["update"] + 1):
        trained(model, run, tally, optimizer, update, rank)
        if update % CHECKPOINT_EVERY == 0:
            enough = torch.tensor((folder / ENOUGH).exists())
            torch.distributed.broadcast(enough, src=0)
            # What is in a checkpoint has been recorded by all ranks.
            torch.distributed.barrier()
            if rank == 0:
                save(model, optimizer, run, update, folder / "checkpoints")
            if enough:
                break
    assert run.close(timeout=30, ended="completed" if rank == 0 else None), run.health()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def forked(rank: int, port: int, folder: Path, url: str, newest: Path | None) -> int:
    """A rank in a process of its own; gives its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        rank_process(rank, port, folder, url, newest)
        status = 0
    finally:
        # An error is told like any other, and what belongs to the launcher is left alone.
        if status:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(status)


def launch(folder: Path, url: str) -> bool:
    """Start all ranks and wait; the first that dies takes the others with it. True if all came through."""
    port, newest = free_port(), max((folder / "checkpoints").glob("step-*"), default=None)
    ranks = {forked(rank, port, folder, url, newest) for rank in range(RANKS)}
    print("ranks", *ranks, flush=True)
    through = True
    while ranks:
        ended, status = os.wait()
        ranks.discard(ended)
        if status:
            through = False
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
    return through


def main(folder: Path, url: str) -> None:
    """Launch after launch until the job is through."""
    torch.set_num_threads(1)
    # What the first DistributedDataParallel of a process imports: once here, not by every rank of every launch.
    importlib.import_module("torch._dynamo")
    (folder / "checkpoints").mkdir()
    while not launch(folder, url):
        pass
    print("through", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
