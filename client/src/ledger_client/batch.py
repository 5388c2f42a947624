"""Events as the ledger takes them: for each kind one block of equally long columns."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .shapes import Event, Row

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


def column(name: str, rows: list[Row]) -> str | None:
    """One column as JSON; None where no row has a value in it, and the column is left out."""
    values = [wire_value(row.get(name)) for row in rows]
    if all(value is None for value in values):
        return None
    # Column by column, and the interpreter offered in between: the training thread waits for one column at most.
    time.sleep(0)
    return f'"{name}":{json.dumps(values, separators=(",", ":"))}'


def encode(rank: int, writer: str, events: Iterable[Event]) -> bytes:
    """The body of a batch."""
    rows: dict[str, list[Row]] = {}
    for kind, row in events:
        rows.setdefault(kind, []).append(row)
    blocks = []
    for kind, of_kind in rows.items():
        columns = [text for name in COLUMNS[kind] if (text := column(name, of_kind)) is not None]
        blocks.append(f',"{kind}":{{{",".join(columns)}}}')
    return f'{{"ranks":[{{"rank":{rank},"writer":{json.dumps(writer)}{"".join(blocks)}}}]}}'.encode()
