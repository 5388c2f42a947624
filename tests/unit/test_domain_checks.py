"""What a single event may not say: it is refused by name, at most once, and the others stay."""

from typing import Any

import pytest

from event_rows import events_of
from ledger.domain.checks import LONGEST_TEXT, refusals
from ledger.domain.layout import layout_of

PASS = {"update": 1, "stream": "train", "epoch": 0, "start": 4, "stop": 8}


@pytest.mark.parametrize(
    ("kind", "row", "code"),
    [
        ("updates", {"rank": 2, "update": 1}, "rank_out_of_layout"),
        ("updates", {"update": 1, "ranges": [["train", 0, 4, 3]]}, "invalid_range"),
        ("discards", {"update": 1, "ranges": [["train", 0, 4, 3]]}, "invalid_range"),
        ("updates", {"update": 1, "ranges": [["tr\nain", 0, 3, 4]]}, "invalid_text"),
        ("updates", {"update": 1, "participants": [0, 5]}, "unknown_shard"),
        ("updates", {"update": 1, "participants": []}, "unknown_shard"),
        ("checkpoints", {"checkpoint": "c4", "state": "started", "update": None}, "update_missing"),
        ("checkpoints", {"checkpoint": "c" * (LONGEST_TEXT + 1), "state": "accepted"}, "invalid_text"),
        ("passes", {**PASS, "stop": 3}, "invalid_range"),
        ("gaps", {"first": 5, "last": 4}, "invalid_range"),
        ("idles", {"label": "a\x00b", "seconds": 1.0}, "invalid_text"),
    ],
)
def test_the_bad_event_is_named_and_no_other(kind: str, row: dict[str, Any], code: str) -> None:
    good = {"updates": {"update": 1}, "discards": {"update": 1}, "checkpoints": {"checkpoint": "c", "state": "accepted"}}
    good |= {"passes": PASS, "gaps": {"first": 4, "last": 4}, "idles": {"label": "x", "seconds": 1.0}}
    found = refusals(events_of(kind, [good[kind], row, good[kind]]), layout_of({"dp": 2}))
    assert [(place, said) for place, said, _ in found] == [(1, code)]


def test_an_event_that_is_wrong_twice_is_refused_once() -> None:
    row = {"rank": 9, "update": 1, "participants": [7], "ranges": [["train", 0, 4, 3]]}
    assert len(refusals(events_of("updates", [row]), layout_of({"dp": 2}))) == 1


def test_empty_ranges_and_passes_are_fine() -> None:
    assert refusals(events_of("passes", [{**PASS, "stop": 4}]), layout_of({})) == []
    assert refusals(events_of("updates", [{"update": 1, "ranges": [["train", 0, 4, 4]]}]), layout_of({})) == []
