"""The pages in a real browser: exact figures with units, nothing unknown as zero, hostile names as text, wide and narrow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, browser
from server import LedgerServer
from service import running
from worked_example import RUN, attempt, batch, columns, saved

HOSTILE = '<img src=x onerror=console.error("run")>&amp;"\'</table>'
HELD = "/v1/projects/pretraining/runs/held"
LONGEST = "x" * 128
PAGES = ("/", "/runs/default/demo", "/runs/pretraining/held", f"/runs/{LONGEST}/{LONGEST}", "/runs/default/none", "/docs")


def play_worked_example(server: LedgerServer) -> None:
    """The worked example."""
    server.call("PUT", RUN, {"conventions": {"objective": "token_mean", "gradient_reducer": "mean"}})
    for name, day, source, updates in (
        ("a1", 1, None, dict.fromkeys(range(1, 8), "applied") | {6: "skipped"}),
        ("a2", 2, "c4", dict.fromkeys((5, 6, 7), "applied")),
    ):
        server.call("PUT", f"{RUN}/attempts/{name}", attempt(day, source))
        for rank in (0, 1):
            server.call("POST", f"{RUN}/attempts/{name}/events", batch(rank, updates=columns(1, updates, rank)))
        last = 4 if source is None else 7
        server.call("POST", f"{RUN}/attempts/{name}/events", batch(0, checkpoints=saved(20, f"c{last}", last)))
        server.call("PATCH", f"{RUN}/attempts/{name}", {"ended": "completed" if source else "crashed"})


def play_unknown(server: LedgerServer) -> None:
    """A run whose second rank lacks a count and contradicts an outcome; all its free text is hostile."""
    server.call("PUT", HELD, {"conventions": {"objective": HOSTILE}})
    server.call("PUT", f"{HELD}/attempts/a1", attempt(1, None))
    for rank in (0, 1):
        block = columns(1, dict.fromkeys((1, 2, 3), "applied"), rank)
        block["ranges"] = [[[HOSTILE, 0, 2 * rank, 2 * rank + 2]], None, None]
        if rank:
            block |= {"valid_targets": [16, 16, None], "outcome": ["skipped", "applied", "applied"], "reason": ["overflow", None, None]}
        server.call("POST", f"{HELD}/attempts/a1/events", batch(rank, updates=block))
    server.call("POST", f"{HELD}/attempts/a1/events", batch(0, checkpoints=saved(20, HOSTILE, 2)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    """A service with a run that adds up, one that does not, and one of the longest names."""
    folder = tmp_path_factory.mktemp("web")
    with LedgerServer(f"sqlite:///{folder / 'ledger.db'}", folder / "log") as running_server:
        play_worked_example(running_server)
        play_unknown(running_server)
        running_server.call("PUT", f"/v1/projects/{LONGEST}/runs/{LONGEST}", {})
        yield running_server


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """The browser."""
    with browser() as opened:
        yield opened


def rows(window: Browser, section: str) -> dict[str, list[str]]:
    """The rows of the first table under a heading, by their first cell's first line."""
    found: list[list[str]] = window.run(
        "return [...document.getElementById(arguments[0]).closest('section').querySelector('table').rows]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))",
        section,
    )
    return {cells[0].splitlines()[0]: cells[1:] for cells in found if cells[0]}


def test_the_page_of_a_run_has_its_balance_with_units(server: LedgerServer, window: Browser) -> None:
    window.size(1280)
    window.open(f"{server.url}/runs/default/demo")
    found = rows(window, "balance")
    assert [found[term] for term in ("preserved", "pending", "lost to restart", "skipped", "dropped")] == [
        ["252", "70.0 %"], ["0", "0.0 %"], ["72", "20.0 %"], ["36", "10.0 %"], ["0", "0.0 %"],
    ]  # fmt: skip
    assert found["attempted"][0] == "360"
    text = window.text()
    assert "360 targets attempted = 252 preserved + 0 pending + 72 lost to restart + 36 skipped + 0 dropped" in text
    assert "in targets" in text
    assert "overflow 36" in text
    assert "108" in text
    assert "10 updates were attempted: 9 applied, 1 skipped." in text
    assert rows(window, "checkpoints")["c7"][:2] == ["a2", "7"]


@pytest.mark.parametrize(
    ("quantity", "equation"),
    [
        ("input_slots", "640 slots attempted = 448 preserved + 0 pending + 128 lost to restart + 64 skipped + 0 dropped"),
        ("updates", "10 updates attempted = 7 preserved + 0 pending + 2 lost to restart + 1 skipped + 0 dropped"),
    ],
)
def test_every_quantity_has_its_own_balance(server: LedgerServer, window: Browser, quantity: str, equation: str) -> None:
    window.open(f"{server.url}/runs/default/demo?quantity={quantity}")
    assert equation in window.text()


def test_the_list_has_every_run_with_its_figures(server: LedgerServer, window: Browser) -> None:
    window.size(1280)
    window.open(server.url + "/")
    found: dict[str, list[str]] = {
        cells[0]: cells[1:]
        for cells in window.run("return [...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))")
    }
    assert found["default/demo"][0] == "360"
    assert found["default/demo"][2] == "70.0 %"
    assert found["pretraining/held"][0] == "unknown (at least 92)"
    assert "%" not in found["pretraining/held"][2]
    assert "valid targets attempted" in window.text()


def test_what_is_unknown_is_a_lower_bound_and_never_zero(server: LedgerServer, window: Browser) -> None:
    window.open(f"{server.url}/runs/pretraining/held")
    text = window.text()
    assert rows(window, "balance")["attempted"][0] == "unknown (at least 92)"
    assert "How many targets were attempted is unknown; what is known adds up to 92, a lower bound." in text
    assert "Figures after “at least” are lower bounds" in text
    assert "outcome conflict" in text
    assert "missing count" in text


def test_hostile_names_are_text(server: LedgerServer, window: Browser) -> None:
    window.complaints()
    window.open(f"{server.url}/runs/pretraining/held")
    assert HOSTILE in window.text()
    assert window.run("return document.images.length + document.scripts.length") == 0
    assert window.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window_or_complains(server: LedgerServer, window: Browser, width: int, scheme: str) -> None:
    window.size(width)
    window.scheme(scheme)
    window.complaints()
    for path in PAGES:
        window.open(server.url + path)
        if path != "/docs":
            found = "return [document.documentElement.scrollWidth, document.body.getBoundingClientRect().width]"
            assert window.run(found) == [width, width], path
        expected = ["404"] if path.endswith("/none") else []
        assert ["404" for message in window.complaints() if "404" in message] == expected, path


def test_the_documentation_needs_no_other_host(server: LedgerServer, window: Browser) -> None:
    window.complaints()
    window.open(server.url + "/docs")
    drawn = "const wait = () => document.querySelector('.opblock') ? done(true) : setTimeout(wait, 50); wait();"
    assert window.run(f"return new Promise(done => {{ {drawn} }})")
    hosts = window.run("return [...new Set(performance.getEntriesByType('resource').map(entry => new URL(entry.name).host))]")
    assert hosts == [server.url.removeprefix("http://")]
    assert window.complaints() == []


def test_a_page_that_is_not_there_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for path in ("default/none", "a%00/b", "a/%3Cscript%3E", f"{'x' * 3000}/b", "default/none?quantity=x", "a/b?quantity=%3Cscript%3E"):
            answer = client.get(f"/runs/{path}")
            assert answer.status_code == 404, path
            assert answer.headers["content-type"].startswith("text/html")
            assert "script" not in answer.text


def test_pages_may_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        headers = client.get("/").headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "No run has been opened yet." in client.get("/").text
