"""Where a command reads from: the database itself, or a running service over REST; and how it ends when it cannot."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from ledger.app import utc_now
from ledger.config import Settings
from ledger.domain.errors import LedgerError
from ledger.services import reports
from ledger.services.record import record
from ledger.services.reports import Reports
from ledger.storage import schema
from ledger.storage.engine import open_engine
from ledger.storage.store import Store

DIFFERENT, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes."""
DEFAULT_PROJECT = "default"
ANSWER_SECONDS = 60.0
FRESH_TRIES = 5
RUN_HELP = "The run: PROJECT/RUN, or RUN in the project `default`."

DatabaseUrl = Annotated[
    str | None, typer.Option("--database-url", help="The ledger's database; LEDGER_DATABASE_URL if left out.", show_default=False)
]
ServiceUrl = Annotated[str | None, typer.Option("--url", help="Ask the service at this address instead of the database.")]


def fail(code: int, sentence: str) -> NoReturn:
    """End the command with a sentence on standard error."""
    typer.echo(f"ledger: {sentence}", err=True)
    raise typer.Exit(code)


def settings_of(**flags: Any) -> Settings:
    """Settings from flags (None: not given) and the environment; ends the command where they cannot be."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        sentences = [_setting_sentence(item) for item in error.errors(include_url=False)]
        fail(USAGE, "; ".join(sentences))


def _setting_sentence(item: Any) -> str:
    name = ".".join(str(step) for step in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"LEDGER_{name.upper()}: {message}" if name else message


def split_run(name: str) -> tuple[str, str]:
    """Project and run of a name as people give it.

    >>> split_run("llama"), split_run("pretraining/llama")
    (('default', 'llama'), ('pretraining', 'llama'))
    """
    project, slash, run = name.rpartition("/")
    return (project, run) if slash else (DEFAULT_PROJECT, name)


@contextmanager
def failures_told() -> Iterator[None]:
    """End the command with a sentence where the ledger refuses, or the database cannot be used."""
    try:
        yield
    except LedgerError as error:
        fail(UNREACHABLE, error.detail)
    except (FileExistsError, FileNotFoundError, PermissionError) as error:
        fail(UNREACHABLE, f"{error.filename or 'the database'} cannot be used: {error.strerror or error}")


@contextmanager
def open_ledger(settings: Settings) -> Iterator[Store]:
    """The database of those settings, which must be there and current."""
    engine = open_engine(settings.database_url) if is_there(settings.database_url) else None
    if engine is None:
        fail(UNREACHABLE, f"there is no ledger at {settings.database_url}")
    try:
        with failures_told():
            if not schema.is_current(engine):
                fail(UNREACHABLE, "the database schema is not the one of this version: run `ledger db upgrade`")
            yield Store(engine)
    finally:
        engine.dispose()


def is_there(url: str) -> bool:
    """Whether an embedded database exists: to open it would make it."""
    path = url.partition(":///")[2].partition("?")[0]
    return not url.startswith("sqlite") or not path or Path(path).exists()


class LocalReports:
    """Reports read from the database."""

    def __init__(self, source: Reports) -> None:
        self._source = source

    def exposure(self, project: str, run: str, head: str | None) -> dict[str, Any]:
        """The exposure report."""
        with reports.open_books(self._source, project, run, head) as books:
            return reports.exposure(books)

    def findings(self, project: str, run: str, limit: int) -> list[dict[str, Any]]:
        """The first findings."""
        with reports.open_books(self._source, project, run) as books:
            found: list[dict[str, Any]] = reports.findings(books, None, limit)["findings"]
        return found


    def parts(self, project: str, run: str, limit: int, points: int) -> dict[str, Any]:
        """All that a document is made from, read off one opening of the books."""
        with reports.open_books(self._source, project, run) as books:
            return {
                "exposure": reports.exposure(books),
                "findings": reports.findings(books, None, limit)["findings"],
                "record": record(books),
                "coverage": reports.coverage(books),
                "course": reports.course(books, points=points),
            }


class RemoteReports:
    """Reports asked of a running service."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def exposure(self, project: str, run: str, head: str | None) -> dict[str, Any]:
        """The exposure report."""
        return self._get(project, run, "exposure", {"head": head})

    def findings(self, project: str, run: str, limit: int) -> list[dict[str, Any]]:
        """The first findings."""
        found: list[dict[str, Any]] = self._get(project, run, "findings", {"limit": limit})["findings"]
        return found

    def parts(self, project: str, run: str, limit: int, points: int) -> dict[str, Any]:
        """All that a document is made from; asked again while the run moves on between one answer and the next."""
        for _ in range(FRESH_TRIES):
            found: dict[str, Any] = {name: self._get(project, run, name, {}) for name in ("exposure", "record", "coverage")}
            found["course"] = self._get(project, run, "course", {"points": points})
            found["findings"] = self.findings(project, run, limit)
            if len({found[name]["as_of"]["events"] for name in ("exposure", "record", "coverage", "course")}) == 1:
                return found
        fail(UNREACHABLE, f"{project}/{run} moved on while it was read; ask again when it is quieter, or read its database")

    def _get(self, project: str, run: str, part: str, query: dict[str, Any]) -> dict[str, Any]:
        given = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
        path = f"/v1/projects/{urllib.parse.quote(project, safe='')}/runs/{urllib.parse.quote(run, safe='')}/{part}"
        address = f"{self._url}{path}" + (f"?{given}" if given else "")
        if not address.startswith(("http://", "https://")):
            fail(USAGE, "--url begins with http:// or https://")
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as reply:
                answered: dict[str, Any] = json.load(reply)
                return answered
        except urllib.error.HTTPError as error:
            fail(UNREACHABLE, _problem_sentence(error))
        except (OSError, ValueError) as error:
            fail(UNREACHABLE, f"{self._url} cannot be reached: {getattr(error, 'reason', None) or error}")


def _problem_sentence(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {error.code}"


@contextmanager
def open_reports(url: str | None, database_url: str | None) -> Iterator[LocalReports | RemoteReports]:
    """Reports from the service at that address, or else from the database."""
    if url is not None:
        yield RemoteReports(url)
        return
    settings = settings_of(database_url=database_url)
    with open_ledger(settings) as store:
        # No projector runs here, so the reader itself catches up with whatever is new, however long that takes.
        yield LocalReports(Reports(store, utc_now, settings.grace_seconds, wait_seconds=None))
