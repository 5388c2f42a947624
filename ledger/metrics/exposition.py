"""Scrapes: a reading of the ledger, brought up to date where few runs have moved, serves all of them, rendered once in each format."""

import threading
import time
from dataclasses import replace

import structlog

from ledger.domain.errors import DatabaseUnavailable, LedgerError
from ledger.metrics.measured import Measured
from ledger.metrics.reading import Reading, Snapshot
from ledger.metrics.rendering import FORMATS, format_of
from ledger.services.reports import Reports

LONGEST_WAIT_SECONDS = 1.0
"""A scrape would rather leave a run out than wait for one that is behind."""
FEW_RUNS = 8
"""A scrape reads so many changed runs itself; more of them are left to the background, and the scrape shows the last reading."""
SHORT_WAIT_SECONDS = 0.02
"""A scrape waits so long for the reading in the background to end before it shows the last one."""
LATE_SECONDS = 60.0
"""A scrape reads the ledger itself where the last reading is older than the cache time by so much: there was none, or none succeeded."""
UNASKED_SECONDS = 300.0
"""A service that nobody has scraped for so long stops reading until the next scrape."""
SHARE = 3
"""Between two readings lies at least so many times what the last one took: reading takes no more than a quarter of a processor."""

log = structlog.get_logger("ledger.metrics")


class Exposition:
    """The pages that Prometheus scrapes; from its start to its stop it keeps them fresh."""

    def __init__(self, source: Reports, measured: Measured, *, cache_seconds: float, most_runs: int, keep_seconds: float) -> None:
        self._reading = Reading(replace(source, wait_seconds=LONGEST_WAIT_SECONDS), most_runs, keep_seconds)
        self._measured = measured
        self._cache_seconds = cache_seconds
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._read_at = float("-inf")
        self._asked_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-metrics", daemon=True)

    def start(self) -> None:
        """Begins to read in the background, where there is a cache at all."""
        if self._cache_seconds:
            self._thread.start()

    def stop(self) -> None:
        """Ends the reading in the background."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def runs_page(self, accept: str) -> tuple[bytes, str]:
        """The families of runs alone, the same on every replica: (body, media type). Raises: DatabaseUnavailable."""
        form = format_of(accept)
        return self._newest().page(form) + form.end, form.media_type

    def page(self, accept: str) -> tuple[bytes, str]:
        """The families of runs, and what this process measures of itself: (body, media type).

        Where the ledger cannot be read, the process still says so.
        """
        form = format_of(accept)
        try:
            snapshot = self._newest()
        except LedgerError as error:
            log.warning("unread", code=error.code)
            self._measured.read(None)
            return form.encoder(self._measured.registry), form.media_type
        self._measured.read(snapshot.at)
        return form.encoder(self._measured.registry).removesuffix(form.end) + snapshot.page(form) + form.end, form.media_type

    def _newest(self) -> Snapshot:
        self._asked_at = time.monotonic()
        limit = self._cache_seconds + LATE_SECONDS if self._cache_seconds else 0.0
        snapshot, age = self._snapshot, self._asked_at - self._read_at
        if snapshot is None or age >= limit:
            return self._read(limit)
        # Where many runs had changed before, looking for the changed ones would most likely be in vain.
        if snapshot.changed <= FEW_RUNS and self._lock.acquire(timeout=SHORT_WAIT_SECONDS):
            try:
                few = self._reading.read_few(FEW_RUNS)
                if few is not None:
                    snapshot = self._renewed(few)
            except DatabaseUnavailable:
                # The last reading holds until it is late; the background says in the log why there is no newer one.
                pass
            finally:
                self._lock.release()
        return snapshot

    def _read(self, limit: float) -> Snapshot:
        """A reading; one that another thread has just made will do."""
        with self._lock:
            if self._snapshot is None or time.monotonic() - self._read_at >= limit:
                return self._renewed(self._reading.read())
            return self._snapshot

    def _renewed(self, snapshot: Snapshot) -> Snapshot:
        self._snapshot, self._read_at = snapshot, time.monotonic()
        return snapshot

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic()
            if began - self._asked_at < UNASKED_SECONDS:
                try:
                    snapshot = self._read(self._cache_seconds)
                    for form in FORMATS:
                        # What is rendered now is not rendered while Prometheus waits.
                        snapshot.page(form)
                except LedgerError as error:
                    log.warning("unread", code=error.code)
                except Exception:
                    # A database that is away comes back; a thread that ended would leave every scrape to read by itself.
                    log.exception("unread")
            pause = max(self._cache_seconds, SHARE * (time.monotonic() - began))
