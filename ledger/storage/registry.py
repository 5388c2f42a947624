"""Runs, attempts and streams: who may post, and what they have posted already."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, tuple_, update

from ledger.domain.errors import AttemptUnknown, RunUnknown
from ledger.domain.intervals import Intervals
from ledger.domain.layout import Layout, layout_of
from ledger.domain.trajectory import Attempt, Resume
from ledger.storage.tables import attempts, journal, projected, runs, streams


def plain(value: Any) -> str:
    """A structured value as text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def add_run(connection: Connection, row: dict[str, Any]) -> int:
    """Opens a run; its number in this database."""
    return int(connection.execute(insert(runs).values(**row, entries=0).returning(runs.c.id)).scalar_one())


def add_attempt(connection: Connection, row: dict[str, Any]) -> None:
    """Opens an attempt of a run."""
    connection.execute(insert(attempts).values(**row))


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was opened."""

    id: int
    project: str
    name: str
    declaration: dict[str, Any]
    opened_at: int
    entries: int
    last_entry_at: int

    @property
    def conventions(self) -> dict[str, Any]:
        """What the run declares about itself."""
        return self.declaration.get("conventions") or {}

    @property
    def forked_from(self) -> dict[str, Any] | None:
        """The other run's checkpoint that this run began from."""
        return self.declaration.get("forked_from")


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt as it was opened, with what only storage needs to know."""

    attempt: Attempt
    layout: dict[str, Any] | None
    conventions: dict[str, Any]
    world_size: int
    opened_at: int
    ended_at: int | None
    last_event_at: int | None

    def shards(self) -> Layout:
        """Which rank holds which shard."""
        return layout_of(self.layout)


def _run(row: Row[Any]) -> Run:
    return Run(row.id, row.project, row.name, json.loads(row.declaration), row.opened_at, row.entries, row.last_entry_at)


def find_run(connection: Connection, project: str, name: str) -> Run:
    """The run of that name. Raises: RunUnknown."""
    row = connection.execute(select(runs).where(runs.c.project == project, runs.c.name == name)).one_or_none()
    if row is None:
        raise RunUnknown(f"no run {project}/{name} has been opened", project=project, run=name)
    return _run(row)


def runs_after(connection: Connection, project: str | None, after: tuple[str, str], limit: int) -> list[Run]:
    """Runs in the order of their names, after a place in that order."""
    c = runs.c
    query = select(runs).where((c.project > after[0]) | ((c.project == after[0]) & (c.name > after[1])))
    if project is not None:
        query = query.where(c.project == project)
    return [_run(row) for row in connection.execute(query.order_by(c.project, c.name).limit(limit))]


def projects(connection: Connection) -> list[str]:
    """The projects that have runs."""
    return list(connection.execute(select(runs.c.project).distinct().order_by(runs.c.project)).scalars())


def ordered_runs(connection: Connection, project: str | None, newest_first: bool, skipped: int, limit: int) -> tuple[list[Run], int]:
    """Runs by their last entry or by name, behind so many of them; and how many there are in all."""
    c = runs.c
    chosen = [c.project == project] if project is not None else []
    order = (c.last_entry_at.desc(), c.id.desc()) if newest_first else (c.project, c.name)
    found = [_run(row) for row in connection.execute(select(runs).where(*chosen).order_by(*order).offset(skipped).limit(limit))]
    return found, int(connection.execute(select(func.count()).select_from(runs).where(*chosen)).scalar_one())


def runs_reflected(connection: Connection, run_ids: Iterable[int]) -> list[tuple[Run, int]]:
    """Those runs, each with the last offset that its projections reflect."""
    query = select(runs, projected.c.entries.label("reflected")).join(projected, projected.c.run_id == runs.c.id)
    return [(_run(row), row.reflected) for row in connection.execute(query.where(runs.c.id.in_(sorted(run_ids))))]


def newest_runs(connection: Connection, since: int, most: int) -> tuple[list[Run], int]:
    """The runs with an entry since a moment, newest first and no more than asked for; and how many there are in all."""
    c = runs.c
    query = select(runs, func.count().over().label("in_all")).where(c.last_entry_at >= since).order_by(c.last_entry_at.desc(), c.id.desc())
    # One row more than none, so that their number is told even where none is asked for.
    rows = connection.execute(query.limit(max(1, most))).all()
    return [_run(row) for row in rows[:most]], rows[0].in_all if rows else 0


def sources_of(connection: Connection, found: Iterable[Run]) -> dict[tuple[str, str], Run]:
    """The runs that those were forked from, and so on upwards, by name; one read for each step."""
    known: dict[tuple[str, str], Run] = {}
    above = {(run.forked_from["project"], run.forked_from["run"]) for run in found if run.forked_from is not None}
    while above:
        rows = connection.execute(select(runs).where(tuple_(runs.c.project, runs.c.name).in_(sorted(above))))
        new = {(run.project, run.name): run for run in map(_run, rows)}
        known |= new
        above = {(run.forked_from["project"], run.forked_from["run"]) for run in new.values() if run.forked_from is not None} - known.keys()
    return known


@dataclass(frozen=True, slots=True)
class Behind:
    """A run whose projections do not reflect its last entries: how many, and when the oldest of those was received."""

    project: str
    name: str
    entries: int
    since: int


def behind(connection: Connection) -> list[Behind]:
    """All runs whose projections are behind."""
    oldest = select(func.min(journal.c.received_at)).where(journal.c.run_id == runs.c.id, journal.c.first_entry > projected.c.entries)
    columns = (runs.c.project, runs.c.name, runs.c.entries - projected.c.entries, oldest.scalar_subquery())
    query = select(*columns).join(projected, projected.c.run_id == runs.c.id).where(projected.c.entries < runs.c.entries)
    return [Behind(*row) for row in connection.execute(query)]


def ranks_heard(connection: Connection, run_id: int, attempt: int) -> tuple[int, int | None]:
    """How many ranks of an attempt have posted, and when the one was heard that has been silent longest."""
    c = streams.c
    last = select(func.max(c.last_event_at).label("at")).where(c.run_id == run_id, c.attempt == attempt).group_by(c.rank).subquery()
    ranks, slowest = connection.execute(select(func.count(), func.min(last.c.at)).select_from(last)).one()
    return ranks, slowest


def forks_of(connection: Connection, run: Run) -> list[dict[str, str]]:
    """The runs that began from a checkpoint of this run."""
    query = select(runs.c.project, runs.c.name).where(runs.c.fork_project == run.project, runs.c.fork_run == run.name)
    return [{"project": project, "run": name} for project, name in connection.execute(query.order_by(runs.c.project, runs.c.name))]


def _launch(row: Row[Any]) -> Launch:
    attempt = Attempt(
        row.ordinal,
        row.name,
        tuple(Resume.of(item) for item in json.loads(row.declared)),
        tuple(Resume.of(item) for item in json.loads(row.resolved)),
        row.started_at,
        row.ended,
    )
    layout = json.loads(row.layout)
    return Launch(attempt, layout, json.loads(row.conventions), row.world_size, row.opened_at, row.ended_at, row.last_event_at)


def launches(connection: Connection, run_id: int) -> list[Launch]:
    """The attempts of a run in the order of opening."""
    return [_launch(row) for row in connection.execute(select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.ordinal))]


def launches_of_runs(connection: Connection, run_ids: Iterable[int]) -> dict[int, list[Launch]]:
    """The attempts of many runs, each in the order of opening."""
    found: dict[int, list[Launch]] = {run_id: [] for run_id in run_ids}
    for row in connection.execute(select(attempts).where(attempts.c.run_id.in_(sorted(found))).order_by(attempts.c.ordinal)):
        found[row.run_id].append(_launch(row))
    return found


def find_launch(connection: Connection, run: Run, name: str) -> Launch:
    """The attempt of that name. Raises: AttemptUnknown."""
    row = connection.execute(select(attempts).where(attempts.c.run_id == run.id, attempts.c.name == name)).one_or_none()
    if row is None:
        raise AttemptUnknown(f"no attempt {name} of {run.project}/{run.name} has been opened", attempt=name)
    return _launch(row)


def save_launch(connection: Connection, run_id: int, ordinal: int, **values: Any) -> None:
    """Changes what is kept of an attempt."""
    connection.execute(update(attempts).where(attempts.c.run_id == run_id, attempts.c.ordinal == ordinal).values(**values))


Stream = tuple[int, int, str]
"""(attempt, rank, writer)"""


def journalled(connection: Connection, run_id: int, attempt: int, ranks: Iterable[int]) -> dict[Stream, Intervals]:
    """The sequence numbers that each writer of those ranks has in the journal."""
    c = streams.c
    query = select(c.rank, c.writer, c.journalled).where(c.run_id == run_id, c.attempt == attempt, c.rank.in_(sorted(set(ranks))))
    return {(attempt, rank, writer): Intervals.of(json.loads(text)) for rank, writer, text in connection.execute(query)}


def keep_journalled(
    connection: Connection, run_id: int, known: Sequence[Stream], fresh: Sequence[Stream], held: dict[Stream, Intervals], now: int
) -> None:
    """Writes down which sequence numbers are now in the journal, for streams that had a row and for new ones."""

    def row(stream: Stream) -> dict[str, Any]:
        return {"a": stream[0], "r": stream[1], "w": stream[2], "journalled": plain(held[stream].to_list()), "last_event_at": now}

    if known:
        c = streams.c
        place = (c.run_id == run_id, c.attempt == bindparam("a"), c.rank == bindparam("r"), c.writer == bindparam("w"))
        changed: dict[str, Any] = {"journalled": bindparam("journalled"), "last_event_at": bindparam("last_event_at")}
        connection.execute(update(streams).where(*place).values(**changed), [row(stream) for stream in known])
    if fresh:
        rows = [row(stream) for stream in fresh]
        named = [{"run_id": run_id, "attempt": r.pop("a"), "rank": r.pop("r"), "writer": r.pop("w"), **r} for r in rows]
        connection.execute(insert(streams), named)
