"""Events for tests of the domain, one plain row each."""

from typing import Any

from ledger.domain.columns import Events
from ledger.domain.events import RankEvents


def events_of(kind: str, rows: list[dict[str, Any]]) -> Events:
    """The events of a kind; a row without a `seq` comes after the one before it, one without a `writer` is of the rank's own process."""
    blocks = []
    for place, row in enumerate(rows, start=1):
        rank, writer = row.get("rank", 0), row.get("writer", "w0")
        columns = {name: [value] for name, value in row.items() if name not in ("rank", "writer")}
        blocks.append(RankEvents(rank, writer, {kind: {"seq": [place], **columns}}))
    return Events.of(kind, blocks)
