"""Scrapes: one reading of the ledger serves all of them for a moment, already rendered in each format that was asked for."""

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from ledger.domain.errors import LedgerError
from ledger.metrics.catalogue import COUNTED, RATES
from ledger.metrics.collector import Sample, families_of, rate_samples, run_samples
from ledger.metrics.measured import Measured
from ledger.services import registration, reports
from ledger.services.reports import Reports

LONGEST_WAIT_SECONDS = 1.0
"""A scrape would rather leave a run out than wait for one that is behind."""
RUNS_A_PAGE = 1000
ASKED_RATES = [(quantity, work, time) for quantity in COUNTED for work, time in RATES]
END = b"# EOF\n"

log = structlog.get_logger("ledger.metrics")


class _Fixed:
    """Families that were read already, as the client library wants to be handed them."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self.families


class Exposition:
    """The pages that Prometheus scrapes."""

    def __init__(self, source: Reports, measured: Measured, *, cache_seconds: float, most_runs: int, keep_seconds: float) -> None:
        self._reports = replace(source, wait_seconds=LONGEST_WAIT_SECONDS)
        self._measured = measured
        self._cache_seconds = cache_seconds
        self._most_runs = most_runs
        self._keep = timedelta(seconds=keep_seconds)
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._read_at = float("-inf")
        self._rendered: dict[str, bytes] = {}

    def runs_page(self, accept: str) -> tuple[bytes, str]:
        """The families of runs alone, the same on every replica: (body, media type)."""
        encoder, media_type = choose_encoder(accept)
        with self._lock:
            if time.monotonic() - self._read_at >= self._cache_seconds:
                self._registry = CollectorRegistry(auto_describe=False)
                self._registry.register(_Fixed(families_of(self._read())))
                self._read_at, self._rendered = time.monotonic(), {}
            if media_type not in self._rendered:
                self._rendered[media_type] = encoder(self._registry)
            return self._rendered[media_type], media_type

    def page(self, accept: str) -> tuple[bytes, str]:
        """The families of runs, and what this process measures of itself: (body, media type).

        Where the ledger cannot be read, the process still says so.
        """
        encoder, media_type = choose_encoder(accept)
        try:
            runs, _ = self.runs_page(accept)
        except LedgerError as error:
            log.warning("unread", code=error.code)
            self._measured.readable(False)
            return encoder(self._measured.registry), media_type
        self._measured.readable(True)
        return encoder(self._measured.registry).removesuffix(END) + runs, media_type

    def _read(self) -> list[Sample]:
        chosen, omitted = self._choose()
        samples: list[Sample] = []
        unread = 0
        for run in chosen:
            try:
                with reports.open_books(self._reports, run["project"], run["run"]) as books:
                    exposure, described = reports.exposure(books), reports.described(books)
                    asked = [reports.rate(books, quantity, work, [time]) for quantity, work, time in ASKED_RATES]
                samples += run_samples(described, exposure, self._reports.clock())
                samples += rate_samples(described, asked)
            except LedgerError as error:
                unread += 1
                log.warning("unread", project=run["project"], run=run["run"], code=error.code)
        exported = len(chosen) - unread
        return [*samples, ("exported_runs", (), exported), ("omitted_runs", (), omitted), ("unread_runs", (), unread)]

    def _choose(self) -> tuple[list[dict[str, Any]], int]:
        """Runs with an entry in the time that is kept, newest first, up to the cap; and how many the cap leaves out."""
        since = self._reports.clock() - self._keep
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = registration.list_runs(self._reports.store, None, cursor, RUNS_A_PAGE)
            found += [run for run in page["items"] if datetime.fromisoformat(run["last_event_at"]) >= since]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        found.sort(key=lambda run: str(run["last_event_at"]), reverse=True)
        return found[: self._most_runs], max(0, len(found) - self._most_runs)
