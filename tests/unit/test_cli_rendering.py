"""Reports in words: nothing unknown looks like zero, and every term has its line."""

import copy
import io
from typing import Any

from rich.console import Console

from ledger.api.schemas.answers import Exposure
from ledger.cli.rendering import as_markdown, document_of, print_text

EXAMPLE: dict[str, Any] = Exposure.model_json_schema()["examples"][0]


def with_unknown() -> dict[str, Any]:
    """The example with a quantity that two updates lack."""
    exposure = copy.deepcopy(EXAMPLE)
    terms = ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")
    entry = {"unit": "tokens", **dict.fromkeys(terms), "complete": False, "updates_unknown": 2}
    entry["known"] = {"attempted": 40, "preserved": 40, "pending": 0, "lost_to_restart": 0, "skipped": 0, "dropped": 0}
    exposure["balance"]["consumed_tokens"] = entry
    return exposure


def text_of(exposure: dict[str, Any], findings: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    print_text(document_of(exposure, findings), Console(file=out, width=120))
    return out.getvalue()


def test_the_balance_has_one_line_a_term_with_its_share() -> None:
    text = text_of(EXAMPLE, [])
    for words in ("attempted", "preserved", "pending", "lost to restart", "skipped", "of it overflow", "dropped"):
        assert words in text
    assert "70.0 %" in text
    assert "valid targets [targets]" in text


def test_the_trajectory_is_a_sentence() -> None:
    assert "The trajectory is a1 (up to update 4), then a2 (updates 5 to 7); the head is a2." in text_of(EXAMPLE, [])


def test_an_empty_run_reads_well() -> None:
    empty = copy.deepcopy(EXAMPLE) | {"trajectory": [], "accepted_checkpoint": None}
    text = text_of(empty, [])
    assert "Nothing lies on the trajectory yet." in text
    assert "nothing is preserved yet" in text


def test_what_is_unknown_is_never_zero() -> None:
    markdown = as_markdown(document_of(with_unknown(), []))
    assert "| attempted | 100.0 % | 360 | ≥\xa040 |" in markdown
    assert "2 groups of work do not tell their consumed tokens: a figure after ≥ is a lower bound, its true value is unknown." in markdown


def test_markdown_tables_keep_their_form_whatever_a_finding_says() -> None:
    finding = {"kind": "replica_mismatch", "attempt": "a1", "update": 3, "rank": 1, "message": "7 | 6\nlines"}
    line = next(line for line in as_markdown(document_of(EXAMPLE, [finding])).splitlines() if "replica_mismatch" in line and "|" in line)
    assert line == "| replica_mismatch | a1, update 3, rank 1 | 7 \\| 6 lines |"
