"""The raw log of a run: each entry as it was posted, in the order of offsets."""

from collections.abc import Iterator
from typing import Any

from ledger.domain.columns import moment_text
from ledger.storage import journal, registry
from ledger.storage.store import Store


def events(store: Store, project: str, run: str) -> Iterator[dict[str, Any]]:
    """Every entry of the run's journal, as long as it was when the call began. Raises: RunUnknown."""
    with store.read() as connection:
        found = registry.find_run(connection, project, run)
        names = {launch.attempt.ordinal: launch.attempt.name for launch in registry.launches(connection, found.id)}
        for entry in journal.entries_of(connection, found.id, 0, found.entries):
            entry["attempt"] = names.get(entry["attempt"])
            entry["received_at"] = moment_text(entry["received_at"])
            yield entry
