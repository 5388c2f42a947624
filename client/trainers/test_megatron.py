"""Megatron Core: a tiny module under its schedules, optimizer and checkpoints, alone and as two ranks of each kind."""

from collections.abc import Callable

import pytest
from conftest import Books, expected, summed

# Updates of two rows of eight slots; of the labels some are not scored.
UPDATES = [{"valid_targets": targets, "consumed_tokens": 16, "input_slots": 16, "samples": 2} for targets in (8 + 5, 6 + 3, 4 + 4, 4 + 2)]


def test_accumulation_mask_overflow_resume_and_what_is_passed_over(launch: Callable[..., list[str]], books: Books) -> None:
    (printed,) = launch("job_megatron.py", "alone")
    run = "megatron"
    assert books.outcomes(run) == [
        (1, "applied", "preserved"), (2, "skipped", "preserved"), (3, "applied", "preserved"), (4, "applied", "lost"), (5, "open", "lost"),
        (5, "applied", "preserved"),
    ]  # fmt: skip
    one, two, three, four = UPDATES
    half = {"valid_targets": 8, "consumed_tokens": 8, "input_slots": 8, "samples": 1}
    kept = summed(one, three, one)
    assert books.counters(run) == expected(attempted=summed(kept, two, four, half), applied=summed(kept, four), preserved=kept)
    report = books.ask(run, "exposure")
    assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": 6 + 3}
    assert report["findings"] == {"update_gap": 1}  # iteration 4 of the second attempt was passed over: nobody attempted it
    (stream,) = books.ask(run, "coverage")["streams"]
    assert stream["passed_over"] == [[6, 8]] and stream["without_effect"] == [[2, 4]] and stream["gaps"] == []
    attempts = books.ask(run)["attempts"]
    assert [one["ended"] for one in attempts] == ["crashed", "completed"]
    assert [one["resumed_from"] and one["resumed_from"]["checkpoint"] for one in attempts] == [None, "iter_3"]
    assert attempts[0]["conventions"]["precision"] == "fp16"
    saves = books.ask(run, "checkpoints")["checkpoints"]
    assert [(one["checkpoint"], one["update"], one["state"], one["positions"]["train"]["position"]) for one in saves] == [
        ("iter_3", 3, "accepted", 6), ("iter_5", 5, "accepted", 10),
    ]  # fmt: skip

    run = "megatron-faults"
    assert [(row["update"], row["outcome"], row["fate"]) for row in books.ask(run, "updates", project="faults")["items"]] == [
        (1, "applied", "preserved"), (2, "skipped", "lost"), (2, "applied", "pending"),
    ]  # fmt: skip
    first, withheld, last = books.ask(run, "updates", project="faults")["items"]
    # The passes of update 1 ran twice on what was drawn once.
    assert {name: first[name] for name in UPDATES[0]} == UPDATES[0]
    # A batch without a loss mask cannot be counted; in one with anything else in it there may be padding.
    assert withheld["valid_targets"] is None and last["valid_targets"] == 3 + 4
    assert last["consumed_tokens"] is None and last["input_slots"] == 16
    saves = books.ask(run, "checkpoints", project="faults")["checkpoints"]
    assert {one["checkpoint"]: one["state"] for one in saves} == {"one": "accepted", "missing": "rejected"}
    assert "FileNotFoundError" in printed


@pytest.mark.parametrize("way", ["data", "tensor", "pipeline", "context"])
def test_ranks_that_hold_the_same_rows_count_once(way: str, launch: Callable[..., list[str]], books: Books) -> None:
    launch("job_megatron.py", way, ranks=2)
    updates = [summed(*UPDATES[:2]), summed(*UPDATES[2:])] if way == "data" else UPDATES[:2]
    both, run = summed(*updates), f"megatron-{way}"
    assert books.counters(run) == expected(attempted=both, applied=both, preserved=both)
    assert books.ask(run, "exposure")["findings"] == {}
    (attempt,) = books.ask(run)["attempts"]
    assert attempt["layout"]["shards"] == ([0, 1] if way == "data" else [0, 0])
    (stream,) = books.ask(run, "coverage")["streams"]
    assert stream["gaps"] == stream["repeated"] == []
