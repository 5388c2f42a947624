"""The attempts of a run as a tree in time: where each began, how far it came, and what became of its updates."""

from collections.abc import Mapping
from typing import Any

from ledger.domain.columns import moment_text
from ledger.domain.exposure import BUCKETS, Early, Total, matrix_of, updates_balance
from ledger.services.books import Books
from ledger.storage import history


def lineage(books: Books) -> dict[str, Any]:
    """Each attempt, oldest first, with the checkpoint it resumed from and its own balance in updates."""
    totals: dict[int, list[Total]] = {}
    for total in books.totals:
        totals.setdefault(total.attempt, []).append(total)
    early: dict[int, list[Early]] = {}
    for item in history.early_groups(books.connection, books.run.id, books.early_keys, books.recomputed):
        early.setdefault(item.total.attempt, []).append(item)
    through = {segment.attempt: books.through(segment) for segment in books.path}
    saves = _saves(books)
    return {
        "as_of": books.as_of(),
        "attempts": [
            _attempt(books, ordinal, through, totals.get(ordinal, []), early.get(ordinal, []))
            | {"checkpoints": saves.get(ordinal, dict.fromkeys(("accepted", "started", "rejected"), 0))}
            for ordinal in books.tree.order
        ],
    }


def _saves(books: Books) -> dict[int, dict[str, int]]:
    """How many checkpoints of each attempt are accepted, only started, or rejected."""
    found: dict[int, dict[str, int]] = {}
    for save in books.tree.saves:
        state = "rejected" if save.rejected else "accepted" if save.accepted else "started"
        own = found.setdefault(save.attempt, dict.fromkeys(("accepted", "started", "rejected"), 0))
        own[state] += 1
    return found


def _attempt(books: Books, ordinal: int, through: Mapping[int, int], totals: list[Total], early: list[Early]) -> dict[str, Any]:
    node, launch, numbers = books.tree.nodes[ordinal], books.launches[ordinal], books.numbers(ordinal)
    matrix = matrix_of(totals, early, books.fates)
    balance = updates_balance(matrix)
    save = node.save
    return {
        "attempt": books.name(ordinal),
        "parent": books.name(node.parent),
        "resumed_from": None
        if save is None
        # A fork's checkpoint belongs to an attempt of another run.
        else {"checkpoint": save.checkpoint, "attempt": books.name(node.parent), "update": save.update},
        "first": numbers.first,
        "last": numbers.last,
        "through": through.get(ordinal),
        "undecided": node.undecided,
        "ended": launch.attempt.ended,
        "started_at": None if launch.attempt.started_at is None else moment_text(launch.attempt.started_at),
        "ended_at": None if launch.ended_at is None else moment_text(launch.ended_at),
        "updates": {"attempted": balance["attempted"], **{bucket: balance[bucket] for bucket in BUCKETS}},
        "recomputed": matrix.recomputed_updates,
    }
