"""What the batches of a trainer hold, and where their samples lie in the data: for the trainers whose batches come from a loader.

Counting never raises into the training loop: what cannot be counted is unknown, and that is said once.
"""

from __future__ import annotations

import logging

from torch.utils.data import DataLoader, DistributedSampler

from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.notices import LOGGER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

STREAM = "train"
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")


def language_counts(batch: Mapping[str, Any], *, shift: bool = True) -> dict[str, object]:
    """What a batch of `input_ids`, `attention_mask` and `labels` holds; `shift` as in `valid_targets`.

    Without a mask there is no padding as far as the model knows. Raises: TypeError, KeyError where it is no such batch.
    """
    tokens, mask, labels = batch["input_ids"], batch.get("attention_mask"), batch.get("labels")
    slots = input_slots(tokens)
    return {
        "input_slots": slots,
        "consumed_tokens": slots if mask is None else consumed_tokens(mask),
        "valid_targets": None if labels is None else valid_targets(labels, shift=shift),
        "samples": len(tokens),
    }


class Counting:
    """Counts batches by a function that may fail on some of them."""

    def __init__(self, counts_of: Callable[..., Mapping[str, object]]) -> None:
        self._counts_of = counts_of
        self._said = False

    def __call__(self, *batch: Any) -> dict[str, Any]:
        """What a batch holds, by quantity; those that the function does not give are unknown, and all are where it raises."""
        try:
            counted = self._counts_of(*batch)
            return {name: counted.get(name) for name in QUANTITIES}
        except Exception as error:  # whatever a batch of another form, or a counting function of the user's own, raises
            if not self._said:
                logging.getLogger(LOGGER).warning(
                    "the batches cannot be counted, and are recorded as unknown: %r; `counts` says what they hold", error
                )
            self._said = True
            return {}


def totals(batches: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What several batches hold together; a quantity that is unknown of one of them is unknown."""
    known = list(batches)
    return {name: None if any(one.get(name) is None for one in known) else sum(one[name] for one in known) for name in QUANTITIES}


class Dealt:
    """Where the samples of this process lie in the data, by the positions of a sampler that deals them to the processes in turn.

    `known` where one loader draws data with a length in batches of one size; the rest is to be asked only then.
    """

    def __init__(self, loader: Any, processes: int) -> None:
        sampler: Any = getattr(loader, "sampler", None)
        dealt = isinstance(sampler, DistributedSampler)
        # Only a loader that makes its batches by itself has a batch size, and the sampler of a stream has no length.
        self.known = (
            isinstance(loader, DataLoader) and loader.batch_size is not None and hasattr(sampler, "__len__") and (dealt or processes == 1)
        )
        if self.known:
            self.size: int = loader.batch_size
            """Samples of a batch of one process, but for the last one."""
            self.own: int = len(sampler)
            """Samples that this process draws in an epoch."""
            self._ranks: int = sampler.num_replicas if dealt else 1
            self._rank: int = sampler.rank if dealt else 0
            self._samples = len(sampler.dataset) if dealt else self.own

    def ranges(self, epoch: int, start: int, stop: int) -> list[tuple[str, int, int, int]]:
        """The ranges of this process's samples from `start` to `stop`; past the end of the data they begin anew."""
        if self._ranks == 1:
            return [(STREAM, epoch, start, stop)]
        places = [(place * self._ranks + self._rank) % self._samples for place in range(start, stop)]
        return [(STREAM, epoch, place, place + 1) for place in places]

    def position(self, epoch: int, batches: int) -> dict[str, object]:
        """Where all processes stand when each of them has drawn so many batches of the epoch."""
        return {STREAM: {"epoch": epoch, "position": batches * self.size * self._ranks}}
