"""What the pages read is the same on both databases, and adds up to the exposure report of the same offset."""

from datetime import UTC, datetime

import pytest

from benchmarks.long_run import make
from ledger.services import course, reports, standing
from ledger.services.reports import Reports, open_books
from ledger.storage.store import Store


def test_the_course_the_tree_and_the_standing_add_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make(store, "p", "r", updates=2_500, attempts=5)
    source = Reports(store, lambda: datetime(2026, 6, 1, tzinfo=UTC))
    applied = {}
    for most in (course.MOST_ROWS, 0):
        monkeypatch.setattr(course, "MOST_ROWS", most)
        with open_books(source, "p", "r") as books:
            applied[most] = sum(stretch["updates"]["applied"] for stretch in reports.course(books)["stretches"])
            exposure, tree = reports.exposure(books), reports.lineage(books)
    expected = exposure["updates"]["preserved"] + exposure["updates"]["pending"]
    assert set(applied.values()) == {expected}
    lost = sum(item["updates"]["lost_to_restart"] for item in tree["attempts"])
    assert lost == exposure["updates"]["lost_to_restart"] > 0
    for newest_first in (True, False):
        listed = standing.listed(source, "p", newest_first, 1, 25)
        [found] = standing.Standings().of(source, listed.runs, 0)
        assert found is not None
        assert found["balance"] == exposure["balance"]["valid_targets"]
        assert found["findings"] == sum(exposure["findings"].values())
    assert standing.listed(source, "other", True, 1, 25).runs == []
