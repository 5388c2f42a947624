"""Runs side by side in a real browser: chosen by click and by keyboard, values on the screen those of the API."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from browser import Browser, browser
from server import LedgerServer
from service import running
from worked_example import attempt, batch, columns, saved

HOSTILE = '<img src=x onerror=console.error("run")>&amp;"\'</table>'
BASE = "/v1/projects/pretraining/runs/base"
WIDE = "/v1/projects/pretraining/runs/wide"
BOTH = "run=pretraining/base&run=pretraining/wide"


def play_run(server: LedgerServer, run: str, updates: int, ranks: int, **conventions: Any) -> None:
    """A run of so many ranks, each with a batch and a loss of its own in every update."""
    server.call("PUT", run, {"conventions": {"objective": "token_mean", "gradient_reducer": "mean", "sequence_length": 32} | conventions})
    server.call("PUT", f"{run}/attempts/a1", attempt(1, None) | {"layout": {"dp": ranks}})
    for rank in range(ranks):
        block = columns(1, dict.fromkeys(range(1, updates + 1), "applied"), rank % 2)
        block["valid_targets"] = [20 + (7 * number + rank) % 11 for number in range(updates)]
        block["loss_sum"] = [(2 + 2 / (1 + number)) * count for number, count in enumerate(block["valid_targets"])]
        block["reported_loss"] = [2 + 2 / (1 + number) for number in range(updates)]
        server.call("POST", f"{run}/attempts/a1/events", batch(rank, updates=block))
    server.call("POST", f"{run}/attempts/a1/events", batch(0, checkpoints=saved(updates + 1, "last", updates - 2)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    """A service with two runs that can be compared, and an empty one."""
    folder = tmp_path_factory.mktemp("compare")
    with LedgerServer(f"sqlite:///{folder / 'ledger.db'}", folder / "log") as started:
        play_run(started, BASE, 40, 2, optimizer="AdamW")
        play_run(started, WIDE, 24, 4, optimizer=HOSTILE)
        started.call("PUT", "/v1/projects/pretraining/runs/empty", {})
        yield started


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """The browser."""
    with browser() as found:
        yield found


@pytest.fixture
def window(opened: Browser) -> Browser:
    """The browser as it is for most people."""
    opened.size(1280)
    opened.scheme("light")
    opened.complaints()
    return opened


def assert_shows(window: Browser, words: str) -> None:
    """The page that a click leads to says that, soon."""
    deadline = time.monotonic() + 10
    while words not in window.text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert words in window.text()


def table(window: Browser, selector: str) -> list[list[str]]:
    """The body of a table."""
    script = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(r => [...r.cells].map(c => c.textContent.trim()))"
    found: list[list[str]] = window.run(script, selector)
    return found


def test_runs_are_chosen_by_click(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare")
    for name in ("pretraining/base", "pretraining/wide"):
        window.driver.find_element("css selector", f"input[value='{name}']").click()
    window.driver.find_element("css selector", "input[value='valid_targets']").click()
    window.driver.find_element("css selector", "button[type=submit]").click()
    assert_shows(window, "Losses at equal valid targets")
    assert window.run("return [...document.querySelectorAll('.compared div > a')].map(a => a.textContent)") == [
        "pretraining/base", "pretraining/wide",
    ]  # fmt: skip
    assert window.complaints() == []


def test_runs_are_chosen_by_keyboard(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?run=pretraining/base")
    assert "One run is chosen; a comparison needs another." in window.text()
    window.driver.find_element("css selector", "input[value='pretraining/wide']").send_keys(Keys.SPACE)
    window.driver.find_element("css selector", "button[type=submit]").send_keys(Keys.ENTER)
    assert_shows(window, "Losses at equal applied updates")


def test_what_differs_stands_first_and_as_text(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?{BOTH}")
    assert window.run("return document.querySelector('h2').textContent") == "What differs"
    rows = {row[0].removesuffix("convention").removesuffix("topology"): row[1:] for row in table(window, "section:first-of-type")}
    assert rows["optimizer"] == ["AdamW", HOSTILE]
    assert rows["data parallel ranks"] == ["2", "4"]
    assert window.run("return document.images.length") == 0
    assert window.complaints() == []


@pytest.mark.parametrize("at", ["applied_updates", "valid_targets", "consumed_tokens"])
def test_curves_and_their_numbers_are_those_of_the_api(server: LedgerServer, window: Browser, at: str) -> None:
    window.open(f"{server.url}/compare?{BOTH}&at={at}")
    found = server.call("GET", f"/v1/compare?{BOTH}&at={at}&points=120")["curves"]
    window.run("document.querySelector('details').open = true")
    rows = table(window, "#curve-rows")
    assert [int(row[0].replace(",", "")) for row in rows] == found["places"]
    for place, row in enumerate(rows):
        right = [run[loss][place] for run in found["runs"] for loss in ("token_mean", "reported_loss")]
        assert [None if cell == "none" else float(cell) for cell in row[1:]] == right
    dots = window.run("return [...document.querySelectorAll('.run-curves:first-of-type .run-dot.run-0')].length")
    assert dots >= sum(value is not None for value in found["runs"][0]["token_mean"])
    words = window.run("return document.querySelector('.run-curves').getAttribute('aria-label')")
    assert f"pretraining/base: {found['runs'][0]['token_mean'][-1]!r} nats" in words


def test_exposure_and_rates_are_those_of_the_reports(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?{BOTH}")
    reports = [server.call("GET", f"{run}/exposure") for run in (BASE, WIDE)]
    heading_of = "t => t.closest('.wide').previousElementSibling.innerText"
    headings = window.run(f"return [...document.querySelectorAll('.exposure')].map({heading_of})")
    assert headings[:3] == ["input slots [slots]", "consumed tokens [tokens]", "valid targets [targets]"]
    cells_of = "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    shown = window.run(f"return [...document.querySelectorAll('.exposure')].map({cells_of})")
    for heading, rows in zip(headings, shown, strict=True):
        quantity = heading.split(" [")[0].replace(" ", "_")
        for term, *cells in rows:
            if term != "recomputed":
                assert cells == [f"{report['balance'][quantity][term.replace(' ', '_')]:,}" for report in reports]
    text = window.text()
    for run in (BASE, WIDE):
        assert server.call("GET", f"{run}/rates?work=preserved&time=wall")["statement"] in text
        assert server.call("GET", f"{run}/record")["digest"] in text


def test_it_says_plainly_what_it_does_not_show(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?{BOTH}")
    said = window.text()
    assert "Equal token counts are not equal gradients" in said
    assert "implies no universal learning-rate rule" in said
    assert "What is not declared is not known to be equal." in said


def test_the_axis_is_changed_by_a_link(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?{BOTH}")
    window.driver.find_element("link text", "consumed tokens").click()
    assert_shows(window, "Losses at equal consumed tokens")
    assert window.run("return document.querySelector('[aria-current=true]').innerText") == "consumed tokens"


def test_links_lead_to_the_call_behind_it(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?{BOTH}&at=valid_targets")
    href = window.run("return [...document.querySelectorAll('a')].find(a => a.textContent === 'as JSON').getAttribute('href')")
    assert [run["run"] for run in server.call("GET", href)["runs"]] == ["base", "wide"]


def test_an_empty_run_has_no_curve(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?run=pretraining/base&run=pretraining/empty")
    assert "There is no common stretch to draw" in window.text()
    assert "unknown" in window.text()
    assert "NaN" not in window.text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_its_window(server: LedgerServer, window: Browser, width: int, scheme: str) -> None:
    window.size(width)
    window.scheme(scheme)
    for path in (f"/compare?{BOTH}", "/compare", "/compare?run=pretraining/base&run=pretraining/empty"):
        window.open(server.url + path)
        found = "return [document.documentElement.scrollWidth, document.body.getBoundingClientRect().width]"
        assert window.run(found) == [width, width], path
    assert window.complaints() == []


def test_what_cannot_be_compared_is_a_page(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        assert "there is nothing to compare yet" in client.get("/compare").text
        for query, status in (("run=a/b&run=c/d", 404), ("run=nothing", 404), ("at=x", 404), ("run=a/b&run=", 200), ("run=&run=", 200)):
            answer = client.get(f"/compare?{query}")
            assert answer.status_code == status, query
            assert answer.headers["content-type"].startswith("text/html")
        many = "&".join(f"run=a/r{number}" for number in range(9))
        assert "9 runs are more than fit side by side." in client.get(f"/compare?{many}").text


def test_the_page_carries_no_script_of_its_own(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/compare?{BOTH}")
    assert json.loads(window.run("return JSON.stringify([...document.scripts].map(s => s.src))")) == []
