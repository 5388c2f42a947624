"""From ranks to an update: replicas counted once, shards added, contradictions named.

An update's valid-token batch is the sum of eligible targets over the shards that took part; ranks of one shard are replicas. What
each group of rows becomes:

| rows of the group | outcome |
|---|---|
| no rank knows an outcome yet | open |
| a shard has not reported, replicas differ, or outcomes differ | held |
| all agree | applied, skipped or abandoned |
| microbatches that entered no update | discarded |
| work of shards outside `participants` | abandoned, and no update of its own |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ledger.domain import segments
from ledger.domain.columns import Events, Floats, Integers, Ranges
from ledger.domain.events import DISCARD_REASONS, OUTCOMES, SKIP_REASONS
from ledger.domain.layout import Layout
from ledger.domain.quantities import QUANTITIES
from ledger.domain.replicas import Disagreement, Replicas, count_once, loss_means, lowest_rank, measured_once, sort_rows, writer_places

APPLIED, SKIPPED, ABANDONED, OPEN, HELD, DISCARDED = range(6)
OUTCOME_NAMES = ("applied", "skipped", "abandoned", "open", "held", "discarded")
PART_UPDATE, PART_DISCARD, PART_OUTSIDE = range(3)
"""What a group of rows is: an update, a discard, or the work of shards that did not take part in an update."""

LOSSES = ("loss_sum", "microbatch_mean_sum", "reported_loss")
NON_ADVANCING = (SKIPPED, ABANDONED, OPEN, DISCARDED)


@dataclass(frozen=True, slots=True)
class Resolution:
    """An operator's word on a held update: the rank whose row stands in its shard, or the outcome that stands."""

    number: int
    retry: int
    rank: int | None
    outcome: str | None


@dataclass(slots=True)
class Groups:
    """Updates, discards or evaluations of one attempt, one entry a group of rows of the same number and try.

    Shape: every array has one entry a group. `known` holds the sum of what is known; a total is unknown where `unknown`, the
    number of shards (data-parallel ranks for samples) that lack it, is not 0.
    """

    number: Integers
    retry: Integers
    part: Integers
    outcome: Integers
    reason: list[str | None]
    shards_expected: Integers
    shards_reported: Integers
    dp_count: Integers
    known: dict[str, Any]
    unknown: dict[str, Integers]
    ranges: Ranges
    microbatches: Integers
    loss: Floats
    token_mean: Floats
    mean_of_rank_means: Floats
    mean_of_microbatch_means: Floats
    nonfinite_ranks: Integers
    reported_loss: Floats
    schedule_step: Integers
    started_at: Integers
    seconds: Floats
    disagreements: list[Disagreement]
    rows: Events
    row_group: Integers
    name: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.number)

    @property
    def complete(self) -> Any:
        """Whether all shards of the group have reported."""
        return self.shards_reported >= self.shards_expected


def _superseded(events: Events, number: Integers, retry: Integers, shard: Integers) -> Any:
    """Which rows no longer stand: an open row once its shard has a closing one, and all but a rank's latest open row."""
    outcome = events.counts("outcome")
    is_open = outcome == OPEN
    if not is_open.any():
        return np.zeros(len(events), dtype=np.bool_)
    order = np.lexsort((writer_places(events), events.counts("seq"), events.rank, is_open, shard, retry, number))
    size, opened = len(order), is_open[order]
    shards = segments.starts_of(number[order], retry[order], shard[order])
    closed = segments.spread(segments.some(~opened, shards), shards, size)
    ranks = segments.starts_of(number[order], retry[order], shard[order], opened, events.rank[order])
    last = np.zeros(size, dtype=np.bool_)
    last[np.append(ranks[1:], size) - 1] = True
    result = np.zeros(size, dtype=np.bool_)
    result[order] = opened & (closed | ~last)
    return result


def _parts(events: Events, layout: Layout) -> tuple[Integers, dict[tuple[int, int], frozenset[int]]]:
    """Whether each row's shard took part, and the shards that did where only some were asked to."""
    number, retry = events.counts("update"), retries(events)
    part = np.zeros(len(events), dtype=np.int64)
    named: dict[tuple[int, int], set[int]] = {}
    for place, shards in enumerate(events.objects("participants")):
        if shards is not None:
            named.setdefault((int(number[place]), int(retry[place])), set()).update(shards)
    if named:
        shard_of = layout.shards[events.rank].tolist()
        for place, key in enumerate(zip(number.tolist(), retry.tolist(), strict=True)):
            if key in named and shard_of[place] not in named[key]:
                part[place] = PART_OUTSIDE
    return part, {key: frozenset(shards) for key, shards in named.items()}


def retries(events: Events) -> Integers:
    """The try of each row; 0 where it was left out."""
    return np.maximum(events.counts("retry"), 0)


def _settle(events: Events, layout: Layout, resolutions: Sequence[Resolution]) -> Events:
    """The rows that stand once the operator's resolutions are taken into account."""
    number, retry, shard = events.counts("update"), retries(events), layout.shards[events.rank]
    outcome = events.counts("outcome").copy()
    took_part = _parts(events, layout)[0] != PART_OUTSIDE
    for item in resolutions:
        group = (number == item.number) & (retry == item.retry) & (outcome != OPEN) & took_part
        if item.rank is not None:
            chosen = group & (events.rank == item.rank)
            if not chosen.any():
                continue
            events = _silenced(events, group & (shard == layout.shards[item.rank]) & ~chosen, chosen)
            if outcome[chosen].max() >= 0:
                outcome[group] = outcome[chosen].max()
        elif item.outcome is not None:
            outcome[group] = OUTCOMES.index(item.outcome)
    return events.with_column("outcome", outcome)


def _silenced(events: Events, replicas: Any, chosen: Any) -> Events:
    """The rows with what replicas say taken back wherever the chosen rank says something; what it cannot know, they may still tell."""
    ranges = events.ranges()
    drawn = ranges.present[chosen].any() or (events.counts("samples")[chosen] >= 0).any()
    for name in QUANTITIES:
        values = events.counts(name)
        if drawn if name == "samples" else (values[chosen] >= 0).any():
            events = events.with_column(name, np.where(replicas, -1, values))
    for name in LOSSES:
        floats = events.floats(name)
        if floats.present[chosen].any():
            events = events.with_column(name, Floats(floats.values, floats.present & ~replicas))
    return events.with_column("ranges", replace(ranges, present=ranges.present & ~replicas)) if drawn else events


def _reasons(rows: Replicas, choices: tuple[str, ...]) -> list[str | None]:
    reason = rows.events.counts("reason")
    place = lowest_rank(rows, reason >= 0)
    return [choices[reason[row]] if row >= 0 else "other" for row in place.tolist()]


def _expected(number: Integers, retry: Integers, named: Mapping[tuple[int, int], frozenset[int]], layout: Layout) -> tuple[Any, Any]:
    shards = np.full(len(number), layout.shard_count, dtype=np.int64)
    dps = np.full(len(number), layout.dp_count, dtype=np.int64)
    if named:
        for place, key in enumerate(zip(number.tolist(), retry.tolist(), strict=True)):
            if key in named:
                taking_part = [layout.dp_of_shard[shard] for shard in named[key] if shard in layout.dp_of_shard]
                shards[place], dps[place] = len(taking_part), len(set(taking_part))
    return shards, dps


def _fold_standing(events: Events, layout: Layout) -> Groups:
    number, retry = events.counts("update"), retries(events)
    part, named = _parts(events, layout)
    stands = ~_superseded(events, number, retry, layout.shards[events.rank])
    events, number, retry, part = events.take(stands), number[stands], retry[stands], part[stands]
    rows = sort_rows(events, layout, (number, part, retry), events.counts("outcome") != OPEN)
    found: list[Disagreement] = []
    gathered = count_once(rows, found)
    head = rows.groups
    number, retry = rows.events.counts("update")[head], retries(rows.events)[head]
    part = part[rows.order][head]
    outcome = rows.events.counts("outcome")
    voting = (outcome >= 0) & (outcome != OPEN)
    low = segments.smallest_known(np.where(voting, outcome, -1), head)
    high = segments.largest(np.where(voting, outcome, -1), head)
    undecided, conflict = high < 0, (high >= 0) & (low != high)
    expected, dps = _expected(number, retry, named, layout)
    outside = part == PART_OUTSIDE
    expected = np.where(outside, gathered["shards_seen"], expected)
    dps = np.where(outside, gathered["dps_seen"], dps)
    found += [_conflict(rows, place, outcome, voting) for place in np.flatnonzero(conflict & ~outside).tolist()]
    undecided_groups = set(np.flatnonzero(undecided | outside).tolist())
    found = [item for item in found if item.group not in undecided_groups]
    mismatch = np.zeros(len(head), dtype=np.bool_)
    mismatch[[item.group for item in found]] = True
    held = (gathered["shards_reported"] < expected) | conflict | mismatch
    result = np.where(undecided, OPEN, np.where(held, HELD, high))
    result = np.where(outside, ABANDONED, result)
    counted = np.where(undecided, gathered["shards_seen"], expected)
    counted_dps = np.where(undecided, gathered["dps_seen"], dps)
    reasons = _reasons(rows, SKIP_REASONS)
    return Groups(
        number=number,
        retry=retry,
        part=part,
        outcome=result,
        reason=[reason if code == SKIPPED else None for reason, code in zip(reasons, result.tolist(), strict=True)],
        shards_expected=expected,
        shards_reported=gathered["shards_reported"],
        dp_count=dps,
        known=gathered["known"],
        unknown=_lacking(gathered["having"], counted, counted_dps),
        ranges=gathered["ranges"],
        disagreements=found,
        rows=rows.events,
        row_group=gathered["row_group"],
        **loss_means(rows, gathered["valid"]),
        **measured_once(rows),
    )


def _lacking(having: Mapping[str, Integers], shards: Integers, dps: Integers) -> dict[str, Integers]:
    return {name: np.maximum((dps if name == "samples" else shards) - count, 0) for name, count in having.items()}


def _conflict(rows: Replicas, place: int, outcome: Integers, voting: Any) -> Disagreement:
    begin = int(rows.groups[place])
    end = int(rows.groups[place + 1]) if place + 1 < len(rows.groups) else rows.size
    votes = [(int(rows.events.rank[row]), OUTCOMES[outcome[row]]) for row in range(begin, end) if voting[row]]
    votes.sort()
    odd = next(vote for vote in votes if vote[1] != votes[0][1])
    return Disagreement(place, "outcome_conflict", odd[0], "outcome", votes[0][1], odd[1])


def fold_updates(events: Events, layout: Layout, resolutions: Sequence[Resolution] = ()) -> Groups:
    """The updates that rows of an attempt make, each with its outcome and its quantities.

    Law: permuting, duplicating or cutting the rows into batches otherwise gives the same groups.
    """
    plain = _fold_standing(events, layout)
    if not resolutions:
        return plain
    settled = _fold_standing(_settle(events, layout, resolutions), layout)
    still = {(item.kind, item.quantity, int(settled.number[item.group]), int(settled.retry[item.group])) for item in settled.disagreements}
    places = {
        key: place
        for place, key in enumerate(zip(settled.number.tolist(), settled.retry.tolist(), settled.part.tolist(), strict=True))
    }
    for item in plain.disagreements:
        number, retry = int(plain.number[item.group]), int(plain.retry[item.group])
        item.open = (item.kind, item.quantity, number, retry) in still
        item.group = places[number, retry, int(plain.part[item.group])]
    settled.disagreements = plain.disagreements
    return settled


def fold_discards(events: Events, layout: Layout) -> Groups:
    """The groups of microbatches that entered no update; what reported them counts, and they are never held."""
    number, retry = events.counts("update"), retries(events)
    rows = sort_rows(events, layout, (number, retry), np.ones(len(events), dtype=np.bool_))
    return _without_optimizer(rows, PART_DISCARD, DISCARDED, _reasons(rows, DISCARD_REASONS))


def fold_evaluations(events: Events, layout: Layout) -> Groups:
    """The evaluations of an attempt, by the update they follow, their try and their name."""
    number, retry, name = events.counts("update"), retries(events), events.texts("name")
    order = np.argsort(np.array([*name.values, ""], dtype=object)).argsort()
    rows = sort_rows(events, layout, (number, retry, order[name.codes]), np.ones(len(events), dtype=np.bool_))
    groups = _without_optimizer(rows, PART_UPDATE, DISCARDED, [None] * len(rows.groups))
    names = rows.events.texts("name")
    groups.name = [names.at(row) for row in rows.groups.tolist()]
    return groups


def _without_optimizer(rows: Replicas, part: int, outcome: int, reason: list[str | None]) -> Groups:
    """Groups that no optimizer decides on: whoever reported is whoever took part."""
    found: list[Disagreement] = []
    gathered = count_once(rows, found)
    head, size = rows.groups, len(rows.groups)
    nothing = Floats(np.zeros(size), np.zeros(size, dtype=np.bool_))
    none = np.full(size, -1, dtype=np.int64)
    return Groups(
        number=rows.events.counts("update")[head],
        retry=retries(rows.events)[head],
        part=np.full(size, part, dtype=np.int64),
        outcome=np.full(size, outcome, dtype=np.int64),
        reason=reason,
        shards_expected=gathered["shards_seen"],
        shards_reported=gathered["shards_seen"],
        dp_count=gathered["dps_seen"],
        known=gathered["known"],
        unknown=_lacking(gathered["having"], gathered["shards_seen"], gathered["dps_seen"]),
        ranges=gathered["ranges"],
        microbatches=none,
        loss=nothing,
        token_mean=nothing,
        mean_of_rank_means=nothing,
        mean_of_microbatch_means=nothing,
        nonfinite_ranks=np.zeros(size, dtype=np.int64),
        reported_loss=nothing,
        schedule_step=none,
        started_at=none,
        disagreements=found,
        rows=rows.events,
        row_group=gathered["row_group"],
        **measured_once(rows),
    )
