"""`ledger export`: the raw log of a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import to_json

from ledger.cli.sources import RUN_HELP, DatabaseUrl, open_ledger, settings_of, split_run
from ledger.services import export


def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file; standard output if left out.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write the raw log of a run, one JSON object a line, in the order of its journal.

    Exit codes: 0 done, 2 wrong usage, 3 the run is unknown or the database cannot be reached.
    """
    project, name = split_run(run)
    with open_ledger(settings_of(database_url=database_url)) as store:
        entries = export.events(store, project, name)
        first = next(entries, None)
        target = sys.stdout.buffer if output is None else output.open("wb")
        try:
            if first is not None:
                target.write(to_json(first, inf_nan_mode="strings") + b"\n")
            for entry in entries:
                target.write(to_json(entry, inf_nan_mode="strings") + b"\n")
            target.flush()
        finally:
            if output is not None:
                target.close()
