"""A long run as a training cluster leaves it behind: crashes, rollbacks, bursts of skipped updates, changed conventions, lost data order.

Everything is drawn from a seed and taken in by the service's own ingestion, so that what reads it reads what real ranks would have left.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ledger.domain.events import RankEvents
from ledger.services import registration
from ledger.services.ingestion import Ingestion
from ledger.services.projection import catch_up
from ledger.storage.store import Store

BATCH_UPDATES = 5_000
FOLDED_UPDATES = 10_000
SEQUENCE_LENGTH = 2048
SAVES_AN_ATTEMPT = 8
EVENTS_A_SAVE = 3
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
RUN_CONVENTIONS = {
    "objective": "token_mean",
    "gradient_reducer": "mean",
    "accumulation_divides": "trainer",
    "remainder_policy": "drop",
    "schedule_clock": "applied_updates",
    "optimizer": "AdamW, betas 0.9 0.95",
    "precision": "bf16",
    "sequence_length": SEQUENCE_LENGTH,
    "target_rule": "next token inside a document",
    "sample_meaning": "packed sequence",
    "data": {"unit": "position", "repeats_expected": False},
}


@dataclass(slots=True)
class Saved:
    """A checkpoint that a later attempt may resume from."""

    attempt: str
    name: str
    update: int
    shift: int
    """How far the data cursor is from where the update's number would put it."""


@dataclass(slots=True)
class Story:
    """What the generator remembers from one attempt to the next."""

    updates: int
    attempts: int
    random: np.random.Generator
    saves: list[Saved] = field(default_factory=list)
    moment: datetime = BEGINNING
    shift: int = 0

    @property
    def interval(self) -> int:
        """Updates from one checkpoint to the next."""
        return max(1, self.updates // self.attempts // SAVES_AN_ATTEMPT)

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch: the run goes through the data twice and a half, or a little less."""
        return 8 * max(1, self.updates * 2 // 5)

    def position(self, number: Any) -> Any:
        """Samples drawn before an update: 4 each while the batch is ramped up, 8 each after that."""
        ramp = self.updates // 10
        return 4 * (np.minimum(number, ramp + 1) - 1) + 8 * np.maximum(number - ramp - 1, 0)


def sizes(story: Story) -> list[int]:
    """How many updates each attempt does: unequal, and together as many as were asked for."""
    shares = story.random.uniform(0.2, 1.8, story.attempts)
    edges = np.round(np.cumsum(shares / shares.sum()) * story.updates).astype(int)
    return [max(1, int(size)) for size in np.diff(edges, prepend=0)]


def source_of(story: Story, place: int) -> Saved | None:
    """The checkpoint that an attempt resumes from: the newest, now and then an older one."""
    if not story.saves:
        return None
    return story.saves[max(0, len(story.saves) - 1 - (3 if place % 12 == 7 else 0))]


def declaration_of(place: int, source: Saved | None, moment: datetime) -> dict[str, Any]:
    """What the ranks of an attempt declare."""
    conventions: dict[str, Any] = {}
    if place >= 20:
        conventions["optimizer"] = "AdamW, betas 0.9 0.95, eps 1e-15"
    if place >= 50:
        conventions["precision"] = "fp8"
    return {
        "resumed_from": None if source is None else {"checkpoint": source.name, "attempt": source.attempt},
        "layout": {"dp": 2, "tp": 2} if place >= 50 else {"dp": 2},
        "conventions": conventions,
        "started_at": moment.isoformat(),
    }


def outcomes_of(story: Story, count: int) -> np.ndarray[Any, Any]:
    """Which updates were skipped: single ones, and bursts after a spike."""
    skipped = story.random.random(count) < 0.001
    for begin in np.flatnonzero(story.random.random(count) < 0.00005).tolist():
        skipped[begin : begin + 40] = True
    return skipped


def block_of(
    story: Story, numbers: np.ndarray[Any, Any], seqs: np.ndarray[Any, Any], skipped: np.ndarray[Any, Any], place: int
) -> list[dict[str, Any]]:
    """The update columns of both data-parallel ranks."""
    random, count = story.random, len(numbers)
    begins = story.position(numbers) + story.shift
    samples = np.where(numbers <= story.updates // 10, 2, 4)
    mean = 1.9 + 9.0 * np.exp(-numbers / (story.updates / 12)) + random.normal(0, 0.03, count)
    mean = np.where(skipped, mean + 3.0, mean)
    seconds = np.abs(random.normal(0.9, 0.02, count)) + 0.3 * (samples / 4)
    starts = np.datetime64(story.moment.replace(tzinfo=None), "us") + (np.cumsum(seconds) * 1e6).astype("timedelta64[us]")
    story.moment += timedelta(seconds=float(seconds.sum()))
    texts = np.datetime_as_string(starts, timezone="UTC").tolist()
    columns, sums, targets = [], [], []
    for rank in (0, 1):
        slots = samples * SEQUENCE_LENGTH
        padding = (slots * random.beta(2, 40 if rank else 14, count)).astype(int)
        tokens = slots - padding
        valid = tokens - samples * random.integers(1, 4, count)
        sums.append(mean * (1 + 0.06 * (rank - 0.5)) * valid)
        targets.append(valid)
        drawn = begins + rank * samples
        columns.append({
            "seq": seqs.tolist(),
            "update": numbers.tolist(),
            "outcome": np.where(skipped, "skipped", "applied").tolist(),
            "reason": ["overflow" if skip else None for skip in skipped.tolist()],
            "input_slots": slots.tolist(),
            "consumed_tokens": tokens.tolist(),
            "valid_targets": valid.tolist(),
            "microbatches": [2] * count,
            "loss_sum": sums[rank].tolist(),
            "microbatch_mean_sum": (2 * sums[rank] / valid * (1 + random.normal(0, 0.004, count))).tolist(),
            "microbatches_scored": [2] * count,
            "ranges": [
                [["train", epoch, start, start + size]]
                for epoch, start, size in zip(
                    (drawn // story.epoch_samples).tolist(), (drawn % story.epoch_samples).tolist(), samples.tolist(), strict=True
                )
            ],
            "started_at": texts,
            "seconds": seconds.tolist(),
        })  # fmt: skip
    rank_means = (sums[0] / targets[0] + sums[1] / targets[1]) / 2
    reported = rank_means if place >= story.attempts - 2 else (sums[0] + sums[1]) / (targets[0] + targets[1])
    for own in columns:
        own["reported_loss"] = reported.tolist()
    return columns


def batches_of(story: Story, name: str, first: int, count: int, place: int) -> Iterator[list[RankEvents]]:
    """What the ranks of one attempt post."""
    skipped, seq = outcomes_of(story, count), 1
    ranks = (0, 2) if place >= 50 else (0, 1)
    for begin in range(0, count, BATCH_UPDATES):
        numbers = np.arange(first + begin, first + min(begin + BATCH_UPDATES, count))
        saves = numbers % story.interval == 0
        # A save's rows come right after its update in the sequence of the rank that saves.
        seqs = seq + np.arange(len(numbers)) + EVENTS_A_SAVE * (np.cumsum(saves) - saves)
        posted = [{"updates": block} for block in block_of(story, numbers, seqs, skipped[begin : begin + BATCH_UPDATES], place)]
        saved, after = numbers[saves].tolist(), (seqs[saves] + 1).tolist()
        if saved:
            posted[0] |= {"checkpoints": checkpoints_of(story, name, saved, after), "evaluations": evaluations_of(saved, after)}
        seq = int(seqs[-1]) + 1 + EVENTS_A_SAVE * int(saves[-1])
        yield [RankEvents(rank, f"{name}-{rank}", block) for rank, block in zip(ranks, posted, strict=True)]


def checkpoints_of(story: Story, name: str, saved: list[int], after: list[int]) -> dict[str, list[Any]]:
    """Saves that are accepted, but for one in fifteen that was never validated."""
    accepted = [story.random.random() > 1 / 15 for _ in saved]
    at = [int(story.position(number + 1)) + story.shift for number in saved]
    places = [{"train": {"epoch": position // story.epoch_samples, "position": position % story.epoch_samples}} for position in at]
    story.saves += [
        Saved(name, f"step-{number}", number, story.shift) for number, is_accepted in zip(saved, accepted, strict=True) if is_accepted
    ]
    rows: list[tuple[int, str, str, int | None, Any, float | None]] = []
    for number, seq, place, is_accepted in zip(saved, after, places, accepted, strict=True):
        rows.append((seq, f"step-{number}", "started", number, place, None))
        if is_accepted:
            rows.append((seq + 1, f"step-{number}", "accepted", None, None, 6.5))
    names = ("seq", "checkpoint", "state", "update", "positions", "seconds")
    return {column: [row[at] for row in rows] for at, column in enumerate(names)}


def evaluations_of(saved: list[int], after: list[int]) -> dict[str, list[Any]]:
    """An evaluation at each checkpoint."""
    count = len(saved)
    counts = {"input_slots": [65536] * count, "consumed_tokens": [65000] * count, "valid_targets": [64900] * count, "samples": [32] * count}
    numbered = {"seq": [seq + 2 for seq in after], "update": saved, "name": ["validation"] * count}
    return numbered | counts | {"seconds": [4.0] * count}


def make(store: Store, project: str, run: str, updates: int, attempts: int, seed: int = 7) -> float:
    """Makes the run and brings its projections up to date; gives the seconds that the ranks' events took to be committed and folded."""
    story = Story(updates, attempts, np.random.default_rng(seed))
    registration.open_run(store, project, run, {"conventions": RUN_CONVENTIONS}, BEGINNING)
    ingestion = Ingestion(store, lambda: story.moment, 64)
    ingestion.start()
    begun = time.perf_counter()
    try:
        waiting = 0
        for place, count in enumerate(sizes(story)):
            _play(ingestion, story, (project, run), place, count)
            waiting += count
            if waiting >= FOLDED_UPDATES:
                catch_up(store, project, run)
                waiting = 0
        catch_up(store, project, run)
    finally:
        ingestion.stop()
    return time.perf_counter() - begun


def _play(ingestion: Ingestion, story: Story, run: tuple[str, str], place: int, count: int) -> None:
    source, name, is_last = source_of(story, place), f"job-{4100 + 7 * place}", place == story.attempts - 1
    story.moment += timedelta(minutes=4 + place % 5)
    if source is not None:
        story.saves = story.saves[: story.saves.index(source) + 1]
        story.shift = source.shift
    registration.open_attempt(ingestion.store, *run, name, declaration_of(place, source, story.moment), story.moment)
    first = 1 if source is None else source.update + 1
    # Two launches lose the data order: one jumps ahead without saying so, one starts further back.
    story.shift += {30: 40_000, 60: -24_000}.get(place, 0) if story.updates > 100_000 else {30: 16, 60: -8}.get(place, 0)
    if place == 45:
        begin = int(story.position(first)) + story.shift
        jump = {"update": [first], "stream": ["train"], "epoch": [begin // story.epoch_samples], "start": [begin % story.epoch_samples]}
        jump |= {"seq": [1], "stop": [begin % story.epoch_samples + 8]}
        ingestion.submit(*run, name, [RankEvents(0, f"{name}-data", {"passes": jump})])
        story.shift += 8
    for batch in batches_of(story, name, first, count, place):
        reply = ingestion.submit(*run, name, batch)
        assert not reply["rejected"], reply["rejected"][:3]
    if not is_last:
        ended = "preempted" if place % 3 else "crashed"
        registration.change_attempt(ingestion.store, *run, name, {"ended": ended, "ended_at": story.moment.isoformat()}, story.moment)
