"""Runs that were forked from each other, which nobody should do and anybody can declare."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.services import registration, reports
from ledger.services.reports import Reports, open_books
from ledger.storage.store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def forked_from(run: str) -> dict[str, Any]:
    """A declaration."""
    return {"conventions": {}, "forked_from": {"project": "p", "run": run, "checkpoint": "c"}}


@pytest.mark.parametrize("sources", [{"left": "right", "right": "left"}, {"left": "left"}, {"left": "a", "a": "b", "b": "left"}])
def test_a_circle_of_forks_has_no_beginning(store: Store, sources: dict[str, str]) -> None:
    for run, source in sources.items():
        registration.open_run(store, "p", run, forked_from(source), NOW)
        declared = {"resumed_from": None, "layout": {"dp": 1}, "conventions": {}, "started_at": None, "rank": 0}
        registration.open_attempt(store, "p", run, "a1", declared, NOW)
    source = Reports(store, lambda: NOW, 60.0)
    for run in sources:
        with open_books(source, "p", run) as books:
            report, covered = reports.exposure(books), reports.coverage(books)
        assert report["trajectory"] == []
        assert report["as_of"]["head"] is None
        assert covered["streams"] == []
