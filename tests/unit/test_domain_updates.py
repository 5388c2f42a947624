"""From ranks to an update: each rule of the accounting with values worked out by hand."""

from dataclasses import dataclass
from typing import Any

import pytest

from event_rows import events_of
from ledger.domain.layout import layout_of
from ledger.domain.updates import (
    OUTCOME_NAMES,
    PART_OUTSIDE,
    PART_UPDATE,
    Groups,
    Resolution,
    fold_discards,
    fold_evaluations,
    fold_updates,
)

ONE = {"dp": 1}
PAIR = {"dp": 2}
REPLICAS = {"dp": 1, "tp": 2}
LARGEST_COUNT = 2**53


@dataclass(frozen=True)
class Seen:
    """What a test looks at in a group."""

    outcome: str
    valid: int
    lacking: int
    shards: tuple[int, int]
    reason: str | None = None


def row(rank: int, valid: int | None, outcome: str | None = "applied", **more: Any) -> dict[str, Any]:
    """One rank's row of update 1."""
    return {"rank": rank, "update": 1, "outcome": outcome, "valid_targets": valid, **more}


def look(groups: Groups) -> list[Seen]:
    """The groups, one after another."""
    return [
        Seen(
            OUTCOME_NAMES[int(groups.outcome[place])],
            int(groups.known["valid_targets"][place]),
            int(groups.unknown["valid_targets"][place]),
            (int(groups.shards_reported[place]), int(groups.shards_expected[place])),
            groups.reason[place],
        )
        for place in range(len(groups))
    ]


def fold(layout: dict[str, Any], *rows: dict[str, Any], resolutions: tuple[Resolution, ...] = ()) -> list[Seen]:
    """The updates that rows make under a layout."""
    return look(fold_updates(events_of("updates", list(rows)), layout_of(layout), resolutions))


def disagreements(layout: dict[str, Any], *rows: dict[str, Any], resolutions: tuple[Resolution, ...] = ()) -> list[tuple[Any, ...]]:
    """What contradicts itself in rows: (kind, quantity, rank, expected, found, whether it is open)."""
    found = fold_updates(events_of("updates", list(rows)), layout_of(layout), resolutions).disagreements
    return [(item.kind, item.quantity, item.rank, item.expected, item.found, item.open) for item in found]


def test_shards_are_added() -> None:
    assert fold(PAIR, row(0, 20), row(1, 16)) == [Seen("applied", 36, 0, (2, 2))]


def test_replicas_of_a_shard_count_once() -> None:
    assert fold(REPLICAS, row(0, 20), row(1, 20)) == [Seen("applied", 20, 0, (1, 1))]


def test_context_parallel_ranks_are_shards_where_each_counts_its_slice_and_replicas_where_each_counts_the_whole() -> None:
    rows = (row(0, 20), row(1, 20))
    assert fold({"dp": 1, "cp": 2, "cp_counts": "shard"}, *rows) == [Seen("applied", 40, 0, (2, 2))]
    assert fold({"dp": 1, "cp": 2, "cp_counts": "whole"}, *rows) == [Seen("applied", 20, 0, (1, 1))]


def test_a_rank_that_cannot_know_leaves_it_to_its_replica() -> None:
    assert fold(REPLICAS, row(0, None), row(1, 20)) == [Seen("applied", 20, 0, (1, 1))]
    assert disagreements(REPLICAS, row(0, None), row(1, 20)) == []


def test_unknown_is_never_zero() -> None:
    assert fold(PAIR, row(0, 20), row(1, None)) == [Seen("applied", 20, 1, (2, 2))]
    assert fold(PAIR, row(0, 20), row(1, 0)) == [Seen("applied", 20, 0, (2, 2))]


def test_a_quantity_unknown_leaves_the_others_alone() -> None:
    groups = fold_updates(events_of("updates", [row(0, None, input_slots=32)]), layout_of(ONE))
    assert (groups.known["input_slots"].tolist(), groups.unknown["input_slots"].tolist()) == ([32], [0])
    assert look(groups) == [Seen("applied", 0, 1, (1, 1))]


def test_contradicting_replicas_are_held_and_the_largest_stands() -> None:
    assert fold(REPLICAS, row(0, 6), row(1, 7)) == [Seen("held", 7, 0, (1, 1))]
    assert disagreements(REPLICAS, row(0, 6), row(1, 7)) == [("replica_mismatch", "valid_targets", 0, 7, 6, True)]


@pytest.mark.parametrize("quantity", ["input_slots", "consumed_tokens", "valid_targets", "samples"])
def test_every_quantity_of_replicas_must_be_equal(quantity: str) -> None:
    rows = [{**row(rank, None), quantity: 5 + rank} for rank in (0, 1)]
    assert [item[:2] for item in disagreements(REPLICAS, *rows)] == [("replica_mismatch", quantity)]


def test_ranges_of_replicas_must_be_equal_but_may_be_cut_and_ordered_as_they_like() -> None:
    first = row(0, 4, ranges=[["train", 0, 0, 2], ["train", 0, 6, 8]])
    assert [item[:2] for item in disagreements(REPLICAS, first, row(1, 4, ranges=[["train", 0, 0, 2], ["train", 0, 7, 9]]))] == [
        ("replica_mismatch", "ranges")
    ]
    assert disagreements(REPLICAS, first, row(1, 4, ranges=[["train", 0, 6, 8], ["train", 0, 0, 2]])) == []


def test_several_closing_rows_of_one_rank_are_replicas() -> None:
    twice = (row(0, 20), row(0, 20, writer="w1"))
    assert fold(ONE, *twice) == [Seen("applied", 20, 0, (1, 1))]
    assert fold(ONE, row(0, 20), row(0, 21, writer="w1")) == [Seen("held", 21, 0, (1, 1))]


def test_an_update_whose_shards_have_not_all_reported_is_held_without_a_finding_and_completes_by_itself() -> None:
    assert fold(PAIR, row(0, 20)) == [Seen("held", 20, 1, (1, 2))]
    assert disagreements(PAIR, row(0, 20)) == []
    assert fold(PAIR, row(0, 20), row(1, 16)) == [Seen("applied", 36, 0, (2, 2))]


def test_ranks_that_disagree_on_the_outcome_are_held() -> None:
    rows = (row(0, 20), row(1, 16, "skipped", reason="overflow"))
    assert fold(PAIR, *rows) == [Seen("held", 36, 0, (2, 2))]
    assert disagreements(PAIR, *rows) == [("outcome_conflict", "outcome", 1, "applied", "skipped", True)]


def test_a_rank_that_does_not_know_the_outcome_follows_the_others() -> None:
    assert fold(PAIR, row(0, 20, None), row(1, 16, "skipped", reason="overflow")) == [Seen("skipped", 36, 0, (2, 2), "overflow")]


def test_a_skip_without_a_reason_is_other() -> None:
    assert fold(ONE, row(0, 20, "skipped")) == [Seen("skipped", 20, 0, (1, 1), "other")]


def test_a_group_of_which_nobody_knows_the_outcome_is_open_and_expects_nobody() -> None:
    assert fold(PAIR, row(0, 20, None)) == [Seen("open", 20, 0, (1, 2))]
    assert fold(PAIR, row(0, 20, "open")) == [Seen("open", 20, 0, (0, 2))]


def test_a_closing_row_replaces_the_open_ones_of_its_shard() -> None:
    assert fold(ONE, row(0, 8, "open"), row(0, 20)) == [Seen("applied", 20, 0, (1, 1))]
    assert fold(REPLICAS, row(0, 8, "open"), row(1, 20)) == [Seen("applied", 20, 0, (1, 1))]
    assert fold(ONE, row(0, 20), row(0, 30, "open")) == [Seen("applied", 20, 0, (1, 1))]


def test_of_open_rows_the_latest_speaks() -> None:
    assert fold(ONE, row(0, 8, "open", seq=1), row(0, 12, "open", seq=2)) == [Seen("open", 12, 0, (0, 1))]
    assert fold(ONE, row(0, 12, "open", seq=1), row(0, 8, "open", seq=2)) == [Seen("open", 8, 0, (0, 1))]


def test_a_shard_with_only_open_rows_has_not_reported_but_what_it_knows_counts() -> None:
    assert fold(PAIR, row(0, 20), row(1, 8, "open")) == [Seen("held", 28, 0, (1, 2))]


def test_another_try_at_the_same_number_is_another_update() -> None:
    assert fold(ONE, row(0, 20, "skipped", retry=0), row(0, 21, retry=1)) == [
        Seen("skipped", 20, 0, (1, 1), "other"),
        Seen("applied", 21, 0, (1, 1)),
    ]


def test_only_participants_are_expected_and_r_is_theirs() -> None:
    rows = [row(rank, 10, participants=[0, 2]) for rank in (0, 2)]
    groups = fold_updates(events_of("updates", rows), layout_of({"dp": 3}))
    assert look(groups) == [Seen("applied", 20, 0, (2, 2))]
    assert groups.dp_count.tolist() == [2]


def test_work_outside_the_participants_is_abandoned_and_no_update() -> None:
    rows = [row(0, 10, participants=[0]), row(1, 7)]
    groups = fold_updates(events_of("updates", rows), layout_of(PAIR))
    assert look(groups) == [Seen("applied", 10, 0, (1, 1)), Seen("abandoned", 7, 0, (1, 1))]
    assert groups.part.tolist() == [PART_UPDATE, PART_OUTSIDE]


def test_samples_and_ranges_count_once_a_data_parallel_rank() -> None:
    ranges = {0: [["train", 0, 0, 2]], 1: [["train", 0, 2, 4]]}
    rows = [row(rank, 10, samples=2, ranges=ranges[rank // 2]) for rank in range(4)]
    groups = fold_updates(events_of("updates", rows), layout_of({"dp": 2, "cp": 2, "cp_counts": "shard"}))
    assert look(groups) == [Seen("applied", 40, 0, (4, 4))]
    assert groups.known["samples"].tolist() == [4]
    assert groups.ranges.to_list() == [[["train", 0, 0, 4]]]
    assert groups.dp_count.tolist() == [2]


def test_ranges_give_the_samples_that_were_left_out() -> None:
    groups = fold_updates(events_of("updates", [row(0, 4, ranges=[["train", 0, 0, 3], ["code", 1, 5, 7]])]), layout_of(ONE))
    assert (groups.known["samples"].tolist(), groups.unknown["samples"].tolist()) == ([5], [0])


def test_counts_beyond_64_bits_are_exact() -> None:
    ranks = 2048
    rows = [row(rank, LARGEST_COUNT - (rank == 0)) for rank in range(ranks)]
    assert fold({"dp": ranks}, *rows)[0].valid == ranks * 2**53 - 1


RANK_0_STANDS = (Resolution(1, 0, 0, None),)
RANK_1_STANDS = (Resolution(1, 0, 1, None),)
SKIPPED_STANDS = (Resolution(1, 0, None, "skipped"),)


def test_a_rank_that_stands_settles_its_shard() -> None:
    rows = (row(0, 6), row(1, 7))
    assert fold(REPLICAS, *rows, resolutions=RANK_0_STANDS) == [Seen("applied", 6, 0, (1, 1))]
    assert disagreements(REPLICAS, *rows, resolutions=RANK_0_STANDS) == [("replica_mismatch", "valid_targets", 0, 7, 6, False)]


def test_a_rank_that_stands_decides_the_outcome_for_all() -> None:
    rows = (row(0, 20), row(1, 16, "skipped", reason="overflow"))
    assert fold(PAIR, *rows, resolutions=RANK_1_STANDS) == [Seen("skipped", 36, 0, (2, 2), "overflow")]
    assert fold(PAIR, *rows, resolutions=RANK_0_STANDS) == [Seen("applied", 36, 0, (2, 2))]


def test_a_rank_that_stands_leaves_other_shards_contradicting_themselves() -> None:
    rows = (row(0, 6), row(1, 7), row(2, 8), row(3, 9))
    assert fold({"dp": 2, "tp": 2}, *rows, resolutions=RANK_0_STANDS) == [Seen("held", 15, 0, (2, 2))]


def test_a_rank_that_stands_takes_nothing_away_that_only_its_replica_can_know() -> None:
    rows = (row(0, None, input_slots=32, loss_sum=None), row(1, 20, input_slots=31, loss_sum=50.0))
    groups = fold_updates(events_of("updates", list(rows)), layout_of(REPLICAS), RANK_0_STANDS)
    assert look(groups) == [Seen("applied", 20, 0, (1, 1))]
    assert groups.known["input_slots"].tolist() == [32]
    assert groups.token_mean.values.tolist() == [2.5]


def test_an_outcome_that_stands_settles_the_outcome_alone() -> None:
    conflict = (row(0, 20), row(1, 16, "skipped"))
    assert fold(PAIR, *conflict, resolutions=SKIPPED_STANDS) == [Seen("skipped", 36, 0, (2, 2), "other")]
    mismatch = (row(0, 6), row(1, 7))
    assert fold(REPLICAS, *mismatch, resolutions=SKIPPED_STANDS) == [Seen("held", 7, 0, (1, 1))]


def test_no_resolution_completes_an_update() -> None:
    assert fold(PAIR, row(0, 20), resolutions=RANK_0_STANDS) == [Seen("held", 20, 1, (1, 2))]
    assert fold(PAIR, row(0, 20), resolutions=SKIPPED_STANDS) == [Seen("held", 20, 1, (1, 2))]


def test_the_last_resolution_stands() -> None:
    rows = (row(0, 6), row(1, 7))
    assert fold(REPLICAS, *rows, resolutions=RANK_1_STANDS)[0].valid == 7
    assert fold(PAIR, row(0, 20), row(1, 16, "skipped"), resolutions=RANK_0_STANDS + SKIPPED_STANDS)[0].outcome == "skipped"


def test_discards_expect_whoever_reported_and_are_never_held() -> None:
    rows = [{"rank": 0, "update": 3, "valid_targets": 5}, {"rank": 1, "update": 3, "valid_targets": 6}]
    assert look(fold_discards(events_of("discards", rows[:1]), layout_of(PAIR))) == [Seen("discarded", 5, 0, (1, 1), "other")]
    contradicting = look(fold_discards(events_of("discards", rows), layout_of(REPLICAS)))
    assert contradicting == [Seen("discarded", 6, 0, (1, 1), "other")]


def test_a_discard_bears_the_reason_of_the_lowest_rank_that_says_one() -> None:
    rows = [{"rank": 0, "update": 3}, {"rank": 1, "update": 3, "reason": "filtered"}]
    assert look(fold_discards(events_of("discards", rows), layout_of(PAIR)))[0].reason == "filtered"


def test_evaluations_are_told_apart_by_name_and_try() -> None:
    rows = [
        {"rank": rank, "update": 2, "name": name, "retry": retry, "valid_targets": valid}
        for name, retry, valid in (("validation", 0, 10), ("validation", 1, 20), ("test", 0, 40))
        for rank in (0, 1)
    ]
    groups = fold_evaluations(events_of("evaluations", rows), layout_of(PAIR))
    found = dict(zip(zip(groups.name, groups.retry.tolist(), strict=True), groups.known["valid_targets"].tolist(), strict=True))
    assert found == {("test", 0): 80, ("validation", 0): 20, ("validation", 1): 40}


def test_open_rows_are_provisional_and_contradict_nothing() -> None:
    rows = (row(0, 20), row(1, 20), row(2, 8, "open"), row(3, 9, "open"))
    assert fold({"dp": 2, "tp": 2}, *rows) == [Seen("held", 29, 0, (1, 2))]
    assert disagreements({"dp": 2, "tp": 2}, *rows) == []


def test_a_rank_that_took_no_part_settles_nothing() -> None:
    rows = [row(0, 10, "skipped", participants=[0]), row(1, 7, "abandoned")]
    groups = fold_updates(events_of("updates", rows), layout_of(PAIR), RANK_1_STANDS)
    assert look(groups) == [Seen("skipped", 10, 0, (1, 1), "other"), Seen("abandoned", 7, 0, (1, 1))]
