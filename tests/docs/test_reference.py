"""The reference pages say what the code does: each is made from it, and fails here when it is older."""

import re
from pathlib import Path

import pytest

from ledger.api.problems import BY_STATUS, STATUS
from ledger.config import Settings
from ledger.metrics.catalogue import PROCESS_FAMILIES, RUN_FAMILIES
from tests.docs.reference import DOCS, PAGES, page

LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_as_the_code_has_it(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == page(name), "run `python -m tests.docs.reference --write`"


def test_nothing_is_left_out() -> None:
    assert [code for code in [*STATUS, *BY_STATUS.values()] if code != "refused" and f"`{code}`" not in page("problems.md")] == []
    assert [family.name for family in (*RUN_FAMILIES, *PROCESS_FAMILIES.values()) if family.full_name not in page("metrics.md")] == []
    assert [name for name in Settings.model_fields if f"`LEDGER_{name.upper()}`" not in page("settings.md")] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_table_is_a_table(name: str) -> None:
    widths: set[int] = set()
    for line in [*page(name).splitlines(), ""]:
        if not line.startswith("|"):
            assert len(widths) <= 1
            widths = set()
        else:
            widths.add(len(re.findall(r"(?<!\\)\|", line)))


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target, _ in LINK.findall(page(name)):
        assert (DOCS / Path(target)).exists()
