"""The report as a document: one file, nothing loaded, nothing run, the figures those of the reports, hostile names as text."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from ledger.cli import app
from ledger.services.juxtaposition import NO_LEARNING_RATE_RULE, NOT_EQUAL_GRADIENTS
from server import LedgerServer
from service import running
from worked_example import RUN, attempt, batch, columns, play

HOSTILE = '<script>alert("x")</script> [a](javascript:b) `c` | d'
OTHER = "/v1/projects/default/runs/other"
IMAGE = re.compile(r"!\[(.*)\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, str]]:
    """A service with the worked example, a run with hostile names, and an empty one; and the address of its database."""
    folder = tmp_path_factory.mktemp("document")
    with running(folder) as client:
        play(client)
        client.put(OTHER, json={"conventions": {"optimizer": HOSTILE}}).raise_for_status()
        client.put(f"{OTHER}/attempts/a1", json=attempt(1, None)).raise_for_status()
        block = columns(1, {1: "applied", 2: "applied"}, 0) | {"valid_targets": [20, None], "ranges": [[[HOSTILE, 0, 0, 4]], None]}
        client.post(f"{OTHER}/attempts/a1/events", json=batch(0, updates=block)).raise_for_status()
        client.put("/v1/projects/default/runs/empty", json={}).raise_for_status()
        yield client, f"sqlite:///{folder / 'ledger.db'}"


def document(service: tuple[TestClient, str], run: str, form: str) -> str:
    """The document of a run as the command writes it."""
    result = CliRunner().invoke(app, ["report", run, "--format", form], env={"LEDGER_DATABASE_URL": service[1], "LEDGER_URL": None})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_it_has_everything_with_units_offset_and_digest(service: tuple[TestClient, str], form: str) -> None:
    client, text = service[0], document(service, "demo", form)
    record, exposure = client.get(f"{RUN}/record").json(), client.get(f"{RUN}/exposure").json()
    assert record["digest"] in text
    assert f"As of entry {exposure['as_of']['events']} of the journal" in text
    assert "360 targets attempted = 252 preserved + 0 pending + 72 lost to restart + 36 skipped + 0 dropped" in text
    for unit in ("input slots [slots]", "consumed tokens [tokens]", "valid targets [targets]", "samples [samples]", "updates [updates]"):
        assert unit in text
    for rate in record["rates"]:
        assert rate["statement"] in text
    for title in ("Balance", "Valid-token batch", "Objective", "Data mixture", "Coverage", "Rates", "Attempts and topology", "Conventions"):
        assert re.search(rf"(## |<h2>){title}", text), title
    assert record["objective"]["statement"] in text
    assert NOT_EQUAL_GRADIENTS in text
    assert NO_LEARNING_RATE_RULE in text


def test_the_page_loads_nothing_and_runs_nothing(service: tuple[TestClient, str]) -> None:
    assert document(service, "demo", "html").count("<svg") == 3
    text = document(service, "other", "html")
    assert re.findall(r"<(script|link|img|iframe|object)\b", text) == []
    assert re.findall(r'\b(src|href|on\w+)="', text) == []
    assert "url(" not in text
    assert "&lt;script&gt;" in text


def test_charts_in_markdown_lie_in_the_text(service: tuple[TestClient, str]) -> None:
    found = IMAGE.findall(document(service, "demo", "markdown"))
    assert len(found) == 3
    for words, content in found:
        drawing = ET.fromstring(base64.b64decode(content))
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert drawing.get("aria-label") == words
        assert len(drawing.findall(".//{http://www.w3.org/2000/svg}path") + drawing.findall(".//{http://www.w3.org/2000/svg}rect")) > 0


def test_hostile_names_are_no_markup(service: tuple[TestClient, str]) -> None:
    text = document(service, "other", "markdown")
    assert re.search(r"(?<!\\)<script", text) is None
    assert "](javascript" not in text.replace("\\](", "")
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if "alert" in line and line.startswith("| optimizer")}
    assert widths == {3}


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_what_is_unknown_is_a_lower_bound(service: tuple[TestClient, str], form: str) -> None:
    text = document(service, "other", form)
    assert "≥\xa020" in text
    assert "a lower bound" in text


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_an_empty_run_reads_well(service: tuple[TestClient, str], form: str) -> None:
    text = document(service, "empty", form)
    assert "No update has been attempted yet." in text
    assert "No data ranges have been posted, so what was drawn is unknown." in text
    assert "None were declared." in text


def test_a_document_is_of_the_runs_own_head(service: tuple[TestClient, str]) -> None:
    arguments = ["report", "demo", "--format", "html", "--head", "a1"]
    result = CliRunner().invoke(app, arguments, env={"LEDGER_DATABASE_URL": service[1]})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--head goes with the formats text and json" in result.stderr


def test_a_document_over_rest_is_the_same(service: tuple[TestClient, str], tmp_path: Path) -> None:
    """A service on the same database, asked over a socket."""
    from_database = document(service, "demo", "html")
    address = service[1]
    with LedgerServer(address, tmp_path / "log") as server:
        result = CliRunner().invoke(app, ["report", "demo", "--format", "html", "--url", server.url])
    assert result.exit_code == 0, result.output
    assert result.stdout == from_database
