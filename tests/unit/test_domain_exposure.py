"""Outcome x fate and the balance, on small books added up by hand."""

from typing import Any

import pytest

from ledger.domain.exposure import (
    BUCKETS,
    FATES,
    MATRIX_OUTCOMES,
    Early,
    Fates,
    Total,
    balance_of,
    bucket_of,
    exposure_of,
    matrix_of,
    quantity_total,
)
from ledger.domain.quantities import QUANTITIES
from ledger.domain.trajectory import Save, Segment

C4 = Save(1, "c4", 4, accepted=True)
C6 = Save(2, "c6", 6, accepted=True)
PATH = (Segment(1, 0, C4), Segment(2, 4, None))
"""Attempt 1 up to c4, then attempt 2, which is the head; attempt 3 lies off it."""


def total(attempt: int, first: int, outcome: str, targets: int | None, **more: Any) -> Total:
    """One update as a total; None is a count that is not known."""
    made = Total(attempt, first, outcome, more.pop("reason", None), more.pop("recomputed", False), updates=1, attempts=1, **more)
    if outcome in ("discarded", "open"):
        made.attempts = 0
    made.known["valid_targets"] = targets or 0
    made.unknown["valid_targets"] = int(targets is None)
    return made


@pytest.mark.parametrize(
    ("outcome", "fate", "bucket"),
    [
        ("applied", "preserved", "preserved"),
        ("applied", "pending", "pending"),
        ("applied", "lost", "lost_to_restart"),
        ("held", "pending", "pending"),
        ("held", "lost", "lost_to_restart"),
        ("open", "pending", "pending"),
        ("open", "lost", "lost_to_restart"),
        *(("skipped", fate, "skipped") for fate in FATES),
        *((outcome, fate, "dropped") for outcome in ("abandoned", "discarded") for fate in FATES),
    ],
)
def test_the_first_cause_wins(outcome: str, fate: str, bucket: str) -> None:
    assert bucket_of(outcome, fate) == bucket


@pytest.mark.parametrize(
    ("attempt", "number", "outcome", "fate"),
    [
        (1, 4, "applied", "preserved"),
        (1, 5, "applied", "lost"),
        (2, 5, "applied", "pending"),
        (3, 1, "applied", "lost"),
        (1, 4, "skipped", "preserved"),
        (1, 5, "skipped", "lost"),
        (1, 4, "held", "pending"),
        (1, 5, "held", "lost"),
        (2, 5, "open", "pending"),
        (1, 4, "open", "lost"),
        (3, 1, "open", "lost"),
    ],
)
def test_where_work_lies(attempt: int, number: int, outcome: str, fate: str) -> None:
    assert Fates(PATH, C4, ()).fate(attempt, number, outcome) == fate


def test_accepting_a_later_checkpoint_preserves_what_lies_at_or_before_it_on_the_whole_path() -> None:
    fates = Fates(PATH, C6, ())
    assert [fates.fate(*place, "applied") for place in ((1, 4), (2, 6), (2, 7), (1, 5))] == ["preserved", "preserved", "pending", "lost"]


def test_without_an_accepted_checkpoint_nothing_is_preserved() -> None:
    assert Fates(PATH, None, ()).fate(1, 1, "applied") == "pending"


def test_work_of_a_higher_number_that_came_before_the_save_is_covered() -> None:
    fates = Fates(PATH, C6, ())
    assert fates.fate(2, 7, "skipped", frozenset({C6.key})) == "preserved"
    assert fates.fate(1, 5, "skipped", frozenset({C4.key})) == "preserved"
    assert fates.fate(1, 5, "open", frozenset({C4.key})) == "lost"
    assert fates.fate(2, 7, "open", frozenset({C6.key})) == "pending"


def test_what_an_undecided_attempt_decided_is_held() -> None:
    fates = Fates(PATH, C4, (3,))
    assert [fates.outcome(3, outcome) for outcome in MATRIX_OUTCOMES] == ["held", "held", "held", "discarded", "held", "open"]
    assert fates.outcome(2, "applied") == "applied"


def example() -> list[Total]:
    """The worked example after the resume: attempt 1 did 1-7 with 6 skipped, attempt 2 redoes 5-7."""
    first = [total(1, number, "applied", 36) for number in (1, 2, 3, 4, 5, 7)]
    again = [total(2, number, "applied", 36, recomputed=True) for number in (5, 6, 7)]
    return [*first, total(1, 6, "skipped", 36, reason="overflow"), *again]


def test_the_worked_example() -> None:
    exposure = exposure_of(matrix_of(example(), [], Fates(PATH, Save(2, "c7", 7, accepted=True), ())))
    balance = exposure["balance"]["valid_targets"]
    assert {bucket: balance[bucket] for bucket in ("attempted", *BUCKETS)} == {
        "attempted": 360,
        "preserved": 252,
        "pending": 0,
        "lost_to_restart": 72,
        "skipped": 36,
        "dropped": 0,
    }
    assert balance["skipped_by_reason"] == {"overflow": 36}
    assert exposure["recomputed"]["valid_targets"] == 108
    wanted = {"attempted": 10, "applied": 9, "skipped": 1, "preserved": 7, "pending": 0, "lost_to_restart": 2, "recomputed": 3}
    assert {name: exposure["updates"][name] for name in wanted} == wanted
    assert exposure["matrix"]["valid_targets"]["skipped"] == {"preserved": 0, "pending": 0, "lost": 36}


def test_discards_and_open_groups_are_no_attempts_but_their_counts_are() -> None:
    books = [total(2, 5, "applied", 10), total(2, 6, "discarded", 3), total(2, 6, "open", 4), total(2, 6, "abandoned", 5)]
    exposure = exposure_of(matrix_of(books, [], Fates(PATH, None, ())))
    assert (exposure["updates"]["attempted"], exposure["updates"]["discarded_groups"]) == (2, 1)
    balance = exposure["balance"]["valid_targets"]
    assert [balance[bucket] for bucket in ("attempted", "pending", "dropped")] == [22, 14, 8]


def test_a_held_update_is_attempted_and_neither_applied_nor_skipped() -> None:
    updates = exposure_of(matrix_of([total(1, 3, "held", 10)], [], Fates(PATH, C4, ())))["updates"]
    assert {name: updates[name] for name in ("attempted", "applied", "skipped", "held", "preserved")} == {
        "attempted": 1,
        "applied": 0,
        "skipped": 0,
        "held": 1,
        "preserved": 0,
    }


def test_a_term_that_is_not_wholly_known_is_null_beside_what_is_known() -> None:
    balance = balance_of(matrix_of([total(1, 1, "applied", 10), total(2, 5, "applied", None)], [], Fates(PATH, C4, ())), "valid_targets")
    assert [balance[bucket] for bucket in ("attempted", "preserved", "pending", "lost_to_restart")] == [None, 10, None, 0]
    assert (balance["complete"], balance["updates_unknown"]) == (False, 1)
    assert [balance["known"][bucket] for bucket in ("attempted", "preserved", "pending")] == [10, 10, 0]


def test_an_early_group_moves_from_the_fate_of_its_number_to_its_own() -> None:
    skip = total(1, 5, "skipped", 7, reason="overflow")
    matrix = matrix_of([skip], [Early(C4.key, skip)], Fates(PATH, C4, ()))
    assert matrix.cell("skipped", "preserved", "valid_targets") == (7, 0)
    assert matrix.cell("skipped", "lost", "valid_targets") == (0, 0)


def test_sums_are_exact_beyond_64_bits() -> None:
    books = [total(2, number, "applied", 2**53) for number in range(5000)] + [total(2, 5001, "applied", 1)]
    assert quantity_total(books, "valid_targets") == 5000 * 2**53 + 1
    assert balance_of(matrix_of(books, [], Fates(PATH, None, ())), "valid_targets")["pending"] == 5000 * 2**53 + 1


def test_the_balance_is_the_whole_matrix_folded() -> None:
    books = [total(a, n, outcome, 2 ** (n + a)) for a in (1, 2, 3) for n in (1, 4, 5, 9) for outcome in MATRIX_OUTCOMES]
    exposure = exposure_of(matrix_of(books, [], Fates(PATH, C6, (3,))))
    for quantity in QUANTITIES:
        balance, cells = exposure["balance"][quantity], exposure["matrix"][quantity]
        assert balance["attempted"] == sum(balance[bucket] for bucket in BUCKETS)
        assert balance["attempted"] == sum(count for fates in cells.values() for count in fates.values())
