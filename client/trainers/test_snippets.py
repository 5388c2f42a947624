"""What the page of the integrations shows is run as it stands, and the ledger has what it says."""

import re
from pathlib import Path

import pytest
from conftest import Books

PAGE = Path(__file__).resolve().parents[1] / "INTEGRATIONS.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
RUN = re.compile(r'"(tiny-[a-z]+)"')
NEEDS = {"tiny-composer": "torchvision", "tiny-torchtitan": "triton"}
"""What is not there for every Python or system; see the tests of these trainers."""


@pytest.mark.parametrize("snippet", [pytest.param(snippet, id=RUN.findall(snippet)[0]) for snippet in SNIPPETS])
def test_a_snippet_runs_and_its_work_is_preserved(snippet: str, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUN.findall(snippet)[0]
    if run in NEEDS:
        pytest.importorskip(NEEDS[run])
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    report = books.ask(run, "exposure")
    targets = report["balance"]["valid_targets"]
    assert targets["preserved"] == targets["attempted"] > 0 and report["findings"] == {}
