"""`ledger verify`: every balance computed again from the raw log, by another path."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ledger.cli.sources import DIFFERENT, RUN_HELP, DatabaseUrl, failures_told, open_ledger, settings_of, split_run
from ledger.services import registration, verification
from ledger.services.verification import Difference
from ledger.storage.store import Store

RUNS_A_PAGE = 1000


def verify(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help=f"{RUN_HELP} All runs if left out.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="First make the projections anew from the raw log.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Compute every balance again from the raw log by another path, and compare.

    Exit codes: 0 all the same, 1 a difference was found, 2 wrong usage, 3 the run is unknown or the database cannot be reached.
    """
    found = 0
    with open_ledger(settings_of(database_url=database_url)) as store:
        chosen = list(_all_runs(store)) if run is None else [split_run(run)]
        for project, name in chosen:
            difference = _verify_one(store, project, name, rebuild)
            found += difference is not None
            typer.echo(f"{project}/{name}: {'the same' if difference is None else difference}")
    if found:
        raise typer.Exit(DIFFERENT)
    if not chosen:
        typer.echo("there are no runs")


def _verify_one(store: Store, project: str, run: str, rebuild: bool) -> Difference | None:
    if rebuild:
        with _shown(f"rebuild {project}/{run}") as progress:
            verification.rebuild(store, project, run, progress)
    with failures_told(), _shown(f"verify {project}/{run}") as progress:
        return verification.verify(store, project, run, progress)


def _all_runs(store: Store) -> Iterator[tuple[str, str]]:
    cursor: str | None = None
    while True:
        page = registration.list_runs(store, None, cursor, RUNS_A_PAGE)
        yield from ((item["project"], item["run"]) for item in page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return


@contextmanager
def _shown(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while the terminal can show one."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
