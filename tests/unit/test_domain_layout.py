"""Ranks -> shards -> data-parallel ranks."""

import pytest

from ledger.domain.errors import InvalidRequest
from ledger.domain.layout import LARGEST_WORLD, layout_of


def test_tensor_and_pipeline_ranks_are_replicas() -> None:
    layout = layout_of({"dp": 2, "tp": 2, "pp": 2})
    assert (layout.world_size, layout.shard_count, layout.dp_count) == (8, 2, 2)


def test_the_first_axis_of_the_order_varies_fastest() -> None:
    assert layout_of({"dp": 2, "tp": 3}).dp_ranks.tolist() == [0, 0, 0, 1, 1, 1]
    assert layout_of({"dp": 2, "tp": 3, "order": "dp-tp-cp-pp"}).dp_ranks.tolist() == [0, 1, 0, 1, 0, 1]
    assert layout_of({"dp": 2, "pp": 2, "order": "tp-cp-dp-pp"}).dp_ranks.tolist() == [0, 1, 0, 1]


def test_context_parallel_ranks_are_shards_or_replicas_as_declared() -> None:
    by_slice = layout_of({"dp": 2, "cp": 2})
    assert (by_slice.shards.tolist(), by_slice.dp_ranks.tolist()) == ([0, 1, 2, 3], [0, 0, 1, 1])
    assert layout_of({"dp": 2, "cp": 2, "cp_counts": "whole"}).shards.tolist() == [0, 0, 1, 1]


def test_r_is_the_number_of_data_parallel_ranks_never_the_world_size() -> None:
    assert layout_of({"dp": 3, "tp": 2, "cp": 2}).dp_count == 3


def test_shards_may_be_said_outright() -> None:
    layout = layout_of({"shards": [0, 0, 1, 1], "dp_ranks": [7, 7, 7, 7]})
    assert (layout.shard_count, layout.dp_count, layout.dp_of_shard) == (2, 1, {0: 7, 1: 7})
    assert layout_of({"shards": [0, 0, 1]}).dp_ranks.tolist() == [0, 0, 1]


def test_no_layout_is_one_rank() -> None:
    assert layout_of(None).world_size == layout_of({}).world_size == 1


def test_axes_of_size_one_need_not_be_ordered() -> None:
    assert layout_of({"dp": 2, "tp": 2, "order": "dp-tp"}).dp_ranks.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("declared", "pointer"),
    [
        ({"dp": 2, "order": "tp-cp"}, "/layout/order"),
        ({"dp": 2, "order": "dp-dp-tp-cp-pp"}, "/layout/order"),
        ({"dp": 2, "order": "dp-xp"}, "/layout/order"),
        ({"dp": LARGEST_WORLD, "tp": 2}, "/layout"),
        ({"shards": [0, 0], "dp_ranks": [0]}, "/layout/dp_ranks"),
        ({"shards": [0, 0], "dp_ranks": [0, 1]}, "/layout/dp_ranks/1"),
        ({"shards": []}, "/layout/dp_ranks"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_place(declared: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        layout_of(declared)
    assert refused.value.pointer == pointer
