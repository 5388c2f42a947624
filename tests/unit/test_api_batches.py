"""Batches: the schema is made from the one description of the columns, and what comes out is plain lists."""

import json
import math
from datetime import UTC, datetime
from typing import Any

from ledger.api.schemas.batches import BLOCKS, EXAMPLE, EventBatch, rank_events
from ledger.domain.events import KINDS


def taken(body: dict[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """The blocks of the first rank of a batch."""
    return rank_events(EventBatch.model_validate_json(json.dumps(body)))[0].blocks


def one(**blocks: dict[str, list[Any]]) -> dict[str, Any]:
    return {"ranks": [{"rank": 0, "writer": "w", **blocks}]}


def test_every_column_of_every_kind_is_a_field() -> None:
    assert {name: [column.name for column in kind.columns] for name, kind in KINDS.items()} == {
        name: list(block.model_fields) for name, block in BLOCKS.items()
    }


def test_required_columns_are_required() -> None:
    for name, kind in KINDS.items():
        required = {column.name for column in kind.columns if column.required}
        assert required == {field for field, info in BLOCKS[name].model_fields.items() if info.is_required()}


def test_the_documented_example_is_taken() -> None:
    blocks = taken(EXAMPLE)
    assert blocks["updates"]["ranges"] == [[("train", 0, 0, 2)], [("train", 0, 2, 4)]]
    assert blocks["checkpoints"]["update"] == [1, None]
    assert "positions" not in blocks["checkpoints"]


def test_named_floats_become_floats() -> None:
    sums = taken(one(updates={"seq": [1, 2, 3, 4], "update": [1, 2, 3, 4], "loss_sum": ["NaN", "Infinity", "-Infinity", None]}))
    found = sums["updates"]["loss_sum"]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, None]


def test_moments_keep_their_instant() -> None:
    found = taken(one(updates={"seq": [1], "update": [1], "started_at": ["2026-01-01T02:00:00.25+02:00"]}))["updates"]["started_at"]
    assert found == [datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)]


def test_the_largest_counts_are_exact() -> None:
    assert taken(one(updates={"seq": [1], "update": [1], "input_slots": [2**53]}))["updates"]["input_slots"] == [2**53]


def test_a_column_may_be_null_as_a_whole_and_a_block_empty() -> None:
    assert taken(one(updates={"seq": [1], "update": [1], "samples": None})) == {"updates": {"seq": [1], "update": [1]}}  # type: ignore[dict-item]
    assert taken(one(updates={"seq": [], "update": []})) == {}
