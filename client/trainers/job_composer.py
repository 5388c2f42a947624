"""Two ranks of Composer's Trainer under DDP: they crash in update 4 and go on from the checkpoint of update 2.

An epoch has two updates, of four rows and of one on each rank. In the first launch the loss of update 2 is not finite on one rank.
"""

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import tiny_llama
import torch
from composer import Callback, Trainer
from composer.core import Precision
from composer.models import ComposerModel
from composer.utils import dist

from ledger_client.integrations.composer import LedgerCallback

LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2, 7)


class Model(ComposerModel):
    """A tiny Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_llama.model()

    def forward(self, batch: Any) -> Any:
        """Logits and loss."""
        return self.inner(**batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        """The mean over the targets."""
        return outputs.loss


class Fate(Callback):
    """What happens to the first launch."""

    def after_loss(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 1 and dist.get_global_rank() == 0:
            state.loss = state.loss * float("inf")

    def after_backward(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 3:
            raise RuntimeError("the node is gone")


def attempt(folder: Path, resumes: bool) -> None:
    """One launch."""
    model, rows = Model(), tiny_llama.rows(*LENGTHS)
    trainer = Trainer(
        model=model, optimizers=torch.optim.AdamW(model.parameters(), fused=True), max_duration="2ep", save_folder=str(folder),
        save_interval="1ba", save_overwrite=True, device="cpu", device_train_microbatch_size=2, run_name="r", progress_bar=False,
        train_dataloader=torch.utils.data.DataLoader(rows, batch_size=4, sampler=dist.get_sampler(rows)),
        load_path=str(folder / "ep0-ba2-rank0.pt") if resumes else None,
        callbacks=[LedgerCallback("composer-ranks"), *([] if resumes else [Fate()])],
    )  # fmt: skip
    trainer.state.precision = Precision.AMP_FP16
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with suppress(RuntimeError), closing(trainer):
        trainer.fit()


if __name__ == "__main__":
    dist.initialize_dist("cpu")
    for resumes in (False, True):
        attempt(Path.cwd() / "saved", resumes)
    torch.distributed.destroy_process_group()
