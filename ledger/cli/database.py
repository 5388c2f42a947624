"""`ledger db`: the schema of the ledger's database."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ledger.cli.sources import DIFFERENT, UNREACHABLE, DatabaseUrl, fail, failures_told, is_there, settings_of
from ledger.storage import schema
from ledger.storage.engine import open_engine
from ledger.storage.store import Engine

app = typer.Typer(help="The schema of the ledger's database.", no_args_is_help=True)


@contextmanager
def _database(database_url: str | None, makes: bool = False) -> Iterator[Engine]:
    address = settings_of(database_url=database_url).database_url
    if not makes and not is_there(address):
        fail(UNREACHABLE, f"there is no ledger at {address}")
    with failures_told():
        engine = open_engine(address)
        try:
            yield engine
        finally:
            engine.dispose()


@app.command()
def upgrade(database_url: DatabaseUrl = None) -> None:
    """Bring the database to the schema of this version. Exit codes: 0 done, 3 it cannot be reached."""
    with _database(database_url, makes=True) as engine:
        before = schema.current(engine)
        schema.upgrade(engine)
        after = schema.current(engine)
    typer.echo(f"{after}: nothing to do" if before == after else f"{before or 'empty'} -> {after}")


@app.command()
def current(database_url: DatabaseUrl = None) -> None:
    """Print the schema version that the database has. Exit codes: 0 done, 3 it cannot be reached."""
    with _database(database_url) as engine:
        typer.echo(schema.current(engine) or "empty")


@app.command()
def check(database_url: DatabaseUrl = None) -> None:
    """Compare the database with the schema of this version. Exit codes: 0 the same, 1 another, 3 it cannot be reached."""
    with _database(database_url) as engine:
        found, wanted = schema.current(engine), schema.head()
    if found != wanted:
        fail(DIFFERENT, f"the database has {found or 'no schema'}, this version needs {wanted}: run `ledger db upgrade`")
    typer.echo(f"{found}: current")
