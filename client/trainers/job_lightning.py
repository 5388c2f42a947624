"""Two ranks under Lightning's DDP: the first launch loses a node in update 4, the second one goes on from the checkpoint of update 2.

Five rows, one a batch and dealt in turn, are filled up to six by the sampler, so each rank draws three an epoch: an update of two
microbatches, and one of one. In the first launch rank 1 has an infinite loss in update 2.
"""

import os
from typing import Any

import tiny_llama
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision

from ledger_client.integrations.lightning import LedgerCallback

LENGTHS = (8, 5, 6, 3, 4)


class Tiny(LightningModule):
    """A Llama."""

    def __init__(self, resumes: bool) -> None:
        super().__init__()
        self.model = tiny_llama.model()
        self.resumes = resumes

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss of a batch."""
        number = self.trainer.global_step + 1
        if number == 4 and not self.resumes:
            raise RuntimeError("the node is gone")
        loss = self.model(**batch).loss
        return loss * float("inf") if number == 2 and not self.resumes and self.global_rank == 1 else loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing is learned."""
        self.model(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.01, fused=True)


def launch(ledger: LedgerCallback, resumes: bool) -> None:
    """One launch."""
    saves = ModelCheckpoint("saves", "{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=2, max_epochs=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
        callbacks=[saves, ledger], use_distributed_sampler=False,
    )  # fmt: skip
    train, held_out = (loader(*lengths) for lengths in (LENGTHS, (8, 2)))
    trainer.fit(Tiny(resumes), train, held_out, ckpt_path="saves/step=2.ckpt" if resumes else None)


def loader(*lengths: int) -> torch.utils.data.DataLoader[Any]:
    """Rows that are dealt to the ranks in their order."""
    rows = tiny_llama.rows(*lengths)
    sampler = torch.utils.data.DistributedSampler(rows, num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False)
    return torch.utils.data.DataLoader(rows, batch_size=1, sampler=sampler)


def main() -> None:
    """Two launches; the recording of the second one is closed when the interpreter ends."""
    try:
        with LedgerCallback("ranks-lightning") as ledger:
            launch(ledger, resumes=False)
    except RuntimeError as error:
        assert str(error) == "the node is gone"
    launch(LedgerCallback("ranks-lightning"), resumes=True)


if __name__ == "__main__":
    main()
