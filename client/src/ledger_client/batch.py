"""Events as the ledger takes them: for each kind one block of equally long columns."""

import json
import math
from collections.abc import Iterable

from .records import Row

COLUMNS: dict[str, tuple[str, ...]] = {
    "updates": (
        "seq", "update", "retry", "outcome", "reason", "input_slots", "consumed_tokens", "valid_targets", "samples", "microbatches",
        "loss_sum", "microbatch_mean_sum", "microbatches_scored", "reported_loss", "schedule_step", "ranges", "started_at", "seconds",
        "participants",
    ),
    "checkpoints": ("seq", "checkpoint", "state", "update", "uri", "positions", "attempt", "seconds"),
    "discards": (
        "seq", "update", "retry", "reason", "input_slots", "consumed_tokens", "valid_targets", "samples", "ranges", "seconds",
    ),
    "passes": ("seq", "update", "stream", "epoch", "start", "stop"),
    "evaluations": ("seq", "update", "name", "retry", "input_slots", "consumed_tokens", "valid_targets", "samples", "seconds"),
    "idles": ("seq", "label", "seconds"),
    "counters": ("seq", "update", "name", "value"),
    "gaps": ("seq", "first", "last", "reason"),
}  # fmt: skip


def wire_value(value: object) -> object:
    """A value as JSON can say it: floats that are no numbers become texts.

    >>> [wire_value(x) for x in (1.5, float("nan"), float("-inf"))]
    [1.5, 'NaN', '-Infinity']
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def blocks(events: Iterable[tuple[str, Row]]) -> dict[str, dict[str, list[object]]]:
    """Columns by kind; a column that no row fills is left out."""
    rows: dict[str, list[Row]] = {}
    for kind, row in events:
        rows.setdefault(kind, []).append(row)
    columns = {kind: {name: [wire_value(row.get(name)) for row in of_kind] for name in COLUMNS[kind]} for kind, of_kind in rows.items()}
    return {kind: {name: column for name, column in block.items() if filled(column)} for kind, block in columns.items()}


def filled(column: Iterable[object]) -> bool:
    """Whether any row has a value in the column."""
    return any(value is not None for value in column)


def encode(rank: int, writer: str, events: Iterable[tuple[str, Row]]) -> bytes:
    """The body of a batch."""
    return json.dumps({"ranks": [{"rank": rank, "writer": writer, **blocks(events)}]}, separators=(",", ":")).encode()
