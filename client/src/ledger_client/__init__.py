"""Record what a training process does, keep it through a kill, and deliver it to a Training Ledger.

    run = ledger_client.start("llama-8b", project="pretraining", layout=Layout(dp=2))
    with run.update(1) as update:
        update.microbatch(input_slots=4096, consumed_tokens=4000, valid_targets=3998, samples=2, loss_sum=9001.5)
        update.applied()
"""

from __future__ import annotations

from .checkpoint import Checkpoint
from .declaration import Conventions, Layout
from .opening import start
from .run import Run
from .update import Update

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Conventions", "Layout", "Run", "Update", "start"]
