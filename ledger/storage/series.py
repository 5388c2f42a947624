"""Single updates: a page at a time, all of a range, or spread evenly over their whole range."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Row, select, tuple_

from ledger.domain.exposure import ATTEMPTED_OUTCOMES
from ledger.domain.intervals import Intervals
from ledger.domain.updates import PART_UPDATE
from ledger.storage.tables import updates

_c = updates.c
NUMBERS_TOGETHER = 500


def page(connection: Connection, run_id: int, after: tuple[Any, ...] | None, limit: int) -> list[Row[Any]]:
    """Updates behind a place (attempt, number, retry), in the order of attempts, numbers and tries."""
    query = select(updates).where(_c.run_id == run_id, _c.part == PART_UPDATE)
    if after is not None:
        query = query.where(tuple_(_c.attempt, _c.number, _c.retry) > tuple_(*after))
    return list(connection.execute(query.order_by(_c.attempt, _c.number, _c.retry).limit(limit)))


def between(connection: Connection, run_id: int, attempt: int, first: int, last: int) -> list[Row[Any]]:
    """What a chart shows of an attempt's updates from one number to another, tries in order."""
    quantities = [_c[f"{what}_{name}"] for what in ("known", "unknown") for name in ("valid_targets", "input_slots", "consumed_tokens")]
    losses = (_c.token_mean, _c.mean_of_rank_means, _c.mean_of_microbatch_means, _c.reported_loss)
    columns = (_c.number, _c.outcome, *quantities, *losses)
    place = (_c.run_id == run_id, _c.attempt == attempt, _c.number >= first, _c.number <= last)
    query = select(*columns).where(*place, _c.part == PART_UPDATE, _c.outcome.in_(ATTEMPTED_OUTCOMES))
    return list(connection.execute(query.order_by(_c.number, _c.retry)))


BATCH = (_c.attempt, _c.number, _c.outcome, _c.known_valid_targets, _c.unknown_valid_targets)
"""What the valid-token batch of an update is read from."""


def spread(
    connection: Connection, run_id: int, numbers: Mapping[int, Intervals], points: int, columns: Sequence[ColumnElement[Any]] = (*_c,)
) -> list[Row[Any]]:
    """Updates at evenly spaced places of all attempted numbers, the first and the last among them."""
    spans = [(attempt, start, stop) for attempt, members in numbers.items() for start, stop in members]
    sizes = np.array([stop - start for _, start, stop in spans], dtype=np.int64)
    size = int(sizes.sum())
    if not size:
        return []
    edges = np.concatenate(([0], np.cumsum(sizes)))
    places = np.unique(np.linspace(0, size - 1, min(points, size)).round().astype(np.int64))
    chosen: dict[int, list[int]] = {}
    for place, span in zip(places.tolist(), (np.searchsorted(edges, places, side="right") - 1).tolist(), strict=True):
        attempt, start, _ = spans[span]
        chosen.setdefault(attempt, []).append(start + place - int(edges[span]))
    found: dict[tuple[int, int], Row[Any]] = {}
    for attempt, wanted in chosen.items():
        for begin in range(0, len(wanted), NUMBERS_TOGETHER):
            query = select(*columns).where(_c.run_id == run_id, _c.attempt == attempt, _c.part == PART_UPDATE)
            rows = connection.execute(query.where(_c.number.in_(wanted[begin : begin + NUMBERS_TOGETHER])).order_by(_c.number, _c.retry))
            # Of several tries at a number the last one stands for it.
            found |= {(attempt, row.number): row for row in rows}
    return [found[key] for key in sorted(found)]
