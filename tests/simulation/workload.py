"""Random whole histories of a training run, from a seed: launches, layouts, updates, saves, rollbacks and everything that goes wrong."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.facts import Columns, Declaration, Ending, Resolution, ResumeDecision, Row
from tests.simulation.groups import Placement, placement

Item = Declaration | Row | Ending | ResumeDecision | Resolution
REASONS = ("overflow", "nonfinite", "spike_guard", "no_targets", "other", None)
ENDS = ("completed", "crashed", "preempted", "stopped")
LARGEST_COUNT = 2**53
Cursor = dict[str, tuple[int, int]]


@dataclass
class Temper:
    """How often things happen in one history; zero where they never do."""

    unit: str
    streams: tuple[str, ...]
    epoch_length: int
    dates: str
    huge: float
    skip: float
    retried: float
    aside: float
    fault: float
    untidy: float
    wrong_position: float
    unknown: float
    save: float
    ranges: bool
    reused_names: bool
    odd_resume: float


@dataclass
class SavedState:
    """What the trainer itself knows of a save that it made."""

    attempt: str
    name: str
    update: int
    cursor: Cursor
    posted: bool


@dataclass
class History:
    """One run's whole story in order of occurrence, and what may be expected of it."""

    seed: int
    conventions: Columns
    timeline: list[Item] = field(default_factory=list)
    dates: str = "all"
    tidy: bool = True
    parent: "History | None" = None
    forked_from: Columns | None = None
    saved: list[SavedState] = field(default_factory=list)


def random_temper(rng: random.Random, unit: str) -> Temper:
    """A temper that is calm in some histories and wild in others."""

    def sometimes(most: float) -> float:
        return rng.choice((0.0, 0.0, most / 2, most))

    return Temper(
        unit=unit,
        streams=rng.choice((("train",), ("train",), ("train", "code"))),
        epoch_length=rng.choice((24, 60, 400)),
        dates=rng.choice(("all", "all", "none", "some")),
        huge=sometimes(0.3),
        skip=sometimes(0.4),
        retried=sometimes(0.6),
        aside=rng.choice((0.1, 0.4)),
        fault=sometimes(0.5),
        untidy=sometimes(0.5),
        wrong_position=sometimes(0.4),
        unknown=sometimes(0.15),
        save=rng.choice((0.2, 0.5)),
        ranges=rng.random() < 0.85,
        reused_names=rng.random() < 0.4,
        odd_resume=sometimes(0.25),
    )


def random_layout(rng: random.Random) -> Columns:
    """A small layout, by its axes or with its shards said outright."""
    if rng.random() < 0.2:
        dp_rank_count, replicas = rng.choice(((1, 1), (2, 1), (2, 2), (3, 1)))
        split = rng.choice((1, 2))
        ranks = [(d, s) for d in range(dp_rank_count) for s in range(split) for _ in range(replicas)]
        rng.shuffle(ranks)
        return {"shards": [d * split + s for d, s in ranks], "dp_ranks": [d for d, _ in ranks]}
    while True:
        sizes = {axis: rng.choice((1, 1, 2, 3) if axis == "dp" else (1, 1, 1, 2)) for axis in ("dp", "tp", "pp", "cp")}
        if sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"] <= 8:
            order = ["tp", "cp", "dp", "pp"]
            rng.shuffle(order)
            return {**sizes, "order": "-".join(order), "cp_counts": rng.choice(("shard", "whole"))}


class Launch:
    """One attempt while it runs: it draws data, forms updates and saves, and puts what its ranks post on the timeline."""

    def __init__(self, history: History, rng: random.Random, temper: Temper, name: str, start: SavedState | None) -> None:
        self.history, self.rng, self.temper, self.name = history, rng, temper, name
        self.layout = random_layout(rng)
        self.place: Placement = placement(self.layout)
        self.world = len(self.place.shard_of)
        self.number = 0 if start is None else start.update
        self.cursor: Cursor = dict.fromkeys(temper.streams, (0, 0)) if start is None else dict(start.cursor)
        self.trained_cursor = dict(self.cursor)
        self.tries: dict[tuple[str, int], int] = {}
        self.sequence: dict[tuple[int, str], int] = {}
        self.poster = rng.randrange(self.world)
        self.waiting: list[tuple[str, int]] = []
        self.names: set[tuple[str, int]] = set()
        self.knowing = self.choose_knowing()

    def choose_knowing(self) -> set[int]:
        """The ranks that know targets and losses: at least one of each shard."""
        knowing = set()
        for shard in set(self.place.shard_of):
            ranks = [rank for rank, own in enumerate(self.place.shard_of) if own == shard]
            knowing |= set(self.rng.sample(ranks, self.rng.randint(1, len(ranks))))
        return knowing

    def emit(self, rank: int, kind: str, writer: str = "w0", /, **columns: Any) -> None:
        """One row of a rank, with the next place in its sequence."""
        self.sequence[rank, writer] = self.sequence.get((rank, writer), 0) + 1
        self.history.timeline.append(Row(self.name, rank, writer, self.sequence[rank, writer], kind, columns))

    def next_try(self, kind: str, number: int) -> int:
        """The retry of a new try at a number."""
        retry = self.tries.get((kind, number), 0)
        self.tries[kind, number] = retry + 1
        return retry

    def draw(self, count: int) -> list[list[Any]]:
        """The next ranges of a stream; an untidy loader jumps back or ahead first."""
        stream, length = self.rng.choice(self.temper.streams), self.temper.epoch_length
        if self.rng.random() < self.temper.untidy / 2:
            self.history.tidy = False
            epoch, position = self.cursor[stream]
            jump = self.rng.choice((-6, -3, 2, 5, 9))
            self.cursor[stream] = (epoch, max(0, min(position + jump, length - 1)))
        ranges = []
        while count:
            epoch, position = self.cursor[stream]
            if position >= length:
                epoch, position = epoch + 1, 0
            part = min(count, length - position)
            if self.temper.unit == "id":
                ranges += [[stream, epoch, number, number + 1] for number in self.ids(epoch)[position : position + part]]
            else:
                ranges.append([stream, epoch, position, position + part])
            count -= part
            self.cursor[stream] = (epoch, position + part) if position + part < length else (epoch + 1, 0)
        return ranges

    def ids(self, epoch: int) -> list[int]:
        """The order of the sample ids of an epoch."""
        numbers = list(range(self.temper.epoch_length))
        random.Random(self.history.seed * 1000 + epoch).shuffle(numbers)
        return numbers

    def counts(self) -> Columns:
        """Counts of one shard."""
        if self.rng.random() < self.temper.huge:
            slots = LARGEST_COUNT - self.rng.randint(0, 3)
        else:
            slots = self.rng.randint(1, 500)
        consumed = slots - self.rng.randint(0, slots // 3)
        valid = 0 if self.rng.random() < 0.04 else consumed - self.rng.randint(0, consumed // 3)
        unknown = [q for q in ("input_slots", "consumed_tokens", "valid_targets") if self.rng.random() < self.temper.unknown / 3]
        counts: Columns = {"input_slots": slots, "consumed_tokens": consumed, "valid_targets": valid}
        return {**counts, **dict.fromkeys(unknown)}

    def rows_of_work(self, shards: set[int]) -> dict[int, Columns]:
        """What each rank of these shards counted in one piece of work."""
        drawn = {}
        for dp_rank in sorted(self.place.dp_ranks(shards)):
            samples = self.rng.randint(1, 3)
            said: Columns = {"samples": samples if self.rng.random() >= self.temper.unknown / 3 else None}
            if self.temper.ranges:
                said = {"ranges": self.draw(samples)}
                if self.rng.random() < 0.5:
                    said["samples"] = samples
            drawn[dp_rank] = said
        by_shard = {shard: {**self.counts(), "loss_sum": self.loss()} for shard in sorted(shards)}
        rows = {}
        for rank, shard in enumerate(self.place.shard_of):
            if shard in shards:
                rows[rank] = {**by_shard[shard], **drawn[self.place.dp_rank_of[rank]]}
                if rank not in self.knowing:
                    rows[rank].update(valid_targets=None, loss_sum=None)
        return rows

    def loss(self) -> float | str | None:
        """A sum of losses, now and then not finite or not known."""
        return self.rng.choice((None, "NaN", self.rng.randint(1, 4000) / 8, self.rng.randint(1, 4000) / 8, self.rng.randint(1, 4000) / 8))

    def update(self, outcome: str, advance: bool) -> None:
        """One attempted update; with bad luck something is wrong with what its ranks say."""
        number = self.number + 1
        retry = self.next_try("updates", number)
        shards = set(self.place.shard_of)
        participants = None
        if len(set(self.place.dp_rank_of)) > 1 and self.place.shard_of == self.place.dp_rank_of and self.rng.random() < 0.15:
            participants = sorted(self.rng.sample(sorted(shards), len(shards) - 1))
            shards = set(participants) if self.rng.random() < 0.6 else shards
        rows = self.rows_of_work(shards)
        reason = self.rng.choice(REASONS) if outcome == "skipped" else None
        silent = self.rng.random() < 0.3
        for rank in rows:
            rows[rank]["outcome"] = None if silent and rank not in self.knowing else outcome
            rows[rank]["reason"] = reason if rows[rank]["outcome"] == "skipped" else None
            rows[rank].update(update=number, retry=retry, microbatches=2, seconds=self.rng.randint(1, 16) / 8)
            if participants is not None and self.place.shard_of[rank] in participants:
                rows[rank]["participants"] = participants
            elif participants is not None:
                rows[rank].update(outcome=self.rng.choice((None, "abandoned", "open")), reason=None)
        resolution = None
        if advance and self.rng.random() < self.temper.fault:
            self.history.tidy = False
            resolution = self.spoil(rows, number, retry)
        for rank, columns in rows.items():
            self.emit(rank, "updates", **columns)
        if resolution is not None:
            self.history.timeline.append(resolution)
        if advance:
            self.number = number
        if outcome == "applied":
            self.trained_cursor = dict(self.cursor)

    def spoil(self, rows: dict[int, Columns], number: int, retry: int) -> Resolution | None:
        """Make the ranks of an update contradict each other, or leave some out; perhaps an operator settles it."""
        rng, kind = self.rng, self.rng.choice(("missing", "replica", "counts", "outcome", "again"))
        shard_of = self.place.shard_of
        settled = rng.random() < 0.5
        if kind == "missing":
            shard = rng.choice([shard_of[rank] for rank in rows])
            for rank in [rank for rank in rows if shard_of[rank] == shard]:
                del rows[rank]
        elif kind == "replica":
            rank = rng.choice(list(rows))
            if sum(1 for other in rows if shard_of[other] == shard_of[rank]) > 1:
                del rows[rank]
        elif kind == "counts":
            rank = rng.choice(list(rows))
            twins = [other for other in rows if shard_of[other] == shard_of[rank]]
            field_name = rng.choice(("input_slots", "consumed_tokens"))
            if len(twins) > 1 and all(rows[twin][field_name] is not None for twin in twins):
                rows[rank][field_name] = max(0, rows[rank][field_name] - 1)
                return Resolution(self.name, number, retry, rng.choice(twins), None) if settled else None
        elif kind == "outcome" and len(set(self.place.dp_rank_of)) > 1:
            dp_rank = rng.choice([self.place.dp_rank_of[rank] for rank in rows])
            said = next((columns["outcome"] for columns in rows.values() if columns["outcome"] is not None), None)
            other = rng.choice([o for o in ("applied", "skipped", "abandoned") if o != said])
            for rank, columns in rows.items():
                if self.place.dp_rank_of[rank] == dp_rank and columns["outcome"] is not None:
                    columns.update(outcome=other, reason=None)
            speakers = [rank for rank, columns in rows.items() if columns["outcome"] is not None]
            if settled and len({columns["outcome"] for columns in rows.values()} - {None}) > 1:
                by_rank = rng.random() < 0.5
                return Resolution(self.name, number, retry, rng.choice(speakers) if by_rank else None, None if by_rank else other)
        elif kind == "again":
            rank = rng.choice(list(rows))
            self.emit(rank, "updates", **rows[rank])
        return None

    def open_group(self, closing: str | None) -> None:
        """Microbatches of a group without an outcome; perhaps the outcome follows after something else."""
        number = self.number + 1
        retry = self.next_try("updates", number)
        rows = self.rows_of_work(set(self.place.shard_of))
        some = self.rng.sample(sorted(rows), self.rng.randint(1, len(rows))) if closing is None and self.rng.random() < 0.3 else list(rows)
        for rank in some:
            self.emit(
                rank, "updates", update=number, retry=retry, outcome="open", **{k: v for k, v in rows[rank].items() if k != "loss_sum"}
            )
        if closing is None:
            return
        if closing == "applied" and self.rng.random() < 0.5:
            self.start_save()
        late = set() if self.rng.random() < 0.7 else set(self.rng.sample(sorted(rows), len(rows) // 2))
        for rank, columns in rows.items():
            if rank not in late:
                reason = "overflow" if closing == "skipped" else None
                self.emit(rank, "updates", update=number, retry=retry, outcome=closing, reason=reason, **columns)
        self.number = number
        if closing == "applied":
            self.trained_cursor = dict(self.cursor)

    def discard(self) -> None:
        """Microbatches that enter no update, perhaps on some ranks only."""
        number = self.number + 1
        retry = self.next_try("discards", number)
        shards = sorted(set(self.place.shard_of))
        rows = self.rows_of_work(set(self.rng.sample(shards, self.rng.randint(1, len(shards)))))
        reason = self.rng.choice(("remainder", "filtered", "other", None))
        for rank, columns in rows.items():
            self.emit(rank, "discards", update=number, retry=retry, reason=reason, **{k: v for k, v in columns.items() if k != "loss_sum"})

    def pass_over(self) -> None:
        """The cursor jumps ahead within the epoch."""
        stream = self.rng.choice(self.temper.streams)
        epoch, position = self.cursor[stream]
        stop = min(position + self.rng.randint(1, 8), self.temper.epoch_length - 1)
        if stop > position and self.temper.unit == "position" and self.temper.ranges and ("passes", self.number + 1) not in self.tries:
            self.next_try("passes", self.number + 1)
            self.emit(self.poster, "passes", update=self.number + 1, stream=stream, epoch=epoch, start=position, stop=stop)
            self.cursor[stream] = (epoch, stop)
            self.trained_cursor = dict(self.cursor)

    def evaluate(self) -> None:
        """An evaluation, posted now and then by a second process of its ranks."""
        retry = self.next_try("evaluations", self.number)
        writer = self.rng.choice(("w0", "evaluator"))
        by_shard = {shard: self.rng.randint(1, 300) for shard in sorted(set(self.place.shard_of))}
        for rank, shard in enumerate(self.place.shard_of):
            slots = by_shard[shard]
            counts: Columns = {"input_slots": slots, "consumed_tokens": slots - slots // 5, "valid_targets": slots - slots // 4}
            if rank not in self.knowing:
                counts["valid_targets"] = None
            self.emit(rank, "evaluations", writer, update=self.number, retry=retry, name="validation", samples=2, seconds=0.5, **counts)

    def idle(self) -> None:
        """Time spent on something else, and the trainer's own counter beside it."""
        self.emit(self.poster, "idles", label="restart", seconds=self.rng.randint(1, 40) / 8)
        self.emit(self.poster, "counters", update=self.number, name="global_step", value=self.number)

    def start_save(self) -> None:
        """A save starts; what becomes of it is said at once, later or never."""
        rng = self.rng
        name = "latest" if self.temper.reused_names and rng.random() < 0.6 else f"step-{self.number}"
        if (name, self.number) in self.names or self.number == 0:
            return
        self.names.add((name, self.number))
        posted = rng.random() >= self.temper.odd_resume / 2
        self.history.saved.append(SavedState(self.name, name, self.number, dict(self.cursor), posted))
        if not posted:
            self.history.tidy = False
            return
        positions = self.declared_positions() if rng.random() < 0.6 else None
        if rng.random() < 0.15:
            self.emit(self.poster, "checkpoints", checkpoint=name, state="accepted", update=self.number, positions=positions)
            return
        self.emit(self.poster, "checkpoints", checkpoint=name, state="started", update=self.number, positions=positions)
        self.waiting.append((name, self.number))
        if rng.random() < 0.5:
            self.finish_save()

    def declared_positions(self) -> Columns | None:
        """The data position that a save declares: where the trained or the drawn data ended, now and then neither."""
        if not self.temper.ranges or self.temper.unit == "id":
            return None
        declared = dict(self.rng.choice((self.cursor, self.trained_cursor)))
        self.history.saved[-1].cursor = dict(declared)
        if self.rng.random() < self.temper.wrong_position:
            stream = self.rng.choice(self.temper.streams)
            epoch, position = declared[stream]
            declared[stream] = (epoch, position + self.rng.choice((1, 3)))
            if self.rng.random() < 0.5:
                self.history.saved[-1].cursor = dict(declared)
        return {stream: {"epoch": epoch, "position": position} for stream, (epoch, position) in declared.items()}

    def finish_save(self) -> None:
        """Say of one waiting save what became of it."""
        if not self.waiting:
            return
        name, number = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        newest = not any(other == name and later > number for other, later in self.names)
        told = number if self.rng.random() < 0.3 or not newest else None
        state = "accepted" if self.rng.random() < 0.8 else "rejected"
        self.emit(self.poster, "checkpoints", checkpoint=name, state=state, update=told)
        if state == "accepted" and self.rng.random() < 0.08:
            self.emit(self.poster, "checkpoints", checkpoint=name, state="rejected", update=told)

    def distrust(self, save: SavedState) -> None:
        """Find another attempt's save corrupt."""
        self.emit(self.poster, "checkpoints", checkpoint=save.name, state="rejected", update=save.update, attempt=save.attempt)

    def step(self) -> None:
        """Whatever happens next."""
        rng, temper = self.rng, self.temper
        if rng.random() < temper.aside:
            rng.choice((self.discard, self.pass_over, self.evaluate, self.idle, self.finish_save))()
        elif rng.random() < temper.save:
            self.start_save()
        elif rng.random() < temper.aside / 4:
            self.open_group(rng.choice(("applied", "applied", "abandoned")))
        elif rng.random() < temper.skip:
            self.update(rng.choice(("skipped", "skipped", "abandoned")), advance=rng.random() >= temper.retried)
        else:
            self.update("applied", advance=True)


def write_history(seed: int) -> History:
    """The history of a seed; some are forked from another run that has its own."""
    rng = random.Random(seed)
    unit = rng.choice(("position", "position", "position", "id"))
    conventions: Columns = {"data": {"unit": unit, "repeats_expected": rng.random() < 0.2}}
    temper = random_temper(rng, unit)
    history = History(seed, conventions, dates=temper.dates)
    if rng.random() < 0.15:
        parent = History(seed, conventions, dates=temper.dates)
        tell(parent, rng, temper)
        unique = [s for s in parent.saved if s.posted and sum(1 for other in parent.saved if other.name == s.name) == 1]
        if unique:
            history.parent, history.forked_from = parent, {"checkpoint": unique[-1].name}
            history.tidy = parent.tidy
    tell(history, rng, temper)
    return history


def tell(history: History, rng: random.Random, temper: Temper) -> None:
    """Fill a history with launches, one after another."""
    launches: list[Launch] = []
    for index in range(rng.choice((1, 2, 2, 3, 4, 5, 6))):
        launches.append(open_launch(history, rng, temper, index))
        for _ in range(rng.randint(1, 9)):
            launches[-1].step()
        close_launch(history, rng, launches[-1])
        if rng.random() < 0.3:
            rng.choice(launches).finish_save()


def fork_start(history: History) -> SavedState | None:
    """Where an attempt of a forked run starts from when it names no checkpoint."""
    if history.parent is None or history.forked_from is None:
        return None
    return next(s for s in history.parent.saved if s.name == history.forked_from["checkpoint"])


def open_launch(history: History, rng: random.Random, temper: Temper, index: int) -> Launch:
    """Open the next attempt, from a save of the past or from the start."""
    name = f"job-{index + 1}"
    source = None
    usable = [save for save in history.saved if save.update > 0]
    if index and usable and rng.random() < 0.85:
        source = usable[-1] if rng.random() < 0.7 else rng.choice(usable)
    reference = None if source is None else refer(history, rng, temper, source)
    launch = Launch(history, rng, temper, name, source or fork_start(history))
    started_at = None
    if temper.dates == "all" or (temper.dates == "some" and rng.random() < 0.6):
        day = index + 1 if temper.dates == "all" else rng.randint(1, 25)
        started_at = f"2026-03-{day:02d}T{index:02d}:00:00Z"
    history.timeline.append(Declaration(name, 0, reference, launch.layout, {}, started_at))
    if rng.random() < 0.3:
        later = None if started_at is None else started_at.replace(":00:00Z", ":00:30Z")
        history.timeline.append(Declaration(name, launch.world - 1, reference, launch.layout, {}, later))
    if rng.random() < temper.odd_resume / 2:
        other: Columns | None = {"checkpoint": "elsewhere"} if reference is None or rng.random() < 0.5 else None
        history.timeline.append(Declaration(name, 0, other, launch.layout, {}, started_at))
        if rng.random() < 0.6:
            history.timeline.append(ResumeDecision(name, reference))
    newer = [save for save in usable if save.posted and source is not None and save is not source and save.update > source.update]
    if newer and rng.random() < 0.4:
        launch.distrust(rng.choice(newer))
    return launch


def refer(history: History, rng: random.Random, temper: Temper, source: SavedState) -> Columns:
    """How an attempt names the save that it resumes from."""
    reference: Columns = {"checkpoint": source.name}
    if not source.posted:
        return {**reference, "update": source.update}
    if rng.random() < temper.odd_resume / 4:
        return {"checkpoint": "nowhere"}
    namesakes = [save for save in history.saved if save.name == source.name]
    alike = [save for save in namesakes if save.attempt == source.attempt]
    if namesakes[-1] is not source or temper.dates == "some" or rng.random() < 0.5:
        reference["attempt"] = source.attempt
    if alike[-1] is not source or rng.random() < 0.1:
        reference["update"] = source.update
    return reference


def close_launch(history: History, rng: random.Random, launch: Launch) -> None:
    """End an attempt: with an open group, with saves finished late, or without a word."""
    if rng.random() < 0.3:
        launch.open_group(None)
    if rng.random() < 0.5:
        launch.finish_save()
    if rng.random() < 0.6:
        history.timeline.append(Ending(launch.name, rng.choice(ENDS)))
