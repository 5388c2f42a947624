"""Rows of ranks counted once: replicas of a shard are one, samples belong to a data-parallel rank.

Rows are sorted so that groups hold data-parallel ranks, these hold shards, and these hold the rows of replicas; each fold is then
a sum or an extreme over segments. Where replicas differ, the largest value stands and the contradiction is named.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ledger.domain import segments
from ledger.domain.columns import Events, Floats, Integers, Ranges
from ledger.domain.layout import Layout
from ledger.domain.quantities import QUANTITIES

COUNTED = QUANTITIES[:3]


@dataclass(slots=True)
class Disagreement:
    """Ranks of one group that contradict each other, with the value that stands and the one that differs."""

    group: int
    kind: str
    rank: int | None
    quantity: str | None
    expected: object
    found: object
    open: bool = True


@dataclass(slots=True)
class Replicas:
    """Rows sorted group by group, data-parallel rank by rank, shard by shard, with the nested segments."""

    events: Events
    order: Integers
    groups: Integers
    dps: Integers
    shards: Integers
    closed: Any

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.events)


def writer_places(events: Events) -> Integers:
    """The place of each row's writer among the names, whatever order they were met in."""
    names = np.array([*events.writer.values, ""], dtype=object)
    places: Integers = names.argsort().argsort()[events.writer.codes]
    return places


def sort_rows(events: Events, layout: Layout, keys: tuple[Integers, ...], closed: Any) -> Replicas:
    """The rows of an attempt in the order in which they are folded; `closed` marks rows that an outcome has closed."""
    shard, dp = layout.shards[events.rank], layout.dp_ranks[events.rank]
    order = np.lexsort((events.counts("seq"), writer_places(events), events.rank, shard, dp, *reversed(keys)))
    ordered = tuple(key[order] for key in keys)
    shard, dp = shard[order], dp[order]
    return Replicas(
        events.take(order),
        order,
        segments.starts_of(*ordered),
        segments.starts_of(*ordered, dp),
        segments.starts_of(*ordered, dp, shard),
        closed[order],
    )


def _once(rows: Replicas, values: Integers, inner: Integers, name: str, found: list[Disagreement]) -> tuple[Integers, Integers]:
    """The value that stands a replica group (the largest), and the group of each; contradictions are added to `found`."""
    stands = segments.largest(values, inner)
    compared = np.where(rows.closed, values, -1)
    differs = (segments.smallest_known(compared, inner) != segments.largest(compared, inner)) & (segments.largest(compared, inner) >= 0)
    owner = np.searchsorted(rows.groups, inner, side="right") - 1
    for place in np.flatnonzero(differs).tolist():
        begin, end = int(inner[place]), int(inner[place + 1]) if place + 1 < len(inner) else rows.size
        odd = begin + int(np.flatnonzero((compared[begin:end] >= 0) & (compared[begin:end] != stands[place]))[0])
        found.append(
            Disagreement(int(owner[place]), "replica_mismatch", int(rows.events.rank[odd]), name, int(stands[place]), int(values[odd]))
        )
    return stands, segments.parents(inner, rows.groups)


def _fingerprints(ranges: Ranges) -> Integers:
    """A number a row that is equal for equal ranges in any order and cutting order; -1 where they are unknown."""
    mixed = np.zeros(len(ranges.start), dtype=np.uint64)
    for values in (ranges.stream.codes, ranges.epoch, ranges.start, ranges.stop):
        mixed = (mixed ^ values.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)))
    first = ranges.first
    sums = totals[first + ranges.lengths] - totals[first]
    return np.where(ranges.present, (sums >> np.uint64(1)).astype(np.int64), -1)


def _data(rows: Replicas, found: list[Disagreement]) -> tuple[Ranges, Integers, Integers]:
    """Ranges and samples of each data-parallel rank, counted once: (ranges a group, samples a rank, where groups begin)."""
    columns = rows.events.columns
    ranges = rows.events.ranges() if "ranges" in columns else Ranges.nothing(rows.size)
    spans = ranges.spans()
    samples = rows.events.counts("samples")
    samples = np.where((samples < 0) & ranges.present, spans, samples)
    stands, begins = _once(rows, samples, rows.dps, "samples", found)
    before = len(found)
    _once(rows, _fingerprints(ranges), rows.dps, "ranges", found)
    for item in found[before:]:
        item.expected = item.found = None
    longest = segments.spread(segments.largest(np.where(ranges.present, spans, -1), rows.dps), rows.dps, rows.size)
    chosen = segments.first_of(ranges.present & (spans == longest), rows.dps)
    chosen = chosen[chosen >= 0]
    owner = np.searchsorted(rows.groups, chosen, side="right") - 1
    return segments.coalesce(ranges.take(chosen), owner, len(rows.groups)), stands, begins


def loss_means(rows: Replicas, valid: Integers) -> dict[str, Any]:
    """The means of an update's loss: over tokens, over data-parallel ranks, over microbatches.

    Law: token mean = sum of NLL / sum of valid targets, null where there are none; never NaN.
    """
    present = rows.events.floats("loss_sum")
    loss = segments.pick(present, segments.first_of(present.present, rows.shards))
    dps, groups = segments.parents(rows.shards, rows.dps), segments.parents(rows.shards, rows.groups)
    dp_groups = segments.parents(rows.dps, rows.groups)
    finite = loss.present & np.isfinite(loss.values)
    usable = ~segments.some(~finite, groups) & ~segments.some(valid < 0, groups)
    sums, targets = np.where(finite, loss.values, 0.0), np.maximum(valid, 0).astype(np.float64)
    all_loss, all_targets = _sum(sums, groups), _sum(targets, groups)
    scored = usable & (all_targets > 0)
    dp_targets, dp_loss = _sum(targets, dps), _sum(sums, dps)
    has_targets = dp_targets > 0
    dp_means = np.divide(dp_loss, dp_targets, out=np.zeros_like(dp_loss), where=has_targets)
    means_of = segments.count(has_targets, dp_groups)
    mean_sums = rows.events.floats("microbatch_mean_sum")
    mean_sum = segments.pick(mean_sums, segments.first_of(mean_sums.present, rows.shards))
    scored_counts = segments.largest(rows.events.counts("microbatches_scored"), rows.shards)
    known = mean_sum.present & np.isfinite(mean_sum.values) & (scored_counts >= 0)
    all_scored = _sum(np.maximum(scored_counts, 0).astype(np.float64), groups)
    micro_ok = ~segments.some(~known, groups) & (all_scored > 0)
    return {
        "loss": Floats(all_loss, usable),
        "token_mean": Floats(_ratio(all_loss, all_targets), scored),
        "mean_of_rank_means": Floats(_ratio(_sum(dp_means, dp_groups), means_of), scored & (means_of > 0)),
        "mean_of_microbatch_means": Floats(_ratio(_sum(np.where(known, mean_sum.values, 0.0), groups), all_scored), micro_ok),
        "nonfinite_ranks": segments.count(loss.present & ~np.isfinite(loss.values), groups),
    }


def _sum(values: Any, starts: Integers) -> Any:
    return np.add.reduceat(values, starts) if len(starts) else values[:0]


def _ratio(over: Any, under: Any) -> Any:
    return np.divide(over, under, out=np.zeros(len(over)), where=np.asarray(under) != 0)


def lowest_rank(rows: Replicas, present: Any) -> Integers:
    """The row of the lowest rank that has a value, a group; -1 where none has."""
    ranks = np.where(present, rows.events.rank, segments.LARGEST)
    lowest = np.minimum.reduceat(ranks, rows.groups) if len(rows.groups) else ranks[:0]
    return segments.first_of(present & (ranks == segments.spread(lowest, rows.groups, rows.size)), rows.groups)


def measured_once(rows: Replicas) -> dict[str, Any]:
    """What an update has once and not by shard: its duration, its start, the trainer's own loss and clock."""
    seconds = rows.events.floats("seconds")
    timed = seconds.present & np.isfinite(seconds.values)
    longest = segments.largest(np.where(timed, seconds.values, -np.inf), rows.groups)
    some_time = segments.some(timed, rows.groups)
    result = {"seconds": Floats(np.where(some_time, longest, 0.0), some_time)}
    if "started_at" not in rows.events.columns:
        return result
    earliest = segments.smallest_known(rows.events.counts("started_at"), rows.groups)
    reported = rows.events.floats("reported_loss")
    steps = rows.events.counts("schedule_step")
    place = lowest_rank(rows, steps >= 0)
    micro = np.maximum(segments.largest(rows.events.counts("microbatches"), rows.dps), 0)
    return result | {
        "started_at": np.where(earliest == segments.LARGEST, -1, earliest),
        "reported_loss": segments.pick(reported, lowest_rank(rows, reported.present)),
        "schedule_step": np.where(place >= 0, steps[place], -1),
        "microbatches": segments.total(micro, segments.parents(rows.dps, rows.groups)),
    }


def count_once(rows: Replicas, found: list[Disagreement]) -> dict[str, Any]:
    """What all kinds of groups have: quantities, ranges, and which shards reported."""
    known: dict[str, Any] = {}
    lacking: dict[str, Integers] = {}
    stands: dict[str, Integers] = {}
    for quantity in COUNTED:
        stands[quantity], begins = _once(rows, rows.events.counts(quantity), rows.shards, quantity, found)
        known[quantity] = segments.total(np.maximum(stands[quantity], 0), begins)
        lacking[quantity] = segments.count(stands[quantity] >= 0, begins)
    ranges, samples, begins = _data(rows, found)
    known["samples"] = segments.total(np.maximum(samples, 0), begins)
    lacking["samples"] = segments.count(samples >= 0, begins)
    shard_groups = segments.parents(rows.shards, rows.groups)
    return {
        "known": known,
        "having": lacking,
        "valid": stands["valid_targets"],
        "ranges": ranges,
        "shards_reported": segments.count(segments.some(rows.closed, rows.shards), shard_groups),
        "shards_seen": segments.count(np.ones(len(rows.shards), dtype=np.bool_), shard_groups),
        "dps_seen": segments.count(np.ones(len(rows.dps), dtype=np.bool_), segments.parents(rows.dps, rows.groups)),
        "row_group": np.searchsorted(rows.groups, np.arange(rows.size), side="right") - 1,
    }
