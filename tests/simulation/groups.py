"""From ranks to an update, as the accounting page says it: replicas once, shards added, contradictions held."""

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.facts import Columns, Facts, Resolution, Row

QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")
GROUPED_KINDS = ("updates", "discards", "evaluations", "passes")
Range = tuple[str, int, int, int]


@dataclass
class Placement:
    """Which shard and which data-parallel rank each rank of an attempt belongs to."""

    shard_of: list[int]
    dp_rank_of: list[int]

    def dp_ranks(self, shards: set[int]) -> set[int]:
        """The data-parallel ranks that hold these shards."""
        return {self.dp_rank_of[rank] for rank, shard in enumerate(self.shard_of) if shard in shards}

    def shards_of_dp_rank(self, dp_rank: int) -> set[int]:
        """The shards of one data-parallel rank."""
        return {self.shard_of[rank] for rank, owner in enumerate(self.dp_rank_of) if owner == dp_rank}


@dataclass
class Group:
    """All rows of one kind, number and retry of an attempt, and what they say together."""

    kind: str
    attempt: str
    update: int
    retry: int
    rows: list[Row]
    outcome: str = "open"
    told: str | None = None  # by its own rows, where its attempt's unsettled origin holds it
    reason: str | None = None
    expected: set[int] = field(default_factory=set)
    reported: set[int] = field(default_factory=set)
    mismatched: set[tuple[int, str]] = field(default_factory=set)
    conflict: bool = False
    incomplete: bool = False
    known: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    lacking: set[str] = field(default_factory=set)
    ranges: list[Range] = field(default_factory=list)
    dp_rank_count: int = 0
    losses: Columns = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int]:
        """The place that findings and items name."""
        return (self.attempt, self.update, self.retry)

    @property
    def attempted(self) -> bool:
        """Whether this is an attempted update."""
        return self.kind == "updates" and self.outcome != "open"


def placement(layout: Columns) -> Placement:
    """Where each rank stands: said outright, or from the axes with the first axis of the order varying fastest."""
    if "shards" in layout:
        return Placement(list(layout["shards"]), list(layout["dp_ranks"]))
    sizes = {axis: layout.get(axis, 1) for axis in ("dp", "tp", "pp", "cp")}
    world = sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"]
    shard_of, dp_rank_of = [], []
    for rank in range(world):
        rest, coordinate = rank, {}
        for axis in layout.get("order", "tp-cp-dp-pp").split("-"):
            coordinate[axis] = rest % sizes[axis]
            rest = rest // sizes[axis]
        dp_rank_of.append(coordinate["dp"])
        if layout.get("cp_counts", "shard") == "shard":
            shard_of.append(coordinate["dp"] * sizes["cp"] + coordinate["cp"])
        else:
            shard_of.append(coordinate["dp"])
    return Placement(shard_of, dp_rank_of)


def samples_of(row: Row) -> int | None:
    """The samples a row drew: said, or given by its ranges."""
    if row.columns.get("samples") is not None:
        return int(row.columns["samples"])
    if row.columns.get("ranges") is not None:
        return sum(int(stop) - int(start) for _, _, start, stop in row.columns["ranges"])
    return None


def value_of(row: Row, quantity: str) -> int | None:
    """What a row knows of a quantity."""
    if quantity == "samples":
        return samples_of(row)
    value = row.columns.get(quantity)
    return None if value is None else int(value)


def ranges_of(row: Row) -> tuple[Range, ...] | None:
    """The ranges of a row, as one comparable value."""
    if row.columns.get("ranges") is None:
        return None
    return tuple((stream, epoch, start, stop) for stream, epoch, start, stop in row.columns["ranges"])


def standing_rows(rows: list[Row]) -> list[Row]:
    """The rows that stand for each rank: its closing rows; failing these the newest of its open rows."""
    standing = []
    for rank in sorted({row.rank for row in rows}):
        own = [row for row in rows if row.rank == rank]
        closing = [row for row in own if row.columns.get("outcome") != "open"]
        if closing:
            standing += sorted(closing, key=lambda row: (row.writer, row.seq))
        else:
            standing.append(max(own, key=lambda row: (row.seq, row.writer)))
    return standing


def collect(facts: Facts, layouts: dict[str, Columns]) -> list[Group]:
    """Every group of every attempt, with its outcome as its own attempt tells it."""
    rows_of: dict[tuple[Any, ...], list[Row]] = {}
    for row in facts.rows.values():
        if row.kind in GROUPED_KINDS and row.attempt in layouts:
            retry = row.columns.get("retry") or 0
            name = row.columns.get("name") if row.kind == "evaluations" else None
            rows_of.setdefault((row.kind, row.attempt, row.columns["update"], retry, name), []).append(row)
    groups = []
    for (kind, attempt, update, retry, _), rows in rows_of.items():
        group = Group(kind, attempt, update, retry, standing_rows(rows))
        place = placement(layouts[attempt])
        outside = leave_aside(group, place) if kind == "updates" else None
        resolutions = [
            resolution
            for resolution in facts.resolutions
            if kind == "updates" and (resolution.attempt, resolution.update, resolution.retry) == group.key
        ]
        settle(group, place, resolutions)
        groups.append(group)
        if outside is not None:
            settle(outside, place, [])
            groups.append(outside)
    return groups


def leave_aside(group: Group, place: Placement) -> Group | None:
    """Take the rows of shards that did not take part out of an update: they are a group of their own that came to nothing."""
    named = [set(row.columns["participants"]) for row in group.rows if row.columns.get("participants") is not None]
    if not named:
        return None
    aside = [row for row in group.rows if place.shard_of[row.rank] not in set().union(*named)]
    group.rows = [row for row in group.rows if row not in aside]
    return Group("outside", group.attempt, group.update, group.retry, aside) if aside else None


def settle(group: Group, place: Placement, resolutions: list[Resolution]) -> None:
    """Work out what the rows of a group say together."""
    chosen_rank, chosen_outcome = None, None
    for resolution in resolutions:
        if resolution.rank is not None:
            chosen_rank = resolution.rank
            chosen_outcome = next((row.columns.get("outcome") for row in group.rows if row.rank == chosen_rank), None)
        else:
            chosen_outcome = resolution.outcome
    if group.kind == "passes":
        group.outcome = "passed"
        group.ranges = [(row.columns["stream"], row.columns["epoch"], row.columns["start"], row.columns["stop"]) for row in group.rows]
        return
    by_shard: dict[int, list[Row]] = {}
    for row in group.rows:
        by_shard.setdefault(place.shard_of[row.rank], []).append(row)
    closed = {shard: [row for row in rows if row.columns.get("outcome") != "open"] for shard, rows in by_shard.items()}
    group.reported = {shard for shard, rows in closed.items() if rows}
    expect_shards(group, place)
    group.dp_rank_count = len(place.dp_ranks(group.expected))
    counted = {shard: closed[shard] or rows for shard, rows in by_shard.items()}
    group.rows = [row for rows in counted.values() for row in rows]
    compare_replicas(group, closed, None if chosen_rank is None else place.shard_of[chosen_rank])
    decide_outcome(group, chosen_outcome)
    add_shards(group, counted, place, chosen_rank)
    gather_losses(group, counted, place)


def expect_shards(group: Group, place: Placement) -> None:
    """The shards that an update waits for: all, or those that its participants name."""
    participants = [set(row.columns["participants"]) for row in group.rows if row.columns.get("participants") is not None]
    group.expected = set().union(*participants) if participants else set(place.shard_of)
    group.incomplete = bool(group.expected - group.reported)


def compare_replicas(group: Group, closed: dict[int, list[Row]], settled_shard: int | None) -> None:
    """Note where replicas of one shard contradict each other."""
    for shard, rows in closed.items():
        if shard == settled_shard:
            continue
        for quantity in QUANTITIES:
            if len({value_of(row, quantity) for row in rows} - {None}) > 1:
                group.mismatched.add((shard, quantity))
        if len({ranges_of(row) for row in rows} - {None}) > 1:
            group.mismatched.add((shard, "ranges"))


def decide_outcome(group: Group, chosen: str | None) -> None:
    """What the optimizer did, as far as the ranks agree on it."""
    if group.kind == "discards":
        group.outcome = "discarded"
        group.reason = next((row.columns["reason"] for row in group.rows if row.columns.get("reason")), "other")
        return
    if group.kind in ("evaluations", "outside"):
        group.outcome = "evaluated" if group.kind == "evaluations" else "abandoned"
        return
    said = {str(row.columns["outcome"]) for row in group.rows if row.columns.get("outcome") not in (None, "open")}
    if not said:
        group.outcome = "open"
        return
    group.conflict = len(said) > 1 and chosen is None
    group.outcome = chosen if chosen is not None else min(said)
    if group.outcome == "skipped":
        reasons = [row.columns["reason"] for row in group.rows if row.columns.get("reason")]
        group.reason = reasons[0] if reasons else "other"
    if group.incomplete or group.mismatched or group.conflict:
        group.outcome, group.reason = "held", None


def shard_value(rows: list[Row], quantity: str, chosen_rank: int | None) -> int | None:
    """What a shard knows of a quantity: the chosen rank's word, else the largest of its replicas."""
    for chosen in ([row for row in rows if row.rank == chosen_rank], rows):
        values = [value for value in (value_of(row, quantity) for row in chosen) if value is not None]
        if values:
            return max(values)
    return None


def add_shards(group: Group, counted: dict[int, list[Row]], place: Placement, chosen_rank: int | None) -> None:
    """Add the shards up; samples and ranges once a data-parallel rank."""
    waits_for_all = group.kind == "updates" and group.outcome != "open"
    for quantity in QUANTITIES:
        group.known[quantity] = 0
        units = [{shard} for shard in sorted(counted)]
        if quantity == "samples":
            units = [place.shards_of_dp_rank(dp_rank) & set(counted) for dp_rank in sorted(place.dp_ranks(set(counted)))]
        for unit in units:
            values = [shard_value(counted[shard], quantity, chosen_rank) for shard in unit]
            told = [value for value in values if value is not None]
            group.known[quantity] += max(told, default=0)
            if not told:
                group.lacking.add(quantity)
        silent = group.expected - set(counted)
        if quantity == "samples":
            silent_dp_ranks = place.dp_ranks(silent) - place.dp_ranks(set(counted))
            silent = {shard for shard in silent if place.dp_ranks({shard}) & silent_dp_ranks}
        if quantity in group.lacking or (waits_for_all and silent):
            group.unknown.add(quantity)
    for dp_rank in sorted(place.dp_ranks(set(counted))):
        rows = [row for shard in sorted(place.shards_of_dp_rank(dp_rank) & set(counted)) for row in counted[shard]]
        rows = [row for row in rows if ranges_of(row) is not None]
        preferred = [row for row in rows if row.rank == chosen_rank] or rows
        if preferred:
            longest = max(preferred, key=lambda row: samples_of(row) or 0)
            group.ranges += ranges_of(longest) or ()


def gather_losses(group: Group, counted: dict[int, list[Row]], place: Placement) -> None:
    """The token mean and the mean of rank means, where every shard says its loss as a finite number."""
    by_dp_rank: dict[int, list[tuple[float, int]]] = {}
    for shard in sorted(counted):
        rows = sorted(counted[shard], key=lambda row: row.rank)
        loss = next((row.columns["loss_sum"] for row in rows if row.columns.get("loss_sum") is not None), None)
        targets = shard_value(rows, "valid_targets", None)
        if loss is None or isinstance(loss, str) or targets is None:
            return
        dp_rank = next(place.dp_rank_of[row.rank] for row in rows)
        by_dp_rank.setdefault(dp_rank, []).append((loss, targets))
    pairs = [pair for parts in by_dp_rank.values() for pair in parts]
    total = sum(targets for _, targets in pairs)
    if group.incomplete or group.mismatched or total == 0:
        return
    group.losses["token_mean"] = sum(loss for loss, _ in pairs) / total
    means = []
    for parts in by_dp_rank.values():
        targets = sum(count for _, count in parts)
        if targets:
            means.append(sum(loss for loss, _ in parts) / targets)
    group.losses["mean_of_rank_means"] = sum(means) / len(means)
