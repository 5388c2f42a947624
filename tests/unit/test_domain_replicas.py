"""Losses and durations of an update, counted once: means worked out by hand."""

import math
from typing import Any

from event_rows import events_of
from ledger.domain.columns import Floats
from ledger.domain.layout import layout_of
from ledger.domain.updates import Groups, fold_updates


def row(rank: int, valid: int | None, loss: float | str | None, **more: Any) -> dict[str, Any]:
    """One rank's row of update 1 with its sum of losses."""
    return {"rank": rank, "update": 1, "outcome": "applied", "valid_targets": valid, "loss_sum": loss, **more}


def fold(layout: dict[str, Any], *rows: dict[str, Any]) -> Groups:
    """The one update that rows make."""
    return fold_updates(events_of("updates", list(rows)), layout_of(layout))


def only(values: Floats) -> float | None:
    """The value of the one update, None where it has none."""
    assert len(values.values) == 1
    return float(values.values[0]) if values.present[0] else None


def test_the_token_mean_divides_all_losses_by_all_targets() -> None:
    # 60 + 30 over 30 + 10 targets; the ranks' own means are 2 and 3.
    groups = fold({"dp": 2}, row(0, 30, 60.0), row(1, 10, 30.0))
    assert only(groups.token_mean) == 2.25
    assert only(groups.mean_of_rank_means) == 2.5
    assert only(groups.loss) == 90.0


def test_zero_targets_have_no_mean() -> None:
    groups = fold({"dp": 2}, row(0, 0, 0.0), row(1, 0, 0.0))
    assert only(groups.token_mean) is None
    assert only(groups.mean_of_rank_means) is None


def test_a_data_parallel_rank_without_targets_has_no_part_in_the_mean_of_rank_means() -> None:
    groups = fold({"dp": 2}, row(0, 10, 20.0), row(1, 0, 0.0))
    assert only(groups.mean_of_rank_means) == 2.0


def test_context_parallel_slices_make_one_rank_mean() -> None:
    # Data-parallel rank 0 holds 10 + 20 targets with 10 + 50, rank 1 holds 10 + 0 with 40.
    slices = (row(0, 10, 10.0), row(1, 20, 50.0), row(2, 10, 40.0), row(3, 0, 0.0))
    groups = fold({"dp": 2, "cp": 2, "cp_counts": "shard", "order": "cp-dp-tp-pp"}, *slices)
    assert only(groups.mean_of_rank_means) == (60 / 30 + 40 / 10) / 2
    assert only(groups.token_mean) == 2.5


def test_of_replicas_the_lowest_rank_that_has_a_loss_speaks_and_floats_need_not_be_equal() -> None:
    groups = fold({"dp": 1, "tp": 3}, row(0, 10, None), row(1, 10, 20.0), row(2, 10, 20.5))
    assert only(groups.token_mean) == 2.0
    assert groups.disagreements == []


def test_a_loss_that_is_not_finite_is_counted_and_poisons_nothing() -> None:
    groups = fold({"dp": 3}, row(0, 10, "NaN"), row(1, 10, "Infinity"), row(2, 10, 5.0))
    assert groups.nonfinite_ranks.tolist() == [2]
    assert only(groups.token_mean) is None
    assert only(groups.loss) is None
    assert groups.known["valid_targets"].tolist() == [30]


def test_a_mean_needs_every_shard() -> None:
    assert only(fold({"dp": 2}, row(0, 10, 20.0), row(1, 10, None)).token_mean) is None
    assert only(fold({"dp": 2}, row(0, 10, 20.0), row(1, None, 20.0)).token_mean) is None


def test_the_mean_of_microbatch_means_weighs_microbatches_alike() -> None:
    # Three microbatches with means 1, 2 and 6, on two ranks.
    first = row(0, 10, 15.0, microbatch_mean_sum=3.0, microbatches_scored=2)
    second = row(1, 10, 60.0, microbatch_mean_sum=6.0, microbatches_scored=1)
    assert only(fold({"dp": 2}, first, second).mean_of_microbatch_means) == 3.0
    assert only(fold({"dp": 2}, first, row(1, 10, 60.0)).mean_of_microbatch_means) is None


def test_an_update_lasts_as_long_as_its_slowest_rank() -> None:
    groups = fold({"dp": 3}, row(0, 1, 1.0, seconds=0.5), row(1, 1, 1.0, seconds=0.75), row(2, 1, 1.0))
    assert only(groups.seconds) == 0.75
    assert only(fold({"dp": 1}, row(0, 1, 1.0)).seconds) is None


def test_an_update_began_with_its_first_rank() -> None:
    moments = ("2026-01-01T00:00:02Z", "2026-01-01T00:00:01Z")
    groups = fold({"dp": 2}, *(row(rank, 1, 1.0, started_at=moment) for rank, moment in enumerate(moments)))
    assert groups.started_at.tolist() == [1_767_225_601_000_000]


def test_the_reported_loss_is_that_of_the_lowest_rank_that_reports_one() -> None:
    groups = fold({"dp": 3}, row(0, 1, 1.0), row(1, 1, 1.0, reported_loss=3.0), row(2, 1, 1.0, reported_loss=4.0))
    assert only(groups.reported_loss) == 3.0
    reported = only(fold({"dp": 1}, row(0, 1, 1.0, reported_loss="NaN")).reported_loss)
    assert reported is not None
    assert math.isnan(reported)


def test_the_schedule_step_is_that_of_the_lowest_rank_that_says_it() -> None:
    groups = fold({"dp": 2}, row(0, 1, 1.0), row(1, 1, 1.0, schedule_step=7))
    assert groups.schedule_step.tolist() == [7]


def test_microbatches_are_added_over_data_parallel_ranks() -> None:
    rows = [row(rank, 1, 1.0, microbatches=4) for rank in range(4)]
    assert fold({"dp": 2, "tp": 2}, *rows).microbatches.tolist() == [8]


def test_of_two_processes_of_a_rank_the_first_by_name_speaks_whichever_arrived_first() -> None:
    early = row(0, 10, 20.0, writer="b", outcome="skipped", reason="overflow", reported_loss=2.0)
    late = row(0, 10, 30.0, writer="a", outcome="skipped", reason="nonfinite", reported_loss=3.0)
    for groups in (fold({"dp": 1}, early, late), fold({"dp": 1}, late, early)):
        assert (only(groups.token_mean), only(groups.reported_loss), groups.reason) == (3.0, 3.0, ["nonfinite"])
