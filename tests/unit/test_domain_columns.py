"""Events as arrays: what was posted comes back as it was, null by null."""

import math

import numpy as np

from event_rows import events_of
from ledger.domain.columns import Events, Ranges, Texts, moment_of, moment_text
from ledger.domain.events import KINDS, RankEvents

ROW = {
    "seq": 3,
    "update": 7,
    "retry": 1,
    "outcome": "skipped",
    "reason": "overflow",
    "input_slots": 2**53,
    "consumed_tokens": 0,
    "samples": 2,
    "loss_sum": "-Infinity",
    "ranges": [["train", 0, 5, 7]],
    "started_at": "2026-01-01T00:00:00.000001Z",
    "seconds": 0.25,
    "participants": [0, 2],
}


def test_a_row_comes_back_as_it_was_posted_and_nulls_are_left_out() -> None:
    (row,) = events_of("updates", [{"rank": 2, "writer": "w9", **ROW}]).rows()
    assert row == {**ROW, "rank": 2, "writer": "w9", "kind": "updates", "loss_sum": -math.inf}
    assert "valid_targets" not in row


def test_every_kind_keeps_its_nulls() -> None:
    for kind in KINDS:
        optional = [column.name for column in KINDS[kind].columns if not column.required]
        needed = {"update": 1, "checkpoint": "c", "state": "started", "stream": "s", "epoch": 0, "start": 0, "stop": 1, "label": "x"}
        needed |= {"seconds": 1.0, "name": "n", "value": 4, "first": 1, "last": 2}
        given = {column.name: needed[column.name] for column in KINDS[kind].columns if column.required and column.name != "seq"}
        (row,) = events_of(kind, [{**given, **dict.fromkeys(optional)}]).rows()
        assert set(row) == {"rank", "writer", "kind", "seq", *given}


def test_columns_that_one_rank_leaves_out_are_null_there() -> None:
    blocks = [
        RankEvents(0, "w0", {"updates": {"seq": [1, 2], "update": [1, 2], "valid_targets": [5, None]}}),
        RankEvents(1, "w1", {"updates": {"seq": [1], "update": [1]}}),
    ]
    events = Events.of("updates", blocks)
    assert (events.rank.tolist(), events.writer.to_list()) == ([0, 0, 1], ["w0", "w0", "w1"])
    assert events.counts("valid_targets").tolist() == [5, -1, -1]
    assert events.floats("loss_sum").present.tolist() == [False, False, False]


def test_taking_and_joining_keep_rows_whole() -> None:
    events = events_of("updates", [{"update": n, "ranges": [["train", 0, n, n + 1]] * n, "loss_sum": n / 2} for n in (1, 2, 3)])
    turned = Events.join([events.take(np.array([2, 0])), events.take(np.array([False, True, False]))])
    assert [row["update"] for row in turned.rows()] == [3, 1, 2]
    assert [len(row["ranges"]) for row in turned.rows()] == [3, 1, 2]
    assert [row["loss_sum"] for row in turned.rows()] == [1.5, 0.5, 1.0]


def test_texts_of_different_parts_find_their_words() -> None:
    joined = Texts.join([Texts.of(["a", "b", None]), Texts.of(["b", "c"])])
    assert joined.to_list() == ["a", "b", None, "b", "c"]
    assert joined.values == ("a", "b", "c")


def test_no_ranges_are_not_unknown_ranges() -> None:
    ranges = Ranges.of([[], None, [["train", 0, 2, 5], ["code", 1, 0, 4]]])
    assert ranges.to_list() == [[], None, [["train", 0, 2, 5], ["code", 1, 0, 4]]]
    assert ranges.spans().tolist() == [0, 0, 7]


def test_moments_are_microseconds_in_utc() -> None:
    assert moment_of("1970-01-01T00:00:01.5Z") == 1_500_000
    assert moment_of("1970-01-01T02:00:00+02:00") == moment_of("1970-01-01T00:00:00") == 0
    assert moment_text(1_500_000) == "1970-01-01T00:00:01.500000Z"
