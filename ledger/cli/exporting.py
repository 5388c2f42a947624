"""`ledger export`: the raw log of a run."""

import contextlib
import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import to_json

from ledger.cli.sources import RUN_HELP, UNREACHABLE, DatabaseUrl, fail, open_ledger, settings_of, split_run
from ledger.services import export


def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file; standard output if left out.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write the raw log of a run, one JSON object a line, in the order of its journal.

    Exit codes: 0 done, 2 wrong usage, 3 the run is unknown, or the database or the file cannot be used.
    """
    project, name = split_run(run)
    with open_ledger(settings_of(database_url=database_url)) as store:
        entries = export.events(store, project, name)
        # Read before the file is made, so that a run that is unknown leaves none behind.
        first = [*itertools.islice(entries, 1)]
        try:
            with contextlib.nullcontext(sys.stdout.buffer) if output is None else output.open("wb") as target:
                for entry in itertools.chain(first, entries):
                    target.write(to_json(entry, inf_nan_mode="strings") + b"\n")
                target.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(UNREACHABLE, f"{output or 'standard output'} cannot be written: {error.strerror or error}")
