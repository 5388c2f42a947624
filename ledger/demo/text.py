"""The demo's text: the names of the characters of Unicode 3.2, such as `GREEK SMALL LETTER FINAL SIGMA`.

Every Python carries them in `unicodedata.ucd_3_2_0`, and Unicode promises that a name never changes, so that the demo counts the
same tokens on every machine and under every Python. A document is one name; a token is one character of it.
"""

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PADDING, BEGIN, END = 0, 1, 2
SPECIAL_COUNT = 3
FIRST_CODE_POINT, LAST_CODE_POINT = 0x20, 0x33FF
STREAM = "names"

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """The padded token matrix of one microbatch and the sampler positions that it was drawn from.

    Shape: tokens is (documents, longest document)
    Law: valid_targets = consumed_tokens - samples, as the first token of a document is never a target
    """

    tokens: Tokens
    epoch: int
    start: int
    stop: int

    def counts(self) -> dict[str, int]:
        """What the batch holds, counted from its tokens."""
        return {
            "input_slots": int(self.tokens.size),
            "consumed_tokens": int(np.count_nonzero(self.tokens != PADDING)),
            "valid_targets": int(np.count_nonzero(self.tokens[:, 1:] != PADDING)),
            "samples": int(self.tokens.shape[0]),
        }


class Corpus:
    """Documents for training and held-out documents, encoded."""

    def __init__(self, documents: int, held_out_documents: int) -> None:
        names = shuffled(unicode_names(), "split")
        if documents + held_out_documents > len(names):
            raise ValueError(f"there are {len(names):,} names, not {documents + held_out_documents:,}")
        alphabet = sorted(set("".join(names)))
        self.vocabulary = SPECIAL_COUNT + len(alphabet)
        self._codes = {character: SPECIAL_COUNT + place for place, character in enumerate(alphabet)}
        self._training = names[:documents]
        self._held_out = names[documents : documents + held_out_documents]
        self._epochs: dict[int, list[str]] = {}

    def order_fingerprint(self) -> str:
        """A digest of the order in which the first epoch presents the documents."""
        return hashlib.sha256("\n".join(self._epoch(0)).encode()).hexdigest()[:16]

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        """The documents at sampler positions `start` to `stop` of an epoch, padded to the longest of them."""
        return Batch(self._padded(self._epoch(epoch)[start:stop]), epoch, start, stop)

    def held_out(self, start: int, stop: int) -> Batch:
        """Some of the documents that are never trained on."""
        return Batch(self._padded(self._held_out[start:stop]), 0, start, stop)

    def _epoch(self, epoch: int) -> list[str]:
        if epoch not in self._epochs:
            self._epochs[epoch] = shuffled(self._training, f"epoch {epoch}")
        return self._epochs[epoch]

    def _padded(self, documents: list[str]) -> Tokens:
        longest = max(len(document) for document in documents) + 2
        tokens = np.full((len(documents), longest), PADDING, dtype=np.int64)
        for row, document in zip(tokens, documents, strict=True):
            row[: len(document) + 2] = [BEGIN, *(self._codes[character] for character in document), END]
        return tokens


@dataclass(slots=True)
class Cursor:
    """Where the sampler stands: everything before `position` of `epoch` has been drawn."""

    epoch: int
    position: int

    def group(self, rank: int, ranks: int, microbatches: int, size: int, documents: int) -> Iterator[tuple[int, int, int]]:
        """The (epoch, start, stop) of each microbatch that falls to a rank from here to the end of a group or of the epoch.

        Ranks take turns: microbatch 0 of every rank, then microbatch 1 of every rank. At the end of an epoch a rank's last
        microbatch may be short, and a rank may have fewer microbatches than another.
        """
        for microbatch in range(microbatches):
            start = self.position + (microbatch * ranks + rank) * size
            if start < documents:
                yield self.epoch, start, min(start + size, documents)


def unicode_names() -> list[str]:
    """The names of all characters of the first planes of Unicode 3.2, in code point order."""
    named = (unicodedata.ucd_3_2_0.name(chr(point), "") for point in range(FIRST_CODE_POINT, LAST_CODE_POINT + 1))
    return [name for name in named if name]


def shuffled(names: list[str], salt: str) -> list[str]:
    """The names in an order that depends on the salt alone, not on any random generator's version."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{salt}/{name}".encode()).digest())
