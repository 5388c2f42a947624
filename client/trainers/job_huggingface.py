"""Two ranks over five rows, one a batch: a Hugging Face Trainer, then a loop on Accelerate that saves and loads its state.

The samplers fill up with a row that was drawn before, so that each rank draws three.
"""

from pathlib import Path

import tiny_llama
import torch
from accelerate import Accelerator
from transformers import Trainer, TrainingArguments

from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.integrations.accelerate import AccelerateLedger
from ledger_client.integrations.transformers import record

LENGTHS = (8, 5, 6, 3, 4)


def by_trainer() -> None:
    """One epoch: an update of two microbatches, and one of one."""
    arguments = TrainingArguments(
        "trainer", per_device_train_batch_size=1, gradient_accumulation_steps=2, num_train_epochs=1, save_steps=1, use_cpu=True,
        report_to=[], disable_tqdm=True, train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = Trainer(tiny_llama.model(), arguments, train_dataset=tiny_llama.rows(*LENGTHS))
    record(trainer, "ranks-transformers")
    trainer.train()


def by_loop(resumes: bool) -> None:
    """One launch of one epoch, which saves at its end; the second one begins with what the first has saved."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = tiny_llama.model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(tiny_llama.rows(*LENGTHS), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ledger = AccelerateLedger(accelerator, optimizer, "ranks-accelerate")
    if resumes:
        accelerator.load_state("step-2")
    with ledger:
        for batch in loader:
            with accelerator.accumulate(model):
                ledger.microbatch(
                    input_slots=input_slots(batch["input_ids"]), consumed_tokens=consumed_tokens(batch["attention_mask"]),
                    valid_targets=valid_targets(batch["labels"]), samples=len(batch["input_ids"]),
                )  # fmt: skip
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(str(Path("step-4" if resumes else "step-2")))


if __name__ == "__main__":
    by_trainer()
    by_loop(resumes=False)
    by_loop(resumes=True)
