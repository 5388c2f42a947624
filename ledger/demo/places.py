"""Where the processes of one demo run leave things for each other: one folder, and the name of each file in it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The folder of one demo run."""

    root: Path

    @property
    def plan(self) -> Path:
        """The plan that every process reads."""
        return self.root / "plan.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def spool(self) -> Path:
        """The folder in which the ledger's client keeps what it has not yet delivered."""
        return self.root / "spool"

    def meeting(self, attempt: int) -> Path:
        """The file in which rank 0 of an attempt announces its port."""
        return self.root / f"attempt-{attempt}.port"

    def tally(self, attempt: int, rank: int) -> Path:
        """A rank's own account."""
        return self._of_rank(attempt, rank, "tally")

    def paused(self, attempt: int, rank: int) -> Path:
        """What a rank leaves to say that it waits to be killed."""
        return self._of_rank(attempt, rank, "paused")

    def log(self, attempt: int, rank: int) -> Path:
        """What a rank wrote to its output."""
        return self._of_rank(attempt, rank, "log")

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.root, self.checkpoints, self.spool):
            folder.mkdir(parents=True, exist_ok=True)

    def _of_rank(self, attempt: int, rank: int, suffix: str) -> Path:
        return self.root / f"attempt-{attempt}.rank-{rank}.{suffix}"


def attempt_name(attempt: int) -> str:
    """What an attempt is called in the ledger.

    >>> attempt_name(2)
    'attempt-2'
    """
    return f"attempt-{attempt}"
