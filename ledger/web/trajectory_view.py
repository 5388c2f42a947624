"""What the page of the trajectory shows: attempts as branches over the work done, where they were saved, rolled back and redone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.web.addresses import checkpoint_path
from ledger.web.drawing import HEIGHT_UNITS, WIDTH_UNITS, Axis, axis_of, evenly, steps, tick_words
from ledger.web.wording import between, counted, figure, moment

Json = Mapping[str, Any]
MINUTES = len("2026-03-01 00:00")
COLUMNS = (
    ("attempt", "attempt", ""),
    ("from", "resumed from", ""),
    ("numbers", "attempted", "figure fixed"),
    ("on", "on the trajectory", "figure fixed"),
    ("applied", "applied on it", "figure"),
    ("lost", "lost", "figure"),
    ("skipped", "skipped", "figure"),
    ("redone", "redone", "figure"),
    ("saves", "saves", "figure fixed"),
    ("ended", "end", "fixed"),
    ("started", "started, UTC", "fixed"),
)
MANY_SAVES = 120
"""With more checkpoints than this their marks are drawn smaller."""
STATE_OF = {"accepted": "save", "started": "save open"}


@dataclass(frozen=True, slots=True)
class _Branch:
    """An attempt in the drawing: work done before it, its first update number, and how much work one number is."""

    begin: int
    end: int
    first: int
    last: int

    def at(self, number: int) -> float:
        """The work done when that update was attempted."""
        return self.begin + (number - self.first + 1) * (self.end - self.begin) / (self.last - self.first + 1)


def _branches(attempts: Sequence[Json]) -> dict[str, _Branch]:
    found, done = {}, 0
    for item in attempts:
        size = item["updates"]["attempted"]
        if size and item["first"] is not None:
            found[item["attempt"]] = _Branch(done, done + size, item["first"], item["last"])
        done += size
    return found


def trajectory_view(tree: Json, checkpoints: Json, kept: Json, newest: int | None) -> dict[str, Any]:
    """The page of the trajectory: of all attempts, or of so many of the newest."""
    attempts = tree["attempts"] if newest is None else tree["attempts"][-newest:]
    branches = _branches(attempts)
    work = sum(item["updates"]["attempted"] for item in attempts)
    low = min((branch.first - 1 for branch in branches.values()), default=0)
    x = evenly(0, work)
    y = axis_of(0 if newest is None else low, max((branch.last for branch in branches.values()), default=0))
    saves = [item for item in checkpoints["checkpoints"] if item["attempt"] in branches]
    rollbacks = sum(item["resumed_from"] is not None for item in attempts)
    lost = sum(item["updates"]["lost_to_restart"] for item in attempts)
    redone = sum(item["recomputed"] for item in attempts)
    return {
        "lead": f"{counted(len(attempts), 'attempt', 'attempts')}, {counted(rollbacks, 'resume', 'resumes')} from a checkpoint; "
        f"{counted(lost, 'applied update was', 'applied updates were')} lost to restarts, "
        f"{counted(redone, 'update', 'updates')} redid a number that had been attempted before.",
        "choices": _choices(len(tree["attempts"]), newest),
        "paths": list(_paths(attempts, branches, kept["accepted_checkpoint"], x, y)) if branches else [],
        "saves": _saves(saves, branches, x, y),
        "many": len(saves) > MANY_SAVES,
        "preserved": steps(_preserved(attempts, branches, saves, x, y)),
        "left": _left_behind(attempts, branches, x),
        "xs": [figure(int(value)) for value in x.ticks],
        "ys": [tick_words(value) for value in reversed(y.ticks)],
        "grid": [y.y(value) for value in y.ticks],
        "description": f"Update number against work done: {len(attempts)} attempts, each a rising line from where it resumed; "
        f"{counted(lost, 'applied update', 'applied updates')} off the trajectory. The table below has every attempt.",
        "columns": COLUMNS,
        "caption": "newest first; counts in updates",
    }


def _choices(in_all: int, newest: int | None) -> list[dict[str, Any]]:
    counts = [count for count in (None, 25, 10, 3) if count is None or count < in_all]
    return [
        {
            "words": f"all {in_all:,} attempts" if count is None else f"newest {count}",
            "query": "" if count is None else f"?newest={count}",
            "chosen": count == newest,
        }
        for count in counts
        if len(counts) > 1
    ]


def _left_behind(attempts: Sequence[Json], branches: Mapping[str, _Branch], x: Axis) -> dict[str, Any] | None:
    """A bar an attempt, as wide as its work: how many applied updates it left behind when a later one resumed from before them."""
    found = [(item["updates"]["lost_to_restart"], branches[item["attempt"]]) for item in attempts if item["attempt"] in branches]
    most = max((count for count, _ in found), default=0)
    if not most:
        return None
    y = axis_of(0, most, 3)
    bars = (
        f"M{x.x(branch.begin)} {HEIGHT_UNITS}V{y.y(count)}H{x.x(branch.end)}V{HEIGHT_UNITS}Z" for count, branch in found if count
    )
    return {"path": "".join(bars), "ys": [tick_words(y.ticks[-1]), "0"], "description": f"At most {most:,} in one attempt."}


def _paths(
    attempts: Sequence[Json], branches: Mapping[str, _Branch], accepted: Json | None, x: Axis, y: Axis
) -> Iterable[dict[str, str]]:
    """Lines by what became of the work: kept, at risk and gone; and the edges from a checkpoint to the attempt that resumed there."""
    lines: dict[str, list[str]] = {"back": [], "gone": [], "risk": [], "kept": []}
    # Of the newest attempts alone, the one that owns the accepted checkpoint may be older than all that are drawn.
    is_past = accepted is None or all(item["attempt"] != accepted["attempt"] for item in attempts)
    for item in attempts:
        branch = branches.get(item["attempt"])
        if branch is None:
            continue
        source = item["resumed_from"]
        if source is not None and source["attempt"] in branches:
            old = branches[source["attempt"]]
            lines["back"].append(f"M{x.x(old.at(source['update']))} {y.y(source['update'])}H{x.x(branch.begin)}")
        # Numbers that an attempt has on the trajectory come first in it, then those that were left behind.
        through = branch.first - 1 if item["through"] is None else min(item["through"], branch.last)
        is_last_kept = accepted is not None and accepted["attempt"] == item["attempt"]
        kept = through if not is_past else branch.first - 1
        if is_last_kept and accepted is not None:
            kept = min(through, accepted["update"])
        edges = [("kept", branch.first - 1, kept), ("risk", kept, through), ("gone", through, branch.last)]
        for name, start, stop in edges:
            if stop > start:
                lines[name].append(f"M{x.x(branch.at(start))} {y.y(start)}L{x.x(branch.at(stop))} {y.y(stop)}")
        is_past = is_past or is_last_kept
    return [{"name": name, "path": "".join(parts)} for name, parts in lines.items() if parts]


def _saves(checkpoints: Sequence[Json], branches: Mapping[str, _Branch], x: Axis, y: Axis) -> list[dict[str, str]]:
    marks: dict[str, list[str]] = {}
    for item in checkpoints:
        branch = branches.get(item["attempt"])
        if branch is not None and item["state"] in STATE_OF and branch.first - 1 <= item["update"] <= branch.last:
            marks.setdefault(STATE_OF[item["state"]], []).append(f"M{x.x(branch.at(item['update']))} {y.y(item['update'])}h0")
    return [{"name": name, "path": "".join(parts)} for name, parts in marks.items()]


def _preserved(
    attempts: Sequence[Json], branches: Mapping[str, _Branch], checkpoints: Sequence[Json], x: Axis, y: Axis
) -> Iterable[tuple[float, float, float]]:
    """Up to which update work was safe while it was done: a step up at each accepted checkpoint, back where an attempt resumed earlier."""
    accepted: dict[str, list[int]] = {}
    for item in checkpoints:
        if item["state"] == "accepted":
            accepted.setdefault(item["attempt"], []).append(item["update"])
    for item in attempts:
        branch = branches.get(item["attempt"])
        if branch is None:
            continue
        level = 0 if item["resumed_from"] is None else item["resumed_from"]["update"]
        begin: float = branch.begin
        for update in sorted(accepted.get(item["attempt"], [])):
            if branch.first <= update <= branch.last:
                yield x.x(begin), x.x(branch.at(update)), y.y(level)
                begin, level = branch.at(update), update
        yield x.x(begin), x.x(branch.end), y.y(level)


def attempt_rows(tree: Json, newest: int | None, project: str, run: str) -> list[dict[str, Any]]:
    """The table beside the picture, newest attempt first."""
    attempts = tree["attempts"] if newest is None else tree["attempts"][-newest:]
    branches, work = _branches(attempts), sum(item["updates"]["attempted"] for item in attempts)
    return [_row(item, branches, evenly(0, work), project, run) for item in reversed(attempts)]


def _row(item: Json, branches: Mapping[str, _Branch], x: Axis, project: str, run: str) -> dict[str, Any]:
    source, branch, updates = item["resumed_from"], branches.get(item["attempt"]), item["updates"]
    saves = item["checkpoints"]
    row = {
        "attempt": item["attempt"],
        "from": "scratch"
        if source is None
        else {
            "words": f"{source['checkpoint']} of {source['attempt'] or 'another run'}",
            "href": checkpoint_path(project, run, source["checkpoint"], source["attempt"], source["update"]) if source["attempt"] else None,
        },
        "numbers": "none" if branch is None else between(f"{branch.first:,}", f"{branch.last:,}"),
        "on": item["undecided"] or (f"up to {item['through']:,}" if item["through"] is not None and branch is not None else "off it"),
        "applied": figure(updates["preserved"] + updates["pending"]),
        "lost": figure(updates["lost_to_restart"]),
        "skipped": figure(updates["skipped"]),
        "redone": figure(item["recomputed"]),
        "saves": figure(saves["accepted"]) + (f" of {figure(sum(saves.values()))}" if sum(saves.values()) > saves["accepted"] else ""),
        "ended": item["ended"] or "running",
        "started": moment(item["started_at"])[:MINUTES] or "unknown",
    }
    if branch is not None:
        row |= {"begin": round(x.x(branch.begin)), "end": round(min(x.x(branch.end), WIDTH_UNITS))}
    return row
