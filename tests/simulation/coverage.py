"""Which data the trajectory drew: times seen, repeats, gaps, what was drawn without effect, and where a cursor stood."""

from itertools import pairwise
from typing import Any

from tests.simulation.groups import Group, Range
from tests.simulation.lineage import Lineage, Save, Step, covers, on_trajectory

Span = tuple[int, int]


def tally(spans: list[Span]) -> list[tuple[int, int, int]]:
    """Elementary intervals with how often each was drawn, in order, none of them zero times."""
    points = sorted({point for span in spans for point in span})
    result = []
    for start, stop in pairwise(points):
        times = sum(1 for span in spans if span[0] <= start and stop <= span[1])
        if times:
            result.append((start, stop, times))
    return result


def merged(spans: list[Span]) -> list[list[int]]:
    """The union of spans as maximal intervals."""
    result: list[list[int]] = []
    for start, stop, _ in tally(spans):
        if result and result[-1][1] == start:
            result[-1][1] = stop
        else:
            result.append([start, stop])
    return result


def minus(spans: list[Span], taken: list[Span]) -> list[list[int]]:
    """What of the first spans lies in none of the second."""
    points = sorted({point for span in spans + taken for point in span})
    left = []
    for start, stop in pairwise(points):
        inside = any(span[0] <= start and stop <= span[1] for span in spans)
        outside = not any(span[0] <= start and stop <= span[1] for span in taken)
        if inside and outside:
            left.append((start, stop))
    return merged(left)


def role(group: Group) -> str:
    """What a group's ranges count as."""
    if group.outcome == "applied":
        return "effective"
    if group.outcome == "held":
        return "held"
    if group.kind == "passes":
        return "passed"
    return "idle"


def cover(lineage: Lineage, groups: list[Group], before: list[Group], unit: str) -> list[dict[str, Any]]:
    """The coverage of the trajectory, by stream and epoch; `before` is what the parent run drew on the way to the fork."""
    spans: dict[tuple[str, int], dict[str, list[Span]]] = {}
    own = [group for group in groups if group.kind != "evaluations" and on_trajectory(lineage, group) is not None]
    for group in before + own:
        for stream, epoch, start, stop in group.ranges:
            parts = spans.setdefault((stream, epoch), {"effective": [], "held": [], "idle": [], "passed": []})
            if start < stop:
                parts[role(group)].append((start, stop))
    streams = []
    for (stream, epoch), parts in sorted(spans.items()):
        seen = tally(parts["effective"])
        times: dict[str, int] = {}
        for start, stop, count in seen:
            times[str(count)] = times.get(str(count), 0) + stop - start
        drawn = parts["effective"] + parts["idle"]
        highest = max((stop for _, stop in drawn), default=0)
        streams.append(
            {
                "stream": stream,
                "epoch": epoch,
                "unit": unit,
                "effective_total": sum((stop - start) * count for start, stop, count in seen),
                "effective_unique": sum(stop - start for start, stop, _ in seen),
                "times_seen": times,
                "repeated": merged([(start, stop) for start, stop, count in seen if count > 1]),
                "gaps": minus([(0, highest)], drawn + parts["passed"] + parts["held"]) if highest else [],
                "without_effect": minus(parts["idle"], parts["effective"] + parts["held"]),
                "passed_over": merged(parts["passed"]),
            }
        )
    return streams


def drawn_before(lineage: Lineage, groups: list[Group], save: Save) -> list[Group]:
    """Everything that lies on the way to a save, within the run."""
    result: list[Group] = []
    attempt, limit = save.key[0], save
    while True:
        result += [group for group in groups if group.attempt == attempt and group.kind != "evaluations" and covers(limit, group)]
        origin = lineage.source.get(attempt)
        if origin is None:
            return result
        attempt, limit = origin.key[0], origin


def furthest(ranges: list[Range], stream: str, epoch: int) -> int:
    """The furthest position of an epoch of a stream that ranges reach; its beginning where they reach none."""
    return max((stop for name, number, _, stop in ranges if (name, number) == (stream, epoch)), default=0)


def misplaced_saves(lineage: Lineage, groups: list[Group], earlier: list[Group]) -> set[tuple[str, str]]:
    """The saves on the trajectory whose declared position is neither the drawn nor the trained cursor: (attempt, name)."""
    wrong = set()
    steps = {step.attempt: step for step in lineage.path}
    drawing = earlier + [group for group in groups if group.kind != "evaluations" and on_trajectory(lineage, group) is not None]
    streams = {r[0] for group in drawing for r in group.ranges}
    for save in lineage.saves.values():
        if save.positions is None or save.key[0] not in steps:
            continue
        limit = steps[save.key[0]].limit
        if limit is not None and save.update > limit.update:
            continue
        before = earlier + drawn_before(lineage, groups, save)
        lacking = [group for group in groups if group.attempted and group.incomplete and group.attempt == save.key[0]]
        if any(group.update <= save.update for group in lacking):
            continue
        for stream, position in save.positions.items():
            drawn = [r for group in before for r in group.ranges]
            trained = [r for group in before if group.outcome == "applied" or group.kind == "passes" for r in group.ranges]
            cursors = [furthest(ranges, stream, position["epoch"]) for ranges in (drawn, trained)]
            if stream in streams and position["position"] not in cursors:
                wrong.add(save.key[:2])
    return wrong


def misplaced_resumes(lineage: Lineage, groups: list[Group], fork: Save | None) -> set[str]:
    """The attempts of the trajectory whose first range does not start where their checkpoint says."""
    sources = [(step, step.source or fork) for step in lineage.path]
    return {step.attempt for step, source in sources if source is not None and starts_elsewhere(step, source, groups)}


def starts_elsewhere(step: Step, source: Save, groups: list[Group]) -> bool:
    """Whether the first range of a stream lies elsewhere than the checkpoint's position, or the end of a pass from there."""
    own = [group for group in groups if group.attempt == step.attempt and group.kind in ("updates", "discards", "outside")]
    for stream, position in (source.positions or {}).items():
        drawing = [group for group in own if any(r[0] == stream for r in group.ranges)]
        if not drawing:
            continue
        number = min(group.update for group in drawing)
        if any(group.kind == "updates" and group.outcome == "held" and group.incomplete and group.update <= number for group in own):
            continue
        epoch, found = min((r[1], r[2]) for group in drawing if group.update == number for r in group.ranges if r[0] == stream)
        if epoch < position["epoch"]:
            continue
        expected = position["position"] if epoch == position["epoch"] else 0
        jumps = [r for g in groups if g.kind == "passes" and g.attempt == step.attempt and g.update <= number for r in g.ranges]
        for _, _, start, stop in sorted(r for r in jumps if r[:2] == (stream, epoch)):
            expected = stop if start <= expected < stop else expected
        if found != expected:
            return True
    return False
