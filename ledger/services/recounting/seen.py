"""How often the positions of each stream and epoch were seen on a trajectory, by one sweep over the edges of all ranges.

| set | positions |
|---|---|
| effective | drawn by applied updates |
| repeated | effective more than once |
| without_effect | drawn, but only by skipped, abandoned, discarded or open work |
| passed_over | jumped on purpose |
| gaps | below the highest position drawn, never drawn, not passed over |

Ranges of held updates are in none of these sets: they are no gap, and they are not yet the highest position drawn.
"""

from collections.abc import Iterable, Iterator
from typing import Any

EFFECTIVE, IDLE, HELD, PASSED = range(4)
EFFECTS = {"applied": EFFECTIVE, "held": HELD}
"""What ranges of an outcome are; those of all others had no effect."""

Draw = tuple[str, int, int, int, int]
"""(stream, epoch, start, stop, effect)"""


def sweep(edges: dict[int, list[int]], kinds: int) -> Iterator[tuple[int, int, list[int]]]:
    """The stretches between neighbouring edges, each with how many ranges of each kind cover it."""
    depth = [0] * kinds
    before: int | None = None
    for edge in sorted(edges):
        if before is not None:
            yield before, edge, list(depth)
        for kind, step in enumerate(edges[edge]):
            depth[kind] += step
        before = edge


def profile(ranges: Iterable[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int, int]]:
    """Ranges as stretches with how often each is drawn: equal for ranges that are only cut or ordered otherwise."""
    edges: dict[tuple[str, int], dict[int, list[int]]] = {}
    for stream, epoch, start, stop in ranges:
        own = edges.setdefault((stream, epoch), {})
        own.setdefault(start, [0])[0] += 1
        own.setdefault(stop, [0])[0] -= 1
    result: list[tuple[str, int, int, int, int]] = []
    for (stream, epoch), own in sorted(edges.items()):
        for start, stop, (depth,) in sweep(own, 1):
            if result and result[-1][:2] == (stream, epoch) and result[-1][3:] == (start, depth):
                result[-1] = (stream, epoch, result[-1][2], stop, depth)
            elif depth:
                result.append((stream, epoch, start, stop, depth))
    return result


def coverage(draws: Iterable[Draw], unit: str) -> list[dict[str, Any]]:
    """The coverage of each stream and epoch, in the order of their names."""
    streams: dict[tuple[str, int], dict[int, list[int]]] = {}
    for stream, epoch, start, stop, effect in draws:
        edges = streams.setdefault((stream, epoch), {})
        edges.setdefault(start, [0, 0, 0, 0])[effect] += 1
        edges.setdefault(stop, [0, 0, 0, 0])[effect] -= 1
    return [_covered(stream, epoch, unit, streams[stream, epoch]) for stream, epoch in sorted(streams)]


def _covered(stream: str, epoch: int, unit: str, edges: dict[int, list[int]]) -> dict[str, Any]:
    times: dict[int, int] = {}
    sets: dict[str, list[list[int]]] = {name: [] for name in ("repeated", "gaps", "without_effect", "passed_over")}
    gaps: list[tuple[int, int]] = []
    drawn_until = 0
    edges.setdefault(0, [0, 0, 0, 0])
    for start, stop, depth in sweep(edges, 4):
        if depth[EFFECTIVE]:
            times[depth[EFFECTIVE]] = times.get(depth[EFFECTIVE], 0) + stop - start
        if depth[EFFECTIVE] > 1:
            _extend(sets["repeated"], start, stop)
        if depth[IDLE] and not depth[EFFECTIVE] and not depth[HELD]:
            _extend(sets["without_effect"], start, stop)
        if depth[PASSED]:
            _extend(sets["passed_over"], start, stop)
        if depth[EFFECTIVE] or depth[IDLE]:
            drawn_until = stop
        elif not any(depth):
            gaps.append((start, stop))
    for start, stop in gaps:
        if stop <= drawn_until:
            _extend(sets["gaps"], start, stop)
    return {
        "stream": stream,
        "epoch": epoch,
        "unit": unit,
        "effective_total": sum(seen * width for seen, width in times.items()),
        "effective_unique": sum(times.values()),
        "times_seen": {str(seen): times[seen] for seen in sorted(times)},
        **sets,
    }


def _extend(spans: list[list[int]], start: int, stop: int) -> None:
    if spans and spans[-1][1] == start:
        spans[-1][1] = stop
    else:
        spans.append([start, stop])
