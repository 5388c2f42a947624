"""What the trainers people use need to be recorded: one module a trainer, imported only by those who use it.

Every one of them records the same five things, each at the moment when it is a fact:

| what | when |
|---|---|
| the counts of a microbatch | from its labels and masks, as the loss counts them, on the rank that computed it |
| the outcome of an update | after the optimizer step, from what withheld it: a gradient that is not finite, else a drop of the loss scale |
| a checkpoint | begun before the first byte, accepted when the save itself says that it is complete, rejected when it failed |
| the cursor | into the checkpoint, by `Checkpoint.cursor`; read on resume, so that `resumed_from` is never guessed |
| the trainer's own counters | beside the events, for comparison |

An optimizer's step hook is never taken for an outcome: fused optimizers run it on a withheld step too.
"""
