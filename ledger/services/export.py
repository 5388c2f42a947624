"""The raw log of a run: each entry as it was posted, in the order of offsets."""

from collections.abc import Iterator
from typing import Any

from ledger.domain.columns import moment_text
from ledger.storage import journal, registry
from ledger.storage.store import Store

ENTRIES_TOGETHER = 10_000


def events(store: Store, project: str, run: str) -> Iterator[dict[str, Any]]:
    """Every entry of the run's journal, as long as it was when the call began. Raises: RunUnknown."""
    with store.read() as connection:
        found = registry.find_run(connection, project, run)
        names = {launch.attempt.ordinal: launch.attempt.name for launch in registry.launches(connection, found.id)}
    # A reader that takes its time must not hold a connection meanwhile; what is journalled never changes, so pages fit together.
    for after in range(0, found.entries, ENTRIES_TOGETHER):
        with store.read() as connection:
            page = list(journal.entries_of(connection, found.id, after, min(after + ENTRIES_TOGETHER, found.entries)))
        for entry in page:
            entry["attempt"] = names.get(entry["attempt"])
            entry["received_at"] = moment_text(entry["received_at"])
            yield entry
