"""What the ledger says of the runs that are exported, kept from one reading to the next.

| a run is read again when | because |
|---|---|
| its journal has new entries | events, attempts, endings and resolutions are all entries |
| the journal of a run that it was forked from has | its lineage may be another |
| a moment has come that its books named | a grace ended, or a silence became long: nothing else depends on the clock |
| the last reading is an hour old | somebody may have rebuilt its projections |
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ledger.domain.errors import DatabaseUnavailable, LedgerError
from ledger.metrics.collector import Sample, changes_at, run_samples
from ledger.metrics.rendering import Format, Lines, lines_of, page_of
from ledger.services import active, reports
from ledger.services.active import Active, Found
from ledger.services.reports import Books, Reports

log = structlog.get_logger("ledger.metrics")


@dataclass(slots=True)
class Said:
    """What one run, or the ledger as a whole, said when it was last read, as samples and as bytes in each format asked for."""

    samples: list[Sample]
    version: tuple[int, ...] = ()
    changes_at: int = 0
    rendered: dict[Format, Lines] = field(default_factory=dict)

    def lines(self, form: Format) -> Lines:
        """The samples in a format, rendered once."""
        if form not in self.rendered:
            self.rendered[form] = lines_of(self.samples, form)
        return self.rendered[form]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of the ledger; it never changes, and each format of it is put together once."""

    at: datetime
    changed: int
    """How many runs had to be read for it."""
    parts: tuple[Said, ...]
    pages: dict[Format, bytes] = field(default_factory=dict)

    def page(self, form: Format) -> bytes:
        """The families of runs in a format, without the line that ends a page."""
        if form not in self.pages:
            self.pages[form] = page_of(part.lines(form) for part in self.parts)
        return self.pages[form]


class Reading:
    """Reads the ledger again and again; not for several threads at once."""

    def __init__(self, source: Reports, most_runs: int, keep_seconds: float) -> None:
        self._reports = source
        self._most_runs = most_runs
        self._keep = timedelta(seconds=keep_seconds)
        self._kept: dict[int, Said] = {}

    def read(self) -> Snapshot:
        """The ledger as it is now. Raises: DatabaseUnavailable."""
        now, found, changed = self._found()
        return self._read(now, found, changed)

    def read_few(self, most_changed: int) -> Snapshot | None:
        """The ledger as it is now, unless more runs have changed than that. Raises: DatabaseUnavailable."""
        now, found, changed = self._found()
        return self._read(now, found, changed) if len(changed) <= most_changed else None

    def _found(self) -> tuple[datetime, Found, dict[int, Active]]:
        now = self._reports.clock()
        found = active.found(self._reports, now - self._keep, self._most_runs)
        return now, found, {item.run.id: item for item in found.runs if self._is_stale(item, found.now)}

    def _read(self, now: datetime, found: Found, changed: dict[int, Active]) -> Snapshot:
        self._kept = {item.run.id: self._kept[item.run.id] for item in found.runs if item.run.id in self._kept}
        for item in changed.values():
            self._kept.pop(item.run.id, None)
        self._read_again(changed)
        said = [self._kept[item.run.id] for item in found.runs if item.run.id in self._kept]
        whole: list[Sample] = [
            ("exported_runs", (), len(said)),
            ("omitted_runs", (), found.in_all - len(found.runs)),
            ("unread_runs", (), len(found.runs) - len(said)),
            ("projection_lag_events", (), found.lag_events),
            ("projection_lag_seconds", (), found.lag_seconds),
        ]
        return Snapshot(now, len(changed), (*said, Said(whole)))

    def _is_stale(self, item: Active, now: int) -> bool:
        said = self._kept.get(item.run.id)
        return said is None or said.version != item.version or said.changes_at <= now

    def _read_again(self, changed: dict[int, Active]) -> None:
        """Reads those runs: together where their projections stand, one by one where they have moved on meanwhile."""
        left = dict(changed)
        for item in [item for item in changed.values() if item.is_behind]:
            try:
                reports.wait_for_lineage(self._reports, item.run.project, item.run.name)
            except LedgerError as error:
                self._leave_out(left.pop(item.run.id), error)
        if not left:
            return
        with reports.open_together(self._reports, left) as opened:
            for books in opened:
                self._take(left.pop(books.run.id), books)
        for item in left.values():
            try:
                with reports.open_books(self._reports, item.run.project, item.run.name) as books:
                    self._take(item, books)
            except LedgerError as error:
                self._leave_out(item, error)

    def _take(self, item: Active, books: Books) -> None:
        try:
            samples = list(run_samples(books))
        except LedgerError as error:
            self._leave_out(item, error)
        else:
            self._kept[item.run.id] = Said(samples, (books.offset, *item.version[1:]), changes_at(books))

    @staticmethod
    def _leave_out(item: Active, error: LedgerError) -> None:
        if isinstance(error, DatabaseUnavailable):
            raise error
        log.warning("unread", project=item.run.project, run=item.run.name, code=error.code)
