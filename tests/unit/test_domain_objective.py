"""Which mean the trainer's own loss is, and the scale that gives the gradient of the global token mean."""

import math

import pytest

from ledger.domain.conventions import data_unit, effective, loss_scale, loss_scale_rule, repeats_expected
from ledger.domain.objective import common, label, larger_gap, statement, verdict

MEANS = {"token_mean": 2.25, "mean_of_rank_means": 2.5, "mean_of_microbatch_means": 3.5}


@pytest.mark.parametrize(
    ("reported", "found"),
    [
        (2.25, ("token_mean", None)),
        (2.5, ("mean_of_rank_means", None)),
        (3.5, ("mean_of_microbatch_means", None)),
        (2.25 * 2, ("token_mean", 2.0)),
        (2.25 / 2, ("token_mean", 0.5)),
        (2.25 * 3, ("token_mean", 3.0)),
        (2.5 / 6, ("mean_of_rank_means", 1 / 6)),
        (99.0, ("none", None)),
        (None, (None, None)),
        (math.nan, (None, None)),
        (math.inf, (None, None)),
    ],
)
def test_a_reported_loss_is_one_of_the_means_or_off_by_r_or_by_the_accumulation(
    reported: float | None, found: tuple[str | None, float | None]
) -> None:
    assert verdict(reported, MEANS, 2, 3) == found


def test_float32_rounding_is_no_difference() -> None:
    assert verdict(2.25 * (1 + 5e-5), MEANS, 2, 3) == ("token_mean", None)
    assert verdict(2.25 * (1 + 5e-4), MEANS, 2, 3) == ("none", None)


def test_nothing_is_compared_where_no_mean_is_known() -> None:
    assert verdict(2.25, {"token_mean": None}, 2, 3) == (None, None)


def test_equal_means_name_the_token_mean() -> None:
    assert verdict(2.0, dict.fromkeys(MEANS, 2.0), 2, 1) == ("token_mean", None)


def test_the_verdict_that_most_updates_share() -> None:
    assert common({"token_mean": 2, "mean_of_rank_means*2.0": 5}) == ("mean_of_rank_means", 2.0)
    assert common({}) == (None, None)
    assert label("token_mean", 0.5) == "token_mean*0.5"
    assert label("token_mean", None) == "token_mean"
    assert label(None, None) is None


def test_the_statement_names_what_was_found() -> None:
    said = statement({"mean_of_rank_means": 6, "token_mean": 1}, "R/T")
    assert "6 of 7 updates" in said
    assert "mean of rank means" in said
    assert "R/T" in said
    assert "factor 2" in statement({"token_mean*2.0": 1}, "R/T")
    assert "none of the means" in statement({"none": 1}, "1/T")
    assert "No update" in statement({}, "1/T")


def test_the_larger_gap_between_the_means_stands_and_the_earlier_of_equals() -> None:
    near = {"update": 1, "token_mean": 2.0, "mean_of_rank_means": 2.5}
    far = {"update": 2, "token_mean": 3.0, "mean_of_rank_means": 2.0}
    assert larger_gap(near, far) == larger_gap(far, near) == far
    assert larger_gap(far, {**far, "update": 9}) == far
    assert larger_gap(None, near) == near


def test_the_loss_scale_is_r_over_t_under_a_mean_and_1_over_t_under_a_sum() -> None:
    assert loss_scale({}, 4, 36) == 4 / 36
    assert loss_scale({"gradient_reducer": "mean"}, 4, 36) == 4 / 36
    assert loss_scale({"gradient_reducer": "sum"}, 4, 36) == 1 / 36
    assert loss_scale_rule({"gradient_reducer": "sum"}) == "1/T"
    assert loss_scale_rule({}) == "R/T"


def test_no_targets_have_no_loss_scale() -> None:
    assert loss_scale({}, 4, 0) is None
    assert loss_scale({}, 4, None) is None


def test_an_attempts_conventions_lie_over_the_runs_key_by_key() -> None:
    run = {"objective": "token_mean", "data": {"unit": "id", "repeats_expected": True}, "precision": "bf16"}
    found = effective(run, {"precision": "fp8", "data": {"repeats_expected": False, "unit": None}, "optimizer": None})
    assert found == {"objective": "token_mean", "data": {"unit": "id", "repeats_expected": False}, "precision": "fp8"}
    assert (data_unit(found), repeats_expected(found)) == ("id", False)
    assert (data_unit({}), repeats_expected({})) == ("position", False)
