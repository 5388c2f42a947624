"""The pages in a real browser: exact figures with units, nothing unknown as zero, hostile names as text, wide and narrow."""

import html
import re
from pathlib import Path

import pytest

from browser import Browser
from server import LedgerServer
from service import running
from tests.web.runs import HOSTILE, LONGEST, rows
from worked_example import batch

RUNS = ("default/demo", "pretraining/held", "pretraining/long", f"{LONGEST}/{LONGEST}")
PARTS = ("", "/trajectory", "/updates", "/coverage", "/rates", "/checkpoints", "/conventions", "/findings")
PAGES = ("/", *(f"/runs/{run}{part}" for run in RUNS for part in PARTS), "/runs/default/demo/checkpoints/c4", "/runs/default/none", "/docs")


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
    tiles = window.run("return [...document.querySelectorAll('.tiles dd:first-of-type')].map(item => item.innerText)")
    assert tiles[:4] == ["7", "7", "0", "2"]


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
    window.open(server.url + "/")
    found: dict[str, list[str]] = {
        cells[0]: cells[1:]
        for cells in window.run("return [...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))")
    }
    assert found["default/demo"][:3] == ["completed", "a2\nupdate 7", "update 7\n70.0 %"]
    assert found["default/demo"][4:6] == ["0", "0"]
    assert found["pretraining/held"][0] == "running"
    assert found["pretraining/held"][2] == "update 2\nshare unknown"
    assert found["pretraining/held"][4] == "1 + 1 held"
    assert found["pretraining/long"][0] == "stalled"
    assert found[f"{LONGEST}/{LONGEST}"][0] == "no attempt yet"
    long = server.call("GET", "/v1/projects/pretraining/runs/long/exposure")
    assert found["pretraining/long"][5] == str(sum(long["findings"].values()))


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
    assert window.run("return document.images.length") == 0
    assert window.run("return [...document.scripts].every(script => new URL(script.src).origin === location.origin)")
    assert window.complaints() == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
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


def test_pages_are_compressed_for_browsers_that_take_it(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        packed = client.get("/", headers={"Accept-Encoding": "gzip"})
        plain = client.get("/", headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.text.split("read ")[0] == plain.text.split("read ")[0]
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
        assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"


def test_places_in_addresses_are_only_those_that_were_given_out(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put("/v1/projects/a/runs/b", json={})
        for query in (
            "findings?cursor=[9]", "findings?cursor=[0, 1] or 1", "findings?cursor=[9, 1]", 'findings?cursor=[3, ["x"]]',
            "findings?kind=other", "coverage?cursor=[1]", "updates?first=-1", "updates?last=1e9", "checkpoints?page=0",
            "trajectory?newest=0", "rates?work=none", "checkpoints/none", "?quantity=none",
        ):  # fmt: skip
            assert client.get(f"/runs/a/b/{query}" if query[0] != "?" else f"/runs/a/b{query}").status_code == 404, query
        assert client.get("/?sort=size").status_code == 404
        assert client.get("/?page=2").status_code == 200
        assert client.get("/runs/a/b/rates?time=none").status_code == 422


def test_lists_go_on_where_the_page_before_ended(tmp_path: Path) -> None:
    streams = [f"{place:02}{HOSTILE}\\" for place in range(25)]
    with running(tmp_path) as client:
        client.put("/v1/projects/a/runs/b", json={})
        client.put("/v1/projects/a/runs/b/attempts/a1", json={})
        numbers = list(range(1, 121))
        block = {"seq": numbers, "update": numbers, "outcome": ["applied"] * 120, "input_slots": [4] * 120, "valid_targets": [9] * 120}
        block |= {"ranges": [[[stream, 0, 0, 1] for stream in streams], *([None] * 119)]}
        client.post("/v1/projects/a/runs/b/attempts/a1/events", json=batch(0, updates=block)).raise_for_status()
        for part, wanted in (("coverage", 25), ("findings?kind=valid_exceeds_slots", 120)):
            seen, address = 0, f"/runs/a/b/{part}"
            while address:
                page = client.get(address).text
                seen += page.count('class="lanes"') + page.count("<li><h3>")
                more = re.search(r'<a href="([^"]+)" rel="next"', page)
                address = html.unescape(more[1]) if more else ""
            assert seen == wanted, part
