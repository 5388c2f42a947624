"""Commands end as they say: with what was asked for on standard output, or a sentence and an exit code, never a traceback."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from ledger.cli import app
from ledger.storage.engine import open_engine
from service import running
from worked_example import play


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test."""
    for name in [name for name in os.environ if name.startswith("LEDGER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the worked example."""
    folder = tmp_path_factory.mktemp("ledger")
    with running(folder) as service:
        play(service)
    return folder / "ledger.db"


def ledger(database: Path | str, *arguments: str) -> Result:
    address = database if isinstance(database, str) else f"sqlite:///{database}"
    return CliRunner().invoke(app, arguments, env={"LEDGER_DATABASE_URL": address})


def assert_refused(result: Result, code: int, sentence: str) -> None:
    """The command ended with that code and one sentence on standard error."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert sentence in result.stderr
    assert result.stderr.startswith("ledger: ")
    assert result.stderr.count("\n") == 1


def test_the_report_says_the_worked_example(played: Path) -> None:
    result = ledger(played, "report", "demo")
    assert result.exit_code == 0
    assert "10 updates were attempted: 9 applied, 1 skipped. 3 of them redid a number that had been attempted before." in result.stdout
    assert [line.split()[-3] for line in result.stdout.splitlines() if line.startswith(("attempted", "preserved"))] == ["360", "252"]
    exposure = json.loads(ledger(played, "report", "default/demo", "--format", "json").stdout)
    assert exposure["balance"]["valid_targets"]["lost_to_restart"] == 72
    assert "| preserved | 70.0 % |" in ledger(played, "report", "demo", "--format", "markdown").stdout


def test_verification_finds_the_books_the_same(played: Path) -> None:
    for arguments in (["verify"], ["verify", "demo"], ["verify", "--rebuild", "default/demo"]):
        result = ledger(played, *arguments)
        assert (result.exit_code, result.stdout) == (0, "default/demo: the same\n")


def test_a_difference_is_told_and_ends_with_1(played: Path, tmp_path: Path) -> None:
    # The service may have ended before its projector came to the last batch; a report folds what is not folded.
    assert ledger(played, "report", "demo").exit_code == 0
    changed = tmp_path / "changed.db"
    # A copy of the file alone could miss what still lies in the write-ahead log.
    with closing(sqlite3.connect(played)) as source, closing(sqlite3.connect(changed)) as copy:
        source.backup(copy)
    engine = open_engine(f"sqlite:///{changed}")
    with engine.begin() as connection:
        altered = connection.execute(text("UPDATE totals SET known_valid_targets = 1 WHERE outcome = 'applied' AND attempt = 2"))
        assert altered.rowcount
    engine.dispose()
    result = ledger(changed, "verify", "demo")
    assert result.exit_code == 1
    assert result.stdout.startswith("default/demo: ")
    assert "the same" not in result.stdout


def test_the_export_is_the_raw_log_in_order(played: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in ledger(played, "export", "demo").stdout.splitlines()]
    assert [line["offset"] for line in lines] == [*range(1, len(lines) + 1)]
    assert sum(line.get("valid_targets") or 0 for line in lines) == 360
    assert ledger(played, "export", "demo", "-o", str(tmp_path / "log")).stdout == ""
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == lines


def test_what_is_unknown_ends_with_3(played: Path, tmp_path: Path) -> None:
    for arguments in (["report", "none"], ["verify", "none"], ["export", "none", "-o", str(tmp_path / "never")]):
        assert_refused(ledger(played, *arguments), 3, "no run default/none has been opened")
    assert not (tmp_path / "never").exists()
    assert_refused(ledger(played, "report", "demo", "--head", "a9"), 3, "a9")
    assert_refused(ledger(played, "export", "demo", "-o", str(tmp_path / "none" / "log")), 3, "cannot be written")


@pytest.mark.parametrize("arguments", [["report", "demo"], ["verify"], ["export", "demo"], ["db", "current"], ["db", "check"]])
def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path, arguments: list[str]) -> None:
    assert_refused(ledger(tmp_path / "none" / "ledger.db", *arguments), 3, "there is no ledger at")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("arguments", [["report", "demo"], ["verify"], ["db", "upgrade"], ["db", "check"], ["serve", "--port", "0"]])
def test_a_database_that_cannot_be_used_is_a_sentence(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "notes.txt").write_text("These are no books. " * 100)
    assert_refused(ledger(tmp_path / "notes.txt", *arguments), 3, "file is not a database")
    assert_refused(ledger("postgresql://ledger@127.0.0.1:1/ledger", *arguments), 3, "refused")


@pytest.mark.parametrize("arguments", [["db", "upgrade"], ["serve", "--port", "0"]])
def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(ledger(tmp_path / "file" / "ledger.db", *arguments), 3, "")


@pytest.mark.parametrize("address", ["mysql://u@h/d", "ledger.db", "sqlite://", ""])
def test_a_database_of_another_kind_is_wrong_usage(address: str) -> None:
    assert_refused(ledger(address, "report", "demo"), 2, "LEDGER_DATABASE_URL: an address is sqlite:///PATH or postgresql+psycopg://")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached by other machines, and the ledger has no access control"),
        (["--host", "ledger.example"], "ledger.example can be reached by other machines"),
        (["--port", "70000"], "LEDGER_PORT"),
        (["--workers", "0"], "LEDGER_WORKERS"),
    ],
)
def test_a_setting_that_cannot_be_ends_with_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    assert_refused(ledger(tmp_path / "ledger.db", "serve", *arguments), 2, sentence)
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_that_is_told_to_stop_ends_with_0(tmp_path: Path, number: signal.Signals, workers: str) -> None:
    command = [sys.executable, "-m", "ledger.cli", "serve", "--port", "0", "--workers", workers]
    environment = os.environ | {"LEDGER_DATABASE_URL": f"sqlite:///{tmp_path / 'ledger.db'}"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        address = service.stderr.readline().split()[3]
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=30) as answer:
                assert answer.status == 200
        finally:
            service.send_signal(number)
        rest = service.stderr.read()
        assert service.wait(30) == 0
    assert "Traceback" not in rest


def test_the_schema_is_told_and_checked(tmp_path: Path) -> None:
    database = tmp_path / "ledger.db"
    assert ledger(database, "db", "upgrade").stdout.startswith("empty -> ")
    assert "nothing to do" in ledger(database, "db", "upgrade").stdout
    version = ledger(database, "db", "current").stdout.strip()
    assert ledger(database, "db", "check").stdout == f"{version}: current\n"
    assert ledger(database, "verify").stdout == "there are no runs\n"


def test_a_service_that_is_away_ends_with_3(tmp_path: Path) -> None:
    assert_refused(ledger(tmp_path / "x", "report", "demo", "--url", "http://127.0.0.1:1"), 3, "http://127.0.0.1:1 cannot be reached")
    assert_refused(ledger(tmp_path / "x", "report", "demo", "--url", "file:///etc"), 2, "--url begins with http:// or https://")
