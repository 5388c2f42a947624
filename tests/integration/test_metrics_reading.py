"""What is kept from one reading to the next is what a new reading would say: at any moment, on either database."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from ledger.domain.events import RankEvents
from ledger.metrics.collector import Sample, families_of, run_samples
from ledger.metrics.reading import Reading
from ledger.metrics.rendering import OPEN, PLAIN, Fixed, Format
from ledger.services import registration, reports
from ledger.services.ingestion import Ingestion
from ledger.services.projection import catch_up
from ledger.services.reports import Reports
from ledger.storage.store import Store
from worked_example import columns

DAY = 86_400.0


@dataclass
class Ledger:
    """A ledger whose clock a test turns."""

    store: Store
    ingestion: Ingestion
    now: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def clock(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def reports(self) -> Reports:
        return Reports(self.store, self.clock, grace_seconds=60.0, wait_seconds=1.0)

    def reading(self) -> Reading:
        return Reading(self.reports(), 100, DAY)

    def open(self, run: str, forked_from: dict[str, Any] | None = None) -> None:
        registration.open_run(self.store, "p", run, {"conventions": {}, "forked_from": forked_from}, self.now)
        body = {"resumed_from": None, "layout": {"dp": 2}, "conventions": {}}
        if forked_from is not None:
            body["resumed_from"] = {"checkpoint": forked_from["checkpoint"]}
        registration.open_attempt(self.store, "p", run, "a1", body, self.now)
        catch_up(self.store, "p", run)

    def post(self, run: str, rank: int, first_seq: int, *numbers: int, caught_up: bool = True, **blocks: dict[str, list[Any]]) -> None:
        if numbers:
            blocks["updates"] = {**columns(first_seq, dict.fromkeys(numbers, "applied"), rank), "started_at": [None] * len(numbers)}
        reply = self.ingestion.submit("p", run, "a1", [RankEvents(rank, f"w{rank}", blocks)])
        assert not reply["rejected"], reply
        if caught_up:
            catch_up(self.store, "p", run)

    def save(self, run: str, update: int, seq: int) -> None:
        block = {"seq": [seq, seq + 1], "checkpoint": [f"c{update}"] * 2, "state": ["started", "accepted"], "update": [update, None]}
        self.post(run, 0, 0, checkpoints=block)


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    made = Ledger(store, None)  # type: ignore[arg-type]
    made.ingestion = Ingestion(store, made.clock, 8)
    made.ingestion.start()
    yield made
    made.ingestion.stop()


def said(reading: Reading) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(name, labels): value for part in reading.read().parts for name, labels, value in part.samples}


def status(reading: Reading, run: str) -> str:
    (found,) = (labels[2] for (name, labels), value in said(reading).items() if name == "run_status" and labels[1] == run and value)
    return found


def open_findings(reading: Reading, run: str, kind: str) -> float:
    return said(reading)["findings", ("p", run, kind)]


def test_a_silence_that_lasts_is_seen_though_nothing_is_posted(ledger: Ledger) -> None:
    ledger.open("one")
    ledger.post("one", 0, 1, 1)
    reading = ledger.reading()
    assert status(reading, "one") == "running"
    ledger.wait(900)
    assert status(reading, "one") == "running"
    ledger.wait(1)
    assert status(reading, "one") == "stalled"


def test_a_grace_that_ends_is_seen_though_nothing_is_posted(ledger: Ledger) -> None:
    ledger.open("one")
    for rank in (0, 1):
        ledger.post("one", rank, 1, 1, 2)
    ledger.post("one", 0, 3, 3, 5)
    ledger.wait(30)
    ledger.post("one", 0, 5, 6)
    reading = ledger.reading()
    assert open_findings(reading, "one", "missing_rank") == 0
    ledger.wait(31)
    # The first updates that lack a rank are a minute old, what came last is not: a gap is one only when nothing comes any more.
    assert (open_findings(reading, "one", "missing_rank"), open_findings(reading, "one", "update_gap")) == (2, 0)
    ledger.wait(30)
    assert open_findings(reading, "one", "update_gap") == 1


def test_what_is_kept_is_what_a_new_reading_says_at_every_moment(ledger: Ledger) -> None:
    ledger.open("one")
    ledger.open("two")
    kept = ledger.reading()
    for number in range(1, 9):
        run = ("one", "two")[number % 2]
        ledger.post(run, 0, number, number)
        if number % 3:
            ledger.post(run, 1, number, number)
        if number == 4:
            ledger.save("one", 4, 100)
        for seconds in (0, 20, 25, 25, 1000):
            ledger.wait(seconds)
            assert said(kept) == said(ledger.reading())


def test_a_fork_is_read_again_when_what_it_was_forked_from_has_changed(ledger: Ledger) -> None:
    ledger.open("source")
    for rank in (0, 1):
        ledger.post("source", rank, 1, 1, 2)
    ledger.open("fork", {"project": "p", "run": "source", "checkpoint": "c2"})
    for rank in (0, 1):
        ledger.post("fork", rank, 1, 3)
    reading = ledger.reading()
    before = said(reading)
    # Until the checkpoint is known the fork's work is held, for nobody knows what it goes on from.
    ledger.save("source", 2, 100)
    after = said(reading)
    assert after == said(ledger.reading())
    key = "applied_updates", ("p", "fork", "updates")
    assert (before[key], after[key]) == (0, 1)


def test_a_run_whose_projections_are_behind_is_brought_up_to_date_first(ledger: Ledger) -> None:
    ledger.open("one")
    ledger.post("one", 0, 1, 1, caught_up=False)
    ledger.post("one", 1, 1, 1, caught_up=False)
    assert said(ledger.reading())["attempted_updates", ("p", "one", "updates")] == 1


@contextmanager
def several(ledger: Ledger) -> Iterator[list[str]]:
    runs = ["one", "two", "three"]
    for run in runs:
        ledger.open(run)
        for rank in (0, 1):
            ledger.post(run, rank, 1, *range(1, 1 + len(run)))
    ledger.save("three", 3, 100)
    yield runs


def test_books_opened_together_say_what_each_says_alone(ledger: Ledger) -> None:
    with several(ledger) as runs:
        alone: dict[str, list[Sample]] = {}
        ids: dict[int, str] = {}
        for run in runs:
            with reports.open_books(ledger.reports(), "p", run) as books:
                alone[run], ids[books.run.id] = list(run_samples(books)), run
        with reports.open_together(ledger.reports(), ids) as opened:
            assert {books.run.name: list(run_samples(books)) for books in opened} == alone


@pytest.mark.parametrize("form", [PLAIN, OPEN], ids=["plain", "openmetrics"])
def test_a_page_put_together_is_the_page_that_the_library_writes(ledger: Ledger, form: Format) -> None:
    with several(ledger):
        snapshot = ledger.reading().read()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Fixed(families_of([sample for part in snapshot.parts for sample in part.samples])))
        assert snapshot.page(form) + form.end == form.encoder(registry)


def test_books_whose_projections_are_behind_are_not_opened_together(ledger: Ledger) -> None:
    with several(ledger):
        ids = {}
        for run in ("one", "two"):
            with reports.open_books(ledger.reports(), "p", run) as books:
                ids[books.run.id] = run
        ledger.post("two", 0, 50, 9, caught_up=False)
        with reports.open_together(ledger.reports(), ids) as opened:
            assert [books.run.name for books in opened] == ["one"]
