"""The reports that anybody asks for, as plain records, read off a run's open books: those of one opening are of one offset."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ledger.domain import conventions
from ledger.domain import coverage as intervals
from ledger.domain import objective as losses
from ledger.domain.errors import CheckpointUnknown
from ledger.domain.exposure import FATES, Fates, Matrix, exposure_of, extras_counted, matrix_of
from ledger.domain.quantities import QUANTITIES
from ledger.domain.trajectory import Save, accepted_on
from ledger.services import data, registration
from ledger.services.books import Books, Reports, open_books, open_together, wait_for_lineage
from ledger.services.course import course
from ledger.services.findings import counts, findings
from ledger.services.lineage import lineage
from ledger.services.rates import rate
from ledger.storage import durations, history, passing, registry, series
from ledger.storage.store import Row

__all__ = [
    "Books",
    "Reports",
    "checkpoint_exposure",
    "checkpoints",
    "course",
    "coverage",
    "covered",
    "described",
    "exposure",
    "findings",
    "lineage",
    "objective",
    "open_books",
    "open_together",
    "ranks_heard",
    "rate",
    "updates",
    "wait_for_lineage",
    "work",
]

LARGEST_RANGES = 10_000


def described(books: Books) -> dict[str, Any]:
    """The run with its attempts and what was declared of each."""
    return registration.run_described(books.run, books.launches.values(), registry.forks_of(books.connection, books.run))


def exposure(books: Books) -> dict[str, Any]:
    """What became of every count of a run, and what does not fit."""
    return {
        **work(books),
        "findings": counts(books),
        "undecided": {
            name: node.undecided
            for ordinal, node in sorted(books.tree.nodes.items())
            if node.undecided is not None and (name := books.name(ordinal)) is not None
        },
    }


def work(books: Books) -> dict[str, Any]:
    """What became of every count of a run: a pure function of the run at its offset, whatever the time of asking."""
    accepted = books.accepted
    counted = exposure_of(books.matrix)
    return {
        "project": books.run.project,
        "run": books.run.name,
        "as_of": books.as_of(),
        "trajectory": [
            {"attempt": books.name(part.attempt), "after": part.after, "through": books.through(part)} for part in books.path
        ],
        "accepted_checkpoint": None
        if accepted is None
        else {"checkpoint": accepted.checkpoint, "attempt": books.name(accepted.attempt), "update": accepted.update},
        **counted,
        "evaluation": _evaluation(books),
        "passed_over": {"samples": _passed_over(books)},
    }


def ranks_heard(books: Books) -> tuple[int, int | None]:
    """How many ranks of the head have posted in it, and when the one was heard that has been silent longest."""
    return (0, None) if books.head is None else registry.ranks_heard(books.connection, books.run.id, books.head)


def _evaluation(books: Books) -> dict[str, int | None]:
    rows = durations.evaluated(books.connection, books.run.id)
    return {
        quantity: None
        if any(getattr(row, f"unknown_{quantity}") for row in rows)
        else sum(getattr(row, f"known_{quantity}") for row in rows)
        for quantity in QUANTITIES
    }


def _passed_over(books: Books) -> int:
    """Positions jumped on purpose, in all attempts; ranks that post the same jump are one."""
    jumps = passing.passes_of(books.connection, books.run.id, books.launches)
    return sum(stop - start for _, _, _, _, start, stop in {(j.attempt, j.number, j.stream, j.epoch, j.start, j.stop) for j in jumps})


def covered(books: Books) -> list[intervals.StreamCoverage]:
    """The positions behind the coverage, as sets: what a picture is drawn from."""
    return books.once(data.covered)


def coverage(books: Books, cursor: str | None = None, limit: int = 1000) -> dict[str, Any]:
    """How the positions of each stream were seen on the trajectory, across forks."""
    unit = conventions.data_unit(books.conventions(books.head))
    after = tuple(json.loads(cursor)) if cursor else ()
    later = [item for item in books.once(data.covered) if not after or (item.stream, item.epoch) > after]
    page = later[:limit]
    more = json.dumps([page[-1].stream, page[-1].epoch]) if len(later) > limit else None
    return {"as_of": books.as_of(), "streams": [intervals.as_lists(item, unit, LARGEST_RANGES) for item in page], "next_cursor": more}


def updates(books: Books, cursor: str | None = None, limit: int = 100, points: int | None = None) -> dict[str, Any]:
    """Updates in the order of attempts and numbers, a page at a time, or so many spread evenly over the whole range."""
    if points is not None:
        numbers = {ordinal: books.numbers(ordinal) for ordinal in sorted(books.launches)}
        rows = series.spread(books.connection, books.run.id, numbers, points)
        return {"items": _update_items(books, rows), "next_cursor": None}
    after = tuple(json.loads(cursor)) if cursor else None
    rows = series.page(books.connection, books.run.id, after, limit + 1)
    more = json.dumps([rows[limit - 1].attempt, rows[limit - 1].number, rows[limit - 1].retry]) if len(rows) > limit else None
    return {"items": _update_items(books, rows[:limit]), "next_cursor": more}


def _update_items(books: Books, rows: Iterable[Row[Any]]) -> list[dict[str, Any]]:
    declared = {ordinal: books.conventions(ordinal) for ordinal in books.launches}
    return [_update_item(books, row, declared[row.attempt]) for row in rows]


def _update_item(books: Books, row: Row[Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    outcome = books.fates.outcome(row.attempt, row.outcome)
    early = books.early_keys.get((row.attempt, row.number, row.part, row.retry), frozenset())
    valid = None if row.unknown_valid_targets else row.known_valid_targets
    length = declared.get("sequence_length")
    samples = None if row.unknown_samples else row.known_samples
    return {
        "attempt": books.name(row.attempt),
        "update": row.number,
        "retry": row.retry,
        "outcome": outcome,
        "reason": row.reason if outcome == row.outcome else None,
        "fate": books.fates.fate(row.attempt, row.number, outcome, early),
        "recomputed": history.is_attempt(row.outcome, row.part) and books.recomputed[row.attempt].holds(row.number),
        "shards_expected": row.shards_expected,
        "shards_reported": row.shards_reported,
        **{name: None if getattr(row, f"unknown_{name}") else getattr(row, f"known_{name}") for name in QUANTITIES},
        "nominal_targets": samples * length if samples is not None and isinstance(length, int) else None,
        "token_mean": row.token_mean,
        "mean_of_rank_means": row.mean_of_rank_means,
        "mean_of_microbatch_means": row.mean_of_microbatch_means,
        "nonfinite_ranks": row.nonfinite_ranks,
        "reported_loss": None if row.reported_loss is None else float(row.reported_loss),
        "loss_verdict": row.loss_verdict,
        "loss_factor": row.loss_factor,
        "loss_scale": conventions.loss_scale(declared, row.dp_count, valid),
        "seconds": row.seconds,
    }


def objective(books: Books) -> dict[str, Any]:
    """Which mean the trainer's own loss is, and the loss scale that gives the gradient of the global token mean."""
    rule = conventions.loss_scale_rule(books.conventions(books.head))
    applied = [
        total
        for total in books.totals
        if total.outcome == "applied" and books.fates.fate(total.attempt, total.first, "applied") != "lost"
    ]
    verdicts = extras_counted(applied, "verdicts")
    place = {ordinal: index for index, ordinal in enumerate(books.tree.order)}
    last = max(((place[t.attempt], *t.extras["last"]) for t in applied if "last" in t.extras), default=None)
    gap = None
    for total in applied:
        gap = losses.larger_gap(gap, total.extras.get("gap"))
    name, factor = losses.common(verdicts)
    return {
        "as_of": books.as_of(),
        "updates_compared": sum(verdicts.values()),
        "token_mean_of_last": None if last is None else last[-1],
        "largest_gap": gap,
        "reported_loss_is": name,
        "factor": factor,
        "loss_scale_rule": rule,
        "statement": losses.statement(verdicts, rule),
    }


def _checkpoint_item(books: Books, save: Save) -> dict[str, Any]:
    place = {part.attempt: part.through for part in books.path}
    through = place.get(save.attempt, -1)
    state = "rejected" if save.rejected else "accepted" if save.accepted else "started"
    by_resume = save.origin in ("resume", "declared_on_resume")
    return {
        "checkpoint": save.checkpoint,
        "attempt": books.name(save.attempt),
        "update": save.update,
        "state": state,
        "accepted_by": None if state != "accepted" else "resume" if by_resume else "event",
        "origin": "declared_on_resume" if save.origin == "declared_on_resume" else "event",
        "on_trajectory": through is None or save.update <= through,
        "positions": save.positions or {},
        "uri": save.uri,
        "seconds": save.seconds,
    }


def checkpoints(books: Books, cursor: str | None = None, limit: int = 100) -> dict[str, Any]:
    """The checkpoints of a run in the order of attempts and updates, a page at a time."""
    found = sorted((save for save in books.tree.saves if save.attempt in books.launches), key=_checkpoint_place)
    after = tuple(json.loads(cursor)) if cursor else None
    later = [save for save in found if after is None or _checkpoint_place(save) > after]
    more = json.dumps(_checkpoint_place(later[limit - 1])) if len(later) > limit else None
    return {"checkpoints": [_checkpoint_item(books, save) for save in later[:limit]], "next_cursor": more}


def _checkpoint_place(save: Save) -> tuple[int, int, str]:
    return save.attempt, save.update, save.checkpoint


def checkpoint_exposure(books: Books, checkpoint: str, attempt: str | None = None, update: int | None = None) -> dict[str, Any]:
    """All that led to a checkpoint: the whole path, across runs where a run was forked from another run's checkpoint.

    Raises: CheckpointUnknown.
    """
    named = [save for save in books.tree.saves if save.checkpoint == checkpoint and save.attempt in books.launches]
    named = [save for save in named if attempt in (None, books.name(save.attempt)) and update in (None, save.update)]
    if not named:
        raise CheckpointUnknown(f"no checkpoint {checkpoint} of {books.run.project}/{books.run.name} is known", checkpoint=checkpoint)
    place = {ordinal: index for index, ordinal in enumerate(books.tree.order)}
    save = max(named, key=lambda item: (place[item.attempt], item.update))
    stretches = data.lineage(books, data.path_to(books.tree, save))
    unit = conventions.data_unit(books.conventions(save.attempt))
    streams = intervals.coverage_of(item.drawn for _, item in data.drawn_along(books, stretches))
    return {
        "as_of": books.as_of(),
        **_checkpoint_item(books, save),
        "path": [
            {
                "project": stretch.run.project,
                "run": stretch.run.name,
                "attempt": stretch.names[part.attempt],
                "after": part.after,
                "through": part.through,
            }
            for stretch in stretches
            for part in stretch.path
        ],
        **_exposure_along(books, stretches),
        "streams": [intervals.as_lists(item, unit, LARGEST_RANGES) for item in streams],
    }


def _exposure_along(books: Books, stretches: Iterable[data.Stretch]) -> dict[str, Any]:
    """The counts on a path up to the checkpoint that ends it, by outcome."""
    matrix = Matrix()
    for stretch in stretches:
        undecided = [ordinal for ordinal, node in stretch.tree.nodes.items() if node.undecided is not None]
        fates = Fates(stretch.path, accepted_on(stretch.path, stretch.tree.saves), undecided)
        own = stretch.run.id == books.run.id
        totals = books.totals if own else history.totals_of(books.connection, stretch.run.id)
        keys = history.early_keys(books.connection, stretch.run.id, [*(segment.save for segment in stretch.path), fates.accepted])
        early = history.early_groups(books.connection, stretch.run.id, keys, {})
        part = matrix_of(totals, early, fates)
        for (outcome, fate), known in part.known.items():
            if fate == "lost":
                continue
            cell = matrix.known.setdefault((outcome, "preserved"), dict.fromkeys(QUANTITIES, 0))
            lacking = matrix.unknown.setdefault((outcome, "preserved"), dict.fromkeys(QUANTITIES, 0))
            for quantity in QUANTITIES:
                cell[quantity] += known[quantity]
                lacking[quantity] += part.unknown[outcome, fate][quantity]
            counted = matrix.attempts.get((outcome, "preserved"), 0)
            matrix.attempts[outcome, "preserved"] = counted + part.attempts[outcome, fate]
    outcomes = sorted({outcome for outcome, _ in matrix.known} | {"applied", "skipped"})
    return {
        "updates": {outcome: matrix.attempts.get((outcome, "preserved"), 0) for outcome in outcomes},
        "exposure": {
            quantity: {
                outcome: None if matrix.cell(outcome, FATES[0], quantity)[1] else matrix.cell(outcome, FATES[0], quantity)[0]
                for outcome in outcomes
            }
            for quantity in QUANTITIES
        },
    }
