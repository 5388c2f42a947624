"""Drives a ledger's services in this process: opens the run of a history, posts the steps of a delivery and reads every report."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.domain.events import RankEvents
from ledger.services import registration, reports
from ledger.services.ingestion import Ingestion
from ledger.services.reports import Reports
from ledger.storage.store import Store
from tests.simulation.delivery import Post, Step, columnar, plan
from tests.simulation.facts import Columns, Declaration, Ending, ResumeDecision, Row
from tests.simulation.workload import History

PROJECT = "simulation"
QUEUE_BATCHES = 64
ENDLESS_GRACE_SECONDS = 1e9
"""Time alone makes no findings in a simulation."""


class Refused(AssertionError):
    """The ledger did not accept what must be accepted."""


def now() -> datetime:
    """The clock of a simulated ledger."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Ledger:
    """The services of one database, as an application wires them."""

    store: Store
    ingestion: Ingestion
    reports: Reports

    def exposure(self, run: str, head: str | None = None) -> dict[str, Any]:
        """The exposure report of a run, perhaps as if another attempt were the head."""
        with reports.open_books(self.reports, PROJECT, run, head) as books:
            return reports.exposure(books)


@contextmanager
def opened(store: Store) -> Iterator[Ledger]:
    """A ledger on a migrated database, from its start to its stop."""
    ingestion = Ingestion(store, now, QUEUE_BATCHES)
    ingestion.start()
    try:
        yield Ledger(store, ingestion, Reports(store, now, ENDLESS_GRACE_SECONDS))
    finally:
        ingestion.stop()


def rank_events(rows: tuple[Row, ...]) -> list[RankEvents]:
    """Rows as a batch holds them, one entry a rank and writer."""
    return [
        RankEvents(entry["rank"], entry["writer"], {kind: block for kind, block in entry.items() if kind not in ("rank", "writer")})
        for entry in columnar(rows)["ranks"]
    ]


class Driver:
    """One run of a history, as posted to a ledger."""

    def __init__(self, ledger: Ledger, history: History, run: str) -> None:
        self.ledger, self.history, self.run = ledger, history, run

    def open(self) -> None:
        """Open the run, after the whole story of the run that it was forked from."""
        forked_from = None
        if self.history.parent is not None and self.history.forked_from is not None:
            parent = Driver(self.ledger, self.history.parent, self.run + "-parent")
            parent.open()
            for step in plan(self.history.parent, 0, "none", repeats=0.0, batch_size=60):
                parent.post(step)
            forked_from = {"project": PROJECT, "run": parent.run, **self.history.forked_from}
        self.open_as(forked_from)

    def open_as(self, forked_from: Columns | None) -> None:
        """Open the run, perhaps as a fork of another."""
        declaration: Columns = {"conventions": self.history.conventions}
        if forked_from is not None:
            declaration["forked_from"] = forked_from
        registration.open_run(self.ledger.store, PROJECT, self.run, declaration, now())

    def post(self, step: Step) -> dict[str, Any]:
        """Deliver one step. Raises: Refused."""
        if isinstance(step, Post):
            reply = self.submit(step)
            if reply["rejected"] or reply["accepted"] + reply["duplicates"] != len({row.identity for row in step.rows}):
                raise Refused(f"{len(step.rows)} events -> {reply}")
            return reply
        place = (self.ledger.store, PROJECT, self.run, step.attempt)
        if isinstance(step, Declaration):
            body: Columns = {"resumed_from": step.resumed_from, "layout": step.layout, "conventions": step.conventions}
            body |= {"rank": step.rank, "started_at": step.started_at}
            return registration.open_attempt(*place, body, now())[0]
        if isinstance(step, Ending):
            return registration.change_attempt(*place, {"ended": step.ended}, now())
        if isinstance(step, ResumeDecision):
            return registration.change_attempt(*place, {"resumed_from": step.resumed_from}, now())
        body = {"update": step.update, "retry": step.retry, "by": "operator", "why": "simulated"}
        body |= {"rank": step.rank} if step.rank is not None else {"outcome": step.outcome}
        return registration.resolve_update(*place, body, now())

    def submit(self, post: Post) -> dict[str, Any]:
        """Post a batch, whatever the answer."""
        return self.ledger.ingestion.submit(PROJECT, self.run, post.attempt, rank_events(post.rows))

    def exposure(self, head: str | None = None) -> dict[str, Any]:
        """The exposure report, perhaps as if another attempt were the head."""
        return self.ledger.exposure(self.run, head)

    def updates(self) -> list[Any]:
        """All updates."""
        return self._pages(reports.updates, "items")

    def coverage(self) -> list[Any]:
        """The coverage of all streams."""
        return self._pages(reports.coverage, "streams")

    def findings(self) -> list[Any]:
        """All findings."""
        return self._pages(reports.findings, "findings")

    def checkpoints(self) -> list[Any]:
        """All checkpoints."""
        return self._pages(reports.checkpoints, "checkpoints")

    def _pages(self, report: Callable[..., dict[str, Any]], key: str, limit: int = 50) -> list[Any]:
        items: list[Any] = []
        cursor = None
        while True:
            # Each page is asked for by itself, as over REST.
            with reports.open_books(self.ledger.reports, PROJECT, self.run) as books:
                answer = report(books, cursor, limit)
            items += answer[key]
            cursor = answer["next_cursor"]
            if cursor is None:
                return items
