"""Opening runs and attempts, ending them, and settling what their ranks contradict.

Everything here is idempotent by name, so that thousands of ranks may start at once, and each change is an entry of the journal.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ledger.domain.columns import moment_of, moment_text
from ledger.domain.errors import (
    AttemptEndedDifferently,
    AttemptExistsDifferently,
    InvalidRequest,
    NotInConflict,
    RunExistsDifferently,
    RunUnknown,
)
from ledger.domain.layout import layout_of
from ledger.domain.trajectory import Resume
from ledger.storage import history, journal, projections, registry
from ledger.storage.registry import Launch, Run, plain
from ledger.storage.store import Connection, Overtaken, Store


def _without_nulls(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if body is None else {key: value for key, value in body.items() if value is not None}


def open_run(store: Store, project: str, run: str, declaration: Mapping[str, Any], now: datetime) -> tuple[dict[str, Any], bool]:
    """Opens a run, or finds the one that was opened with the same declaration: (the run, whether it is new).

    Raises: RunExistsDifferently.
    """
    wanted = {"conventions": declaration.get("conventions") or {}, "forked_from": _without_nulls(declaration.get("forked_from"))}
    try:
        with store.write() as connection:
            created = _create_run(connection, project, run, wanted, moment_of(now))
    except Overtaken:
        created = False
    with store.read() as connection:
        found = registry.find_run(connection, project, run)
    if found.declaration != wanted:
        raise RunExistsDifferently(f"run {project}/{run} was opened with another declaration", opened_with=found.declaration)
    return run_record(found), created


def _create_run(connection: Connection, project: str, name: str, declaration: dict[str, Any], now: int) -> bool:
    try:
        registry.find_run(connection, project, name)
    except RunUnknown:
        fork = declaration["forked_from"] or {}
        row = {"project": project, "name": name, "declaration": plain(declaration), "opened_at": now, "last_entry_at": now}
        row |= {"fork_project": fork.get("project"), "fork_run": fork.get("run")}
        run_id = registry.add_run(connection, row)
        projections.begin(connection, run_id)
        journal.declare(connection, run_id, "run", 0, declaration, now)
        return True
    return False


def run_record(run: Run) -> dict[str, Any]:
    """A run as a plain record."""
    return {
        "project": run.project,
        "run": run.name,
        "conventions": run.conventions,
        "forked_from": run.forked_from,
        "opened_at": moment_text(run.opened_at),
        "events": run.entries,
        "last_event_at": moment_text(run.last_entry_at),
    }


def attempt_record(launch: Launch) -> dict[str, Any]:
    """An attempt as a plain record."""
    attempt = launch.attempt
    resume, conflict = attempt.resume()
    return {
        "attempt": attempt.name,
        "ordinal": attempt.ordinal,
        "resumed_from": _resume_record(resume),
        "resume_conflict": conflict,
        "declared": [_resume_record(item) for item in attempt.declared],
        "layout": launch.layout,
        "world_size": launch.world_size,
        "conventions": launch.conventions,
        "started_at": None if attempt.started_at is None else moment_text(attempt.started_at),
        "opened_at": moment_text(launch.opened_at),
        "ended": attempt.ended,
        "ended_at": None if launch.ended_at is None else moment_text(launch.ended_at),
        "last_event_at": None if launch.last_event_at is None else moment_text(launch.last_event_at),
    }


def _resume_record(resume: Resume | None) -> dict[str, Any] | None:
    if resume is None:
        return None
    return {"checkpoint": resume.checkpoint, "attempt": resume.attempt, "update": resume.update}


def open_attempt(
    store: Store, project: str, run: str, attempt: str, declaration: Mapping[str, Any], now: datetime
) -> tuple[dict[str, Any], bool]:
    """Opens an attempt and gives it its ordinal, once, whichever rank comes first: (the attempt, whether it is new).

    A different `resumed_from` of another rank is kept beside the first one; the earliest `started_at` stands.
    Raises: RunUnknown, AttemptExistsDifferently, InvalidRequest.
    """
    body: dict[str, Any] = {
        "resumed_from": _without_nulls(declaration.get("resumed_from")),
        "layout": _without_nulls(declaration.get("layout")),
        "conventions": declaration.get("conventions") or {},
        "started_at": None if declaration.get("started_at") is None else moment_of(declaration["started_at"]),
    }
    world_size = layout_of(body["layout"]).world_size
    rank = declaration.get("rank")
    if rank is not None and rank >= world_size:
        raise InvalidRequest(f"rank {rank} is not in a world of {world_size}", pointer="/rank")
    with store.write() as connection:
        found = registry.find_run(connection, project, run)
        journal.lock_run(connection, found.id)
        known = {launch.attempt.name: launch for launch in registry.launches(connection, found.id)}
        if attempt in known:
            _agree(connection, found, known[attempt], body, moment_of(now))
        else:
            _create_attempt(connection, found.id, len(known) + 1, attempt, body, world_size, moment_of(now))
        return attempt_record(registry.find_launch(connection, found, attempt)), attempt not in known


def _create_attempt(
    connection: Connection, run_id: int, ordinal: int, name: str, body: dict[str, Any], world_size: int, now: int
) -> None:
    row = {
        "run_id": run_id,
        "ordinal": ordinal,
        "name": name,
        "declared": plain([body["resumed_from"]]),
        "resolved": "[]",
        "layout": plain(body["layout"]),
        "conventions": plain(body["conventions"]),
        "world_size": world_size,
        "started_at": body["started_at"],
        "opened_at": now,
    }
    registry.add_attempt(connection, row)
    journal.declare(connection, run_id, "attempt", ordinal, {"name": name, **body}, now)


def _agree(connection: Connection, run: Run, launch: Launch, body: dict[str, Any], now: int) -> None:
    """Adds what another declaration of a known attempt says."""
    for part, kept in (("layout", launch.layout), ("conventions", launch.conventions)):
        if body[part] != kept:
            raise AttemptExistsDifferently(
                f"attempt {launch.attempt.name} was opened with another {part}", pointer=f"/{part}", opened_with=kept
            )
    resume, before = Resume.of(body["resumed_from"]), launch.attempt.started_at
    declared = list(launch.attempt.declared)
    started = min((moment for moment in (before, body["started_at"]) if moment is not None), default=None)
    if resume in declared and started == before:
        return
    declared += [] if resume in declared else [resume]
    texts = plain([_without_nulls(_resume_record(item)) for item in declared])
    registry.save_launch(connection, run.id, launch.attempt.ordinal, declared=texts, started_at=started)
    journal.declare(connection, run.id, "attempt", launch.attempt.ordinal, {"name": launch.attempt.name, **body}, now)


def change_attempt(store: Store, project: str, run: str, attempt: str, change: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Ends an attempt, or settles which resume point stands where its ranks contradict each other.

    Raises: RunUnknown, AttemptUnknown, AttemptEndedDifferently, NotInConflict.
    """
    with store.write() as connection:
        found = registry.find_run(connection, project, run)
        journal.lock_run(connection, found.id)
        launch = registry.find_launch(connection, found, attempt)
        if "resumed_from" in change:
            _settle_resume(connection, found, launch, _without_nulls(change["resumed_from"]), moment_of(now))
        if change.get("ended") is not None:
            _end(connection, found, launch, change, moment_of(now))
        return attempt_record(registry.find_launch(connection, found, attempt))


def _end(connection: Connection, run: Run, launch: Launch, change: Mapping[str, Any], now: int) -> None:
    if launch.attempt.ended is not None:
        if launch.attempt.ended != change["ended"]:
            raise AttemptEndedDifferently(f"attempt {launch.attempt.name} has already ended as {launch.attempt.ended}")
        return
    given = change.get("ended_at")
    ended_at = moment_of(given) if given is not None else launch.last_event_at or now
    registry.save_launch(connection, run.id, launch.attempt.ordinal, ended=change["ended"], ended_at=ended_at)
    journal.declare(connection, run.id, "ending", launch.attempt.ordinal, {"ended": change["ended"], "ended_at": ended_at}, now)


def _settle_resume(connection: Connection, run: Run, launch: Launch, resumed_from: dict[str, Any] | None, now: int) -> None:
    attempt = launch.attempt
    settled = Resume.of(resumed_from)
    if attempt.resolved and attempt.resolved[-1] == settled:
        return
    undecided = history.tree(connection, run).nodes[attempt.ordinal].undecided
    if undecided is None and not attempt.resolved and len(attempt.declared) < 2:
        raise NotInConflict(f"the resume point of attempt {attempt.name} is not contradicted")
    texts = plain([_without_nulls(_resume_record(item)) for item in (*attempt.resolved, settled)])
    registry.save_launch(connection, run.id, attempt.ordinal, resolved=texts)
    journal.declare(connection, run.id, "resume", attempt.ordinal, {"resumed_from": resumed_from}, now)


def resolve_update(store: Store, project: str, run: str, attempt: str, resolution: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Writes down which rank or which outcome stands for a held update, and who said so.

    Raises: RunUnknown, AttemptUnknown, InvalidRequest.
    """
    body = {
        "update": resolution["update"],
        "retry": resolution.get("retry") or 0,
        "rank": resolution.get("rank"),
        "outcome": resolution.get("outcome"),
        "by": resolution["by"],
        "why": resolution["why"],
    }
    with store.write() as connection:
        found = registry.find_run(connection, project, run)
        launch = registry.find_launch(connection, found, attempt)
        if (body["rank"] is None) == (body["outcome"] is None):
            raise InvalidRequest("a resolution names either the rank or the outcome that stands", pointer="/rank")
        if body["rank"] is not None and body["rank"] >= launch.world_size:
            raise InvalidRequest(f"rank {body['rank']} is not in a world of {launch.world_size}", pointer="/rank")
        journal.declare(connection, found.id, "resolution", launch.attempt.ordinal, body, moment_of(now))
    return {"attempt": attempt, **body, "at": moment_text(moment_of(now))}


def list_runs(store: Store, project: str | None, cursor: str | None, limit: int) -> dict[str, Any]:
    """Runs in the order of their names, a page at a time."""
    project_after, _, name_after = (cursor or "").partition("/")
    with store.read() as connection:
        found = registry.runs_after(connection, project, (project_after, name_after), limit + 1)
    page = found[:limit]
    more = f"{page[-1].project}/{page[-1].name}" if len(found) > limit else None
    return {"items": [run_record(run) for run in page], "next_cursor": more}


def describe_run(store: Store, project: str, run: str) -> dict[str, Any]:
    """A run with its attempts and what was declared of each. Raises: RunUnknown."""
    with store.read() as connection:
        found = registry.find_run(connection, project, run)
        return run_described(found, registry.launches(connection, found.id), registry.forks_of(connection, found))


def run_described(run: Run, launches: Iterable[Launch], forks: list[dict[str, str]]) -> dict[str, Any]:
    """What is told of a run by itself: its declaration, its attempts, and the runs that were forked from it."""
    return run_record(run) | {"attempts": [attempt_record(launch) for launch in launches], "forks": forks}

