"""No page breaks a rule that a program can check: names, roles, contrast, order, labels; wide and light, narrow and dark."""

from importlib.resources import files
from typing import Any

import pytest

from browser import Browser
from server import LedgerServer
from tests.web.runs import LONGEST

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
LONG = "/runs/pretraining/long"
PAGES = (
    "/", "/?project=none", LONG, "/runs/pretraining/held", f"/runs/{LONGEST}/{LONGEST}", f"{LONG}/trajectory?newest=3",
    f"{LONG}/updates?first=200&last=230", f"{LONG}/coverage", f"{LONG}/rates", f"{LONG}/rates?time=wall&time=idle", f"{LONG}/checkpoints",
    f"{LONG}/conventions", f"{LONG}/findings", "/runs/default/demo/checkpoints/c7", "/runs/default/none",
)  # fmt: skip
CHECK = (
    "const done = arguments[0];"
    "axe.run().then(found => done(found.violations.map(rule => [rule.id, rule.nodes[0].html, rule.nodes[0].failureSummary])))"
)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_page_breaks_a_rule(server: LedgerServer, window: Browser, width: int, scheme: str) -> None:
    window.size(width)
    window.scheme(scheme)
    found: dict[str, Any] = {}
    for path in PAGES:
        window.open(server.url + path)
        window.run("document.querySelectorAll('details').forEach(item => item.open = true)")
        window.run(AXE)
        found[path] = window.driver.execute_async_script(CHECK)
    assert {path: broken for path, broken in found.items() if broken} == {}
