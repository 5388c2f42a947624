"""The course of a run, its tree of attempts, and how it stands: each adds up to the exposure report of the same offset."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.long_run import make
from ledger.services import course as module
from ledger.services import reports, standing
from ledger.services.reports import Books, Reports, open_books
from ledger.storage import schema
from ledger.storage.engine import open_engine
from ledger.storage.store import Store

NOW = datetime(2026, 6, 1, tzinfo=UTC)
UPDATES = 6_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    """A ledger with a run of several pages of updates and a dozen attempts."""
    engine = open_engine(f"sqlite:///{tmp_path_factory.mktemp('course') / 'ledger.db'}")
    schema.upgrade(engine)
    store = Store(engine)
    make(store, "p", "r", updates=UPDATES, attempts=12)
    yield Reports(store, lambda: NOW)
    engine.dispose()


@pytest.fixture
def books(source: Reports) -> Iterator[Books]:
    """The run's books."""
    with open_books(source, "p", "r") as opened:
        yield opened


def counted(stretches: list[dict[str, Any]], outcome: str) -> int:
    return sum(stretch["updates"][outcome] for stretch in stretches)


def extremes(stretches: list[dict[str, Any]], name: str) -> tuple[int, float, float, float]:
    """How many values, their sum to nine digits, the lowest and the highest of all."""
    found = [stretch["series"][name] for stretch in stretches if name in stretch["series"]]
    total = sum(item["updates"] * item["mean"] for item in found)
    return sum(item["updates"] for item in found), float(f"{total:.9g}"), min(i["lowest"] for i in found), max(i["highest"] for i in found)


def test_a_course_has_every_applied_update_of_the_trajectory_once(books: Books) -> None:
    course, exposure = reports.course(books), reports.exposure(books)
    assert course["exact"]
    assert counted(course["stretches"], "applied") == exposure["updates"]["preserved"] + exposure["updates"]["pending"]
    kept = [stretch for stretch in course["stretches"] if stretch["fate"] == "preserved"]
    assert counted(kept, "applied") == exposure["updates"]["preserved"]
    targets = extremes(course["stretches"], "valid_targets")
    balance = exposure["balance"]["valid_targets"]
    assert targets[1] == float(f"{balance['preserved'] + balance['pending']:.9g}")
    spans = [(stretch["first"], stretch["last"]) for stretch in course["stretches"]]
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))


def test_a_course_from_totals_says_the_same_as_one_from_rows(source: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_books(source, "p", "r") as books:
        from_rows = reports.course(books)
    monkeypatch.setattr(module, "MOST_ROWS", 0)
    with open_books(source, "p", "r") as books:
        from_totals = reports.course(books)
    assert not from_totals["exact"]
    assert len(from_totals["stretches"]) < len(from_rows["stretches"])
    for outcome in ("applied", "skipped", "held"):
        assert counted(from_totals["stretches"], outcome) == counted(from_rows["stretches"], outcome)
    for name in ("valid_targets", "occupancy", "token_mean", "rank_gap", "microbatch_gap"):
        assert extremes(from_totals["stretches"], name) == extremes(from_rows["stretches"], name)


def test_a_range_holds_what_was_asked_for(books: Books) -> None:
    course = reports.course(books, first=1000, last=1019, points=20)
    assert [(stretch["first"], stretch["last"]) for stretch in course["stretches"]] == [(n, n) for n in range(1000, 1020)]
    assert reports.course(books, first=10**9)["stretches"] == []


def test_the_tree_adds_up_to_the_exposure(books: Books) -> None:
    tree, exposure = reports.lineage(books), reports.exposure(books)
    assert len(tree["attempts"]) == 12
    for bucket in ("attempted", "preserved", "pending", "lost_to_restart", "skipped"):
        assert sum(item["updates"][bucket] for item in tree["attempts"]) == exposure["balance"]["updates"][bucket]
    assert sum(item["recomputed"] for item in tree["attempts"]) == exposure["updates"]["recomputed"]
    through = {item["attempt"]: item["through"] for item in tree["attempts"] if item["through"] is not None}
    assert through == {segment["attempt"]: segment["through"] for segment in exposure["trajectory"]}
    accepted = sum(item["checkpoints"]["accepted"] for item in tree["attempts"])
    assert accepted == sum(item["state"] == "accepted" for item in reports.checkpoints(books, None, 1000)["checkpoints"])


def test_a_standing_is_read_again_only_when_something_changed(source: Reports) -> None:
    found = standing.listed(source, None, True, 1, 25)
    kept = standing.Standings()
    [first] = kept.of(source, found.runs, 0)
    assert first is not None
    assert (first["status"], first["attempts"]) == ("stalled", 12)
    assert kept.of(source, found.runs, 0)[0] is first
    begun = found.runs[0].last_entry_at
    just_then = Reports(source.store, lambda: datetime.fromtimestamp(begun / 1e6, UTC) + timedelta(seconds=5))
    fresh = standing.Standings()
    [running] = fresh.of(just_then, found.runs, 0)
    assert running is not None
    assert running["status"] == "running"
    [later] = fresh.of(source, found.runs, 0)
    assert later is not None
    assert later["status"] == "stalled"


def test_runs_are_listed_by_page_project_and_order(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    schema.upgrade(engine)
    source = Reports(Store(engine), lambda: NOW)
    for place, name in enumerate(("b", "c", "a")):
        make(source.store, "p" if place else "q", name, updates=40, attempts=1 + place)
    names = [run.name for run in standing.listed(source, None, False, 1, 2).runs]
    assert names == ["a", "c"]
    assert [run.name for run in standing.listed(source, None, False, 2, 2).runs] == ["b"]
    newest = standing.listed(source, "p", True, 1, 25)
    assert ([run.name for run in newest.runs], newest.in_all, newest.pages, newest.projects) == (["a", "c"], 2, 1, ["p", "q"])
    engine.dispose()
