"""Which positions were seen how often: small streams, counted by hand."""

from typing import Any

import numpy as np

from ledger.domain.coverage import EFFECTIVE, HELD, PASSED, UNUSED, WITHOUT_EFFECT, Drawn, as_lists, coverage_of


def drawn(effect: str, *spans: tuple[int, int], stream: str = "train", epoch: int = 0) -> Drawn:
    """Ranges with one effect."""
    return Drawn(stream, epoch, effect, np.array([s for s, _ in spans], dtype=np.int64), np.array([s for _, s in spans], dtype=np.int64))


def cover(*parts: Drawn) -> dict[str, Any]:
    """The coverage of the one stream and epoch that is drawn from."""
    (item,) = coverage_of(parts)
    return as_lists(item, "position", 100)


def test_times_seen_are_a_histogram() -> None:
    seen = cover(drawn(EFFECTIVE, (0, 8), (4, 12)), drawn(EFFECTIVE, (6, 7)))
    assert seen["times_seen"] == {"1": 8, "2": 3, "3": 1}
    assert (seen["effective_total"], seen["effective_unique"]) == (17, 12)
    assert seen["repeated"] == [[4, 8]]


def test_the_same_range_twice_is_seen_twice() -> None:
    assert cover(drawn(EFFECTIVE, (0, 4), (0, 4)))["times_seen"] == {"2": 4}


def test_ranges_that_touch_are_no_repeat() -> None:
    assert cover(drawn(EFFECTIVE, (0, 4), (4, 8)))["repeated"] == []


def test_gaps_lie_below_the_highest_position_drawn() -> None:
    assert cover(drawn(EFFECTIVE, (2, 4), (6, 8)))["gaps"] == [[0, 2], [4, 6]]


def test_what_was_passed_over_is_no_gap_and_opens_none() -> None:
    seen = cover(drawn(EFFECTIVE, (0, 4), (8, 10)), drawn(PASSED, (4, 8), (20, 30)))
    assert seen["gaps"] == []
    assert seen["passed_over"] == [[4, 8], [20, 30]]


def test_what_had_no_effect_is_drawn_all_the_same() -> None:
    seen = cover(drawn(EFFECTIVE, (0, 2)), drawn(WITHOUT_EFFECT, (2, 4), (6, 8)))
    assert seen["without_effect"] == [[2, 4], [6, 8]]
    assert seen["gaps"] == [[4, 6]]
    assert seen["effective_total"] == 2


def test_what_was_applied_after_all_is_not_without_effect() -> None:
    seen = cover(drawn(WITHOUT_EFFECT, (0, 6)), drawn(EFFECTIVE, (2, 4)))
    assert seen["without_effect"] == [[0, 2], [4, 6]]
    assert seen["repeated"] == []


def test_what_is_held_is_in_no_set_and_no_gap() -> None:
    seen = cover(drawn(EFFECTIVE, (0, 2), (4, 6)), drawn(HELD, (2, 4)), drawn(WITHOUT_EFFECT, (3, 4)))
    assert (seen["effective_total"], seen["gaps"], seen["without_effect"]) == (4, [], [])


def test_what_is_held_opens_no_gap_below_it() -> None:
    assert cover(drawn(EFFECTIVE, (0, 2)), drawn(HELD, (6, 8)))["gaps"] == []


def test_streams_and_epochs_are_apart() -> None:
    parts = [drawn(EFFECTIVE, (0, 4)), drawn(EFFECTIVE, (0, 4), epoch=1), drawn(EFFECTIVE, (0, 4), stream="code")]
    found = coverage_of(parts)
    assert [(item.stream, item.epoch, item.times_seen) for item in found] == [
        ("code", 0, {1: 4}),
        ("train", 0, {1: 4}),
        ("train", 1, {1: 4}),
    ]


def test_the_cost_is_that_of_the_ranges_not_of_the_positions() -> None:
    seen = cover(drawn(EFFECTIVE, (0, 10**15), (10**15 - 5, 10**15)))
    assert seen["times_seen"] == {"1": 10**15 - 5, "2": 5}


def test_long_lists_are_cut_and_say_so() -> None:
    (item,) = coverage_of([drawn(EFFECTIVE, *((2 * n, 2 * n + 1) for n in range(1, 6)))])
    assert as_lists(item, "position", 3)["gaps"] == [[0, 2], [3, 4], [5, 6]]
    assert as_lists(item, "position", 3)["truncated"] is True
    assert as_lists(item, "position", 5)["truncated"] is False


def test_empty_ranges_draw_nothing() -> None:
    seen = cover(drawn(EFFECTIVE, (3, 3)))
    assert (seen["effective_total"], seen["gaps"]) == (0, [])


def test_what_was_never_used_is_without_effect_too() -> None:
    assert cover(drawn(WITHOUT_EFFECT, (0, 2)), drawn(UNUSED, (2, 4)))["without_effect"] == [[0, 4]]
