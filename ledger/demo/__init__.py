"""The demo: a small language model trained by real processes, killed in the middle, resumed, and accounted for.

| module | holds |
|---|---|
| plan | what is trained, how long, and where it is interrupted |
| text | the documents, their order in each epoch, padded batches |
| model | the language model with its hand-written gradient, and its optimizer |
| scaling | the loss scale of half-precision gradients |
| reduction | the sum over the ranks |
| saving | checkpoints written while training goes on |
| tally | each rank's own count, and the balance that follows from it |
| trainer | one rank's process |
| service | the ledger's process, and what is read from it |
| launcher | starts, kills, relaunches, compares |
"""
