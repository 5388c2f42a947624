"""Commands: what they print, and the exit codes that scripts go by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ledger.cli import app
from ledger.config import Settings
from service import running
from worked_example import RUN, batch, columns, play

EQUATION_ROWS = {
    "attempted": "360",
    "preserved": "252",
    "pending": "0",
    "lost to restart": "72",
    "skipped": "36",
    "dropped": "0",
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database that has seen the worked example."""
    folder = tmp_path_factory.mktemp("cli")
    with running(folder) as client:
        play(client)
    yield f"sqlite:///{folder / 'ledger.db'}"


def run(*arguments: str, database: str = "sqlite:///nowhere/ledger.db") -> Result:
    """A command."""
    return CliRunner().invoke(app, [*arguments], env={"LEDGER_DATABASE_URL": database, "COLUMNS": "140"})


def test_report_in_words(ledger: str) -> None:
    result = run("report", "demo", database=ledger)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    for term, targets in EQUATION_ROWS.items():
        cells = next(line for line in lines if line[: len(term.split())] == term.split())
        # term, share and its sign, slots, tokens, targets
        assert cells[len(term.split()) + 4] == targets


def test_report_as_json_is_the_report_itself(ledger: str) -> None:
    result = run("report", "default/demo", "--format", "json", database=ledger)
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["balance"]["valid_targets"]["preserved"] == 252


def test_report_as_if_another_attempt_were_the_head(ledger: str) -> None:
    report = json.loads(run("report", "demo", "--head", "a1", "--format", "json", database=ledger).stdout)
    assert report["balance"]["valid_targets"]["pending"] == 72
    assert report["as_of"]["head"] == "a1"


def test_report_as_markdown_holds_exact_figures(ledger: str) -> None:
    text = run("report", "demo", "--format", "markdown", database=ledger).stdout
    assert "| lost to restart | 20.0 % | 128 | 96 | 72 | 8 | 2 |" in text


def test_export_is_every_entry(ledger: str, tmp_path: Path) -> None:
    printed = run("export", "demo", database=ledger)
    written = run("export", "demo", "--output", str(tmp_path / "log"), database=ledger)
    assert (printed.exit_code, written.exit_code) == (0, 0)
    assert (tmp_path / "log").read_text() == printed.stdout
    assert [json.loads(line)["offset"] for line in printed.stdout.splitlines()] == [*range(1, len(printed.stdout.splitlines()) + 1)]


def test_verify_finds_both_accounts_the_same(ledger: str) -> None:
    result = run("verify", database=ledger)
    assert (result.exit_code, result.stdout) == (0, "default/demo: the same\n")


def test_database_commands(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'new.db'}"
    assert run("db", "current", database=database).stdout == "empty\n"
    assert run("db", "check", database=database).exit_code == 1
    assert run("db", "upgrade", database=database).exit_code == 0
    assert "nothing to do" in run("db", "upgrade", database=database).stdout
    assert run("db", "check", database=database).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("report", "none"), 3, "no run default/none has been opened"),
        (("report", "demo", "--head", "none"), 3, "no attempt none"),
        (("verify", "none"), 3, "no run default/none has been opened"),
        (("export", "none"), 3, "no run default/none has been opened"),
        (("report", "demo", "--url", "http://127.0.0.1:1"), 3, "cannot be reached: "),
        (("report", "demo", "--url", "ftp://x"), 2, "--url begins with http"),
        (("report", "demo", "--format", "xml"), 2, "xml"),
        (("serve", "--host", "0.0.0.0"), 2, "can be reached by other machines"),
        (("serve", "--port", "70000"), 2, "LEDGER_PORT"),
        (("report",), 2, "RUN"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(ledger: str, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    result = run(*arguments, database=ledger)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    place = tmp_path / "folder" / "ledger.db"
    result = run("report", "demo", database=f"sqlite:///{place}")
    assert (result.exit_code, place.exists()) == (3, False)
    assert "there is no ledger" in result.stderr


def test_a_server_database_that_is_away_is_said(tmp_path: Path) -> None:
    result = run("db", "current", database="postgresql://127.0.0.1:1/ledger?connect_timeout=2")
    assert result.exit_code == 3
    assert "Traceback" not in result.output


def test_a_report_needs_no_service_to_be_up_to_date(tmp_path: Path) -> None:
    with running(tmp_path, projection_interval_seconds=60) as client:
        play(client)
        late = batch(0, updates=columns(60, {8: "applied"}, 0))
        client.post(f"{RUN}/attempts/a2/events", json=late).raise_for_status()
    report = json.loads(run("report", "demo", "--format", "json", database=f"sqlite:///{tmp_path / 'ledger.db'}").stdout)
    assert report["updates"]["held"] == 1


def test_settings_come_from_the_environment_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_PORT", "9000")
    assert Settings().port == 9000
    assert Settings(port=1).port == 1
