"""The trainer's own counters against the ledger's: drift is reported, nothing is ever re-labelled.

| counter | counts |
|---|---|
| consumed_train_samples, consumed_samples | samples drawn on the path, skipped work included |
| num_input_tokens_seen, consumed_tokens | tokens drawn on the path, padding excluded |
| skipped_steps, skipped_iterations, skipped_updates | skipped updates on the path |
| global_step, iteration, global_steps | attempted updates on the path, or the number of the last one |

The path is the attempt's own work up to the update at which the counter was read, and what lies before it on its trajectory.
"""

from collections.abc import Iterator
from typing import Any

from ledger.domain.exposure import Fates, Total, quantity_total
from ledger.domain.findings import finding
from ledger.services.books import Books
from ledger.storage import passing

COUNTED = {
    "consumed_train_samples": "samples",
    "consumed_samples": "samples",
    "num_input_tokens_seen": "consumed_tokens",
    "consumed_tokens": "consumed_tokens",
}
SKIPS = ("skipped_steps", "skipped_iterations", "skipped_updates")
STEPS = ("global_step", "global_steps", "iteration")


def _on_path(books: Books, attempt: int, number: int) -> list[Total] | None:
    """The totals of the path up to an update; null where the update lies inside an interval, so that it cannot be told exactly."""
    fates = Fates(books.tree.path(attempt), None, ())
    last = books.numbers(attempt).last
    state = books.states.get(attempt)
    if state is None or (number != last and number not in state.cuts):
        return None
    chosen = []
    for total in books.totals:
        if total.attempt == attempt:
            if total.first <= number:
                chosen.append(total)
        elif fates.on_trajectory(total.attempt, total.first):
            chosen.append(total)
    return chosen


def drifts(books: Books) -> Iterator[dict[str, Any]]:
    """Counters of the trainer that disagree with what the ledger counts at the same update."""
    for row in passing.latest_counters(books.connection, books.run.id):
        path = _on_path(books, row.attempt, row.number)
        if path is None or row.attempt in books.undecided:
            continue
        name = books.name(row.attempt)
        if row.name in COUNTED:
            right = quantity_total([total for total in path if total.outcome != "open"], COUNTED[row.name])
            if right is not None and right != row.value:
                yield finding("counter_drift", name, row.number, rank=row.rank, quantity=row.name, expected=right, found=row.value)
        elif row.name in SKIPS:
            right = sum(total.attempts for total in path if total.outcome == "skipped")
            if right != row.value:
                yield finding("skip_counter_mismatch", name, row.number, rank=row.rank, quantity=row.name, expected=right, found=row.value)
        elif row.name in STEPS:
            right = sum(total.attempts for total in path)
            if row.value not in (right, row.number):
                yield finding("counter_drift", name, row.number, rank=row.rank, quantity=row.name, expected=right, found=row.value)
