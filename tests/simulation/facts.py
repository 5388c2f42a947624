"""The facts of a run as they were delivered: plain values that the auditor reads and the workloads write."""

from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One event: its identity, its kind and the columns it was posted with."""

    attempt: str
    rank: int
    writer: str
    seq: int
    kind: str
    columns: Columns

    @property
    def identity(self) -> tuple[str, int, str, int]:
        """What makes two postings the same event."""
        return (self.attempt, self.rank, self.writer, self.seq)


@dataclass(frozen=True)
class Declaration:
    """What one rank said when it opened an attempt."""

    attempt: str
    rank: int
    resumed_from: Columns | None
    layout: Columns
    conventions: Columns
    started_at: str | None


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    attempt: str
    ended: str
    ended_at: str | None = None


@dataclass(frozen=True)
class ResumeDecision:
    """An operator's word on which resume point of an attempt stands."""

    attempt: str
    resumed_from: Columns | None


@dataclass(frozen=True)
class Resolution:
    """An operator's word on which rank or which outcome of a held update stands."""

    attempt: str
    update: int
    retry: int
    rank: int | None
    outcome: str | None


@dataclass
class Facts:
    """All that is known of a run; declarations are in order of opening, `parent` and `fork_name` say where it was forked from."""

    conventions: Columns = field(default_factory=dict)
    parent: "Facts | None" = None
    fork_name: str | None = None
    declarations: list[Declaration] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    decisions: list[ResumeDecision] = field(default_factory=list)
    resolutions: list[Resolution] = field(default_factory=list)
    rows: dict[tuple[str, int, str, int], Row] = field(default_factory=dict)

    def add_rows(self, rows: list[Row]) -> None:
        """Take rows in; the first of an identity stays."""
        for row in rows:
            self.rows.setdefault(row.identity, row)

    def attempts(self) -> list[str]:
        """The attempts in order of opening."""
        return list(dict.fromkeys(declaration.attempt for declaration in self.declarations))
