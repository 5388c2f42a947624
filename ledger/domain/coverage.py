"""Data exposure by interval arithmetic: how often each position of a stream was seen, and which were not.

The cost is that of the ranges, never that of the positions. On the trajectory, for each stream and epoch:

| set | positions |
|---|---|
| effective | drawn by applied updates |
| repeated | effective more than once |
| without_effect | drawn, but only by skipped, abandoned, discarded or open work |
| passed_over | jumped on purpose |
| gaps | below the highest position drawn, never drawn, not passed over |

Ranges of held updates are in none of these sets, and are no gap.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.domain.intervals import Intervals

EFFECTIVE, WITHOUT_EFFECT, UNUSED, HELD, PASSED = "effective", "without_effect", "unused", "held", "passed"
"""What ranges came to; those that no optimizer decides on are unused, which is without effect too, but never held."""

CLASS_OF_OUTCOME = {
    "applied": EFFECTIVE,
    "skipped": WITHOUT_EFFECT,
    "abandoned": WITHOUT_EFFECT,
    "discarded": UNUSED,
    "open": UNUSED,
    "held": HELD,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """Ranges of one stream and epoch that were drawn with one effect; ranges may overlap, each counts.

    Shape: `start` and `stop` have one entry a range.
    """

    stream: str
    epoch: int
    effect: str
    start: NDArray[np.int64]
    stop: NDArray[np.int64]


@dataclass(slots=True)
class StreamCoverage:
    """How the positions of one stream and epoch were seen on a trajectory."""

    stream: str
    epoch: int
    effective_total: int = 0
    effective_unique: int = 0
    times_seen: dict[int, int] = field(default_factory=dict)
    effective: Intervals = field(default_factory=Intervals)
    repeated: Intervals = field(default_factory=Intervals)
    gaps: Intervals = field(default_factory=Intervals)
    without_effect: Intervals = field(default_factory=Intervals)
    passed_over: Intervals = field(default_factory=Intervals)

    @property
    def extent(self) -> int:
        """One past the highest position that was drawn or passed over."""
        ends = (part.last for part in (self.effective, self.without_effect, self.passed_over))
        return max((last + 1 for last in ends if last is not None), default=0)


def depth(start: NDArray[np.int64], stop: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many ranges cover each stretch between two neighbouring edges: (edges, cover of the stretch behind each edge)."""
    edges = np.concatenate((start, stop))
    steps = np.concatenate((np.ones(len(start), np.int64), np.full(len(stop), -1, np.int64)))
    order = np.argsort(edges, kind="stable")
    places, first = np.unique(edges[order], return_index=True)
    return places, np.cumsum(np.add.reduceat(steps[order], first)) if len(places) else steps


def merged(start: NDArray[np.int64], stop: NDArray[np.int64], at_least: int = 1) -> Intervals:
    """The positions that at least so many ranges cover."""
    edges, cover = depth(start, stop)
    if not len(edges):
        return Intervals()
    changes = np.diff(np.concatenate(([False], cover >= at_least)).astype(np.int8), append=0)[: len(edges)]
    return Intervals(tuple(zip(edges[changes == 1].tolist(), edges[changes == -1].tolist(), strict=True)))


def _stream(name: str, epoch: int, parts: list[Drawn]) -> StreamCoverage:
    def arrays(*effects: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        chosen = [part for part in parts if part.effect in effects]
        if not chosen:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([part.start for part in chosen]), np.concatenate([part.stop for part in chosen])

    start, stop = arrays(EFFECTIVE)
    edges, cover = depth(start, stop)
    result = StreamCoverage(name, epoch)
    if len(edges):
        widths, times = np.diff(edges), cover[:-1]
        for seen in np.unique(times[times > 0]).tolist():
            result.times_seen[seen] = int(widths[times == seen].sum())
    result.effective_total = sum(seen * width for seen, width in result.times_seen.items())
    result.effective_unique = sum(result.times_seen.values())
    effective, held = merged(start, stop), merged(*arrays(HELD))
    idle, result.passed_over = merged(*arrays(WITHOUT_EFFECT, UNUSED)), merged(*arrays(PASSED))
    result.effective, result.repeated = effective, merged(start, stop, at_least=2)
    result.without_effect = idle.minus(effective).minus(held)
    # What is held is provisional, like the shards that it may still wait for: it neither is a gap nor opens one below it.
    drawn = effective.union(idle)
    if drawn.last is not None:
        result.gaps = Intervals.of([(0, drawn.last + 1)]).minus(drawn).minus(held).minus(result.passed_over)
    return result


def coverage_of(parts: Iterable[Drawn]) -> list[StreamCoverage]:
    """The coverage of each stream and epoch that was drawn from or passed over, in the order of their names."""
    streams: dict[tuple[str, int], list[Drawn]] = {}
    for part in parts:
        streams.setdefault((part.stream, part.epoch), []).append(part)
    return [_stream(name, epoch, streams[name, epoch]) for name, epoch in sorted(streams)]


def as_lists(item: StreamCoverage, unit: str, limit: int) -> dict[str, Any]:
    """The coverage of a stream as a report; range lists are cut at `limit`, which `truncated` says."""
    sets = {name: getattr(item, name).to_list() for name in ("repeated", "gaps", "without_effect", "passed_over")}
    return {
        "stream": item.stream,
        "epoch": item.epoch,
        "unit": unit,
        "effective_total": item.effective_total,
        "effective_unique": item.effective_unique,
        "times_seen": {str(seen): width for seen, width in sorted(item.times_seen.items())},
        **{name: spans[:limit] for name, spans in sets.items()},
        "truncated": any(len(spans) > limit for spans in sets.values()),
    }
