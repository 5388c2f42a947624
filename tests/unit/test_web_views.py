"""What the pages are drawn from: lines, levels and words, worked out from reports."""

from typing import Any

from ledger.web.drawing import axis_of, band, cells, evenly
from ledger.web.trajectory_view import trajectory_view
from ledger.web.wording import trajectory_sentence


def branch(name: str, first: int, last: int, through: int | None, source: tuple[str, int] | None) -> dict[str, Any]:
    """An attempt of the tree, with nothing skipped."""
    size = last - first + 1
    kept = 0 if through is None else min(through, last) - first + 1
    updates = {"attempted": size, "preserved": kept, "pending": 0, "lost_to_restart": size - kept, "skipped": 0, "dropped": 0}
    return {
        "attempt": name,
        "resumed_from": None if source is None else {"checkpoint": "c", "attempt": source[0], "update": source[1]},
        "first": first,
        "last": last,
        "through": through,
        "updates": updates,
        "recomputed": 0,
    }


def lines(tree: list[dict[str, Any]], accepted: dict[str, Any] | None, newest: int | None = None) -> dict[str, str]:
    """The lines of a picture by what became of the work."""
    view = trajectory_view({"attempts": tree}, {"checkpoints": []}, {"accepted_checkpoint": accepted}, newest)
    return {line["name"]: line["path"] for line in view["paths"]}


TREE = [branch("a", 1, 10, 6, None), branch("b", 7, 12, None, ("a", 6)), branch("c", 7, 14, 14, ("a", 6))]


def test_work_is_kept_up_to_the_accepted_checkpoint_and_at_risk_after_it() -> None:
    found = lines(TREE, {"attempt": "c", "update": 12})
    assert found["kept"].count("M") == 2
    assert found["risk"].count("M") == 1
    # The end of a, and all of b.
    assert found["gone"].count("M") == 2
    assert found["back"].count("M") == 2


def test_nothing_is_kept_without_an_accepted_checkpoint() -> None:
    assert {"risk", "gone", "back"} == set(lines(TREE, None))


def test_of_the_newest_attempts_none_is_kept_where_the_checkpoint_is_older() -> None:
    found = lines(TREE, {"attempt": "a", "update": 6}, newest=1)
    assert set(found) == {"risk"}
    assert set(lines(TREE, {"attempt": "a", "update": 6})) == {"kept", "risk", "gone", "back"}


def test_an_axis_holds_what_it_is_for() -> None:
    for low, high in ((0, 0), (-0.02, 0.001), (3, 1e9), (5, 5), (0.61, 1.0), (1e-9, 2e-9)):
        axis = axis_of(low, high)
        assert axis.low <= low <= high <= axis.high
        assert 2 <= len(axis.ticks) <= 6
        assert (axis.ticks[0], axis.ticks[-1]) == (round(axis.low, 12), round(axis.high, 12))
    assert evenly(1, 10**9).ticks[-1] == 10**9


def test_no_range_is_too_short_to_be_seen() -> None:
    assert cells([(10**12 - 1, 10**12)], 10**12) == "M499 0h1v10h-1z"
    assert cells([], 5) == ""
    assert band([(0, 1, 5, 3)]) == "M0 3H1V5H0Z"


def test_a_long_trajectory_is_not_recited() -> None:
    stretches = [{"attempt": f"a{n}", "after": n, "through": n + 1} for n in range(30)]
    exposure = {"trajectory": stretches, "updates": {"attempted": 30}, "as_of": {"head": "a29"}}
    words = trajectory_sentence(exposure)
    assert "26 more attempts, then a29 (update 30); the head is a29." in words
    assert "a5 " not in words
