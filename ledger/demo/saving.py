"""Checkpoints, written by a thread while training goes on: snapshot, write beside, flush to disk, rename, and only then accepted.

A file that bears a checkpoint's name is whole, because it gets the name by a rename after it is on disk. So the newest name in the
folder is the newest checkpoint that can be resumed from, whatever was killed when.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ledger.demo.model import Floats

PREFIX, SUFFIX = "step-", ".npz"


@dataclass(frozen=True, slots=True)
class SavedState:
    """All that training needs to go on as if nothing had happened; `facts` holds what is not an array.

    Among the facts are the last update, the data position, the loss scale, and which attempt of which run saved it.
    """

    weights: Floats
    mean: Floats
    square: Floats
    facts: dict[str, Any]


class Saver:
    """Writes one snapshot at a time to the folder, on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None

    def save(self, name: str, state: SavedState, durable: Callable[[], None]) -> None:
        """Write the snapshot in the background and call `durable` once it would survive a power cut."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(name, state, durable), name=f"save {name}")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, name: str, state: SavedState, durable: Callable[[], None]) -> None:
        final = self._folder / (name + SUFFIX)
        beside = final.with_suffix(".partial")
        facts = np.frombuffer(json.dumps(state.facts).encode(), dtype=np.uint8)
        with beside.open("wb") as file:
            np.savez(file, weights=state.weights, mean=state.mean, square=state.square, facts=facts)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(final)
        entry = os.open(self._folder, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)
        durable()


def checkpoint_name(update: int) -> str:
    """The name of the checkpoint after an update.

    >>> checkpoint_name(30)
    'step-30'
    """
    return f"{PREFIX}{update}"


def newest_checkpoint(folder: Path) -> str | None:
    """The name of the newest whole checkpoint in the folder."""
    updates = [int(path.stem.removeprefix(PREFIX)) for path in folder.glob(f"{PREFIX}*{SUFFIX}")]
    return checkpoint_name(max(updates)) if updates else None


def read_checkpoint(folder: Path, name: str) -> SavedState:
    """What was saved under that name."""
    with np.load(folder / (name + SUFFIX), allow_pickle=False) as saved:
        facts = json.loads(saved["facts"].tobytes())
        return SavedState(saved["weights"], saved["mean"], saved["square"], facts)
