"""What this process measures of itself; it starts at zero with the process and says nothing about runs."""

from collections.abc import Callable, Sequence
from datetime import datetime
from http import HTTPMethod
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector, disable_created_metrics

from ledger.domain.events import KINDS, RankEvents
from ledger.metrics.catalogue import PROCESS_FAMILIES, Family

BATCH_BUCKETS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
METHODS = frozenset(item.value for item in HTTPMethod)
STATEMENT_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Measured:
    """Counters of one server process, in a registry of their own."""

    def __init__(self, version: str) -> None:
        # Without this the client library adds a `_created` gauge to each counter and histogram.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._named("build_info", Gauge).labels(version).set(1)
        self._events = self._named("ingest_events", Counter)
        self._duplicates = self._named("ingest_duplicates", Counter)
        self._rejected = self._named("ingest_rejected", Counter)
        self._batch_events = self._named("ingest_batch_events", Histogram, buckets=BATCH_BUCKETS)
        self._queue = self._named("queue_batches", Gauge)
        self._seconds = self._named("http_request_duration_seconds", Histogram, buckets=SECONDS_BUCKETS)
        self._readable = self._named("readable", Gauge)
        self._queue_limit = self._named("queue_limit_batches", Gauge)
        self._operations = self._named("database_operation_duration_seconds", Histogram, buckets=STATEMENT_BUCKETS)
        self._connections = self._named("database_connections", Gauge)
        self._snapshot = self._named("snapshot_timestamp_seconds", Gauge)
        for kind in KINDS:
            self._events.labels(kind)

    def _named(self, name: str, metric: Callable[..., Any], **options: Any) -> Any:
        family: Family = PROCESS_FAMILIES[name]
        return metric(family.full_name, family.meaning, family.labels, registry=self.registry, unit=family.unit, **options)

    def queue_of(self, waiting: Callable[[], int], most: int) -> None:
        """From now on ask there how many batches are on their way; so many may be."""
        self._queue.set_function(waiting)
        self._queue_limit.set(most)

    def connections_of(self, ask: Callable[[], dict[str, int]]) -> None:
        """From now on ask there for the connections to the database."""
        for state in ask():
            self._connections.labels(state).set_function(lambda state=state: ask()[state])

    def operation(self, name: str, seconds: float) -> None:
        """The database did something for so long."""
        self._operations.labels(name).observe(seconds)

    def read(self, at: datetime | None) -> None:
        """When the ledger was read for this scrape; None where it could not be."""
        self._readable.set(int(at is not None))
        if at is not None:
            self._snapshot.set(at.timestamp())

    def request(self, handler: str, method: str, status: int, seconds: float) -> None:
        """A request was answered. Callers may invent methods without end; those share one label."""
        self._seconds.labels(handler, method if method in METHODS else "other", str(status)).observe(seconds)

    def batch(self, ranks: Sequence[RankEvents], receipt: dict[str, Any]) -> None:
        """A batch was taken."""
        events = 0
        for entry in ranks:
            for kind, columns in entry.blocks.items():
                rows = len(columns["seq"])
                events += rows
                self._events.labels(kind).inc(rows)
        self._batch_events.observe(events)
        self._duplicates.inc(receipt["duplicates"])
        for rejection in receipt["rejected"]:
            self._rejected.labels(rejection["code"]).inc()
