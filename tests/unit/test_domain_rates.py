"""A rate says what it is: whose work, over which time, in which window, per what."""

from typing import Any

import pytest

from ledger.domain.errors import InvalidRequest
from ledger.domain.rates import checked, rate, window_of

SECONDS = {"job": 8.0, "accelerator": 32.0}


def of(**more: Any) -> dict[str, Any]:
    """A rate of 96 targets in 8 seconds on 4 accelerators."""
    asked = {"quantity": "valid_targets", "work": "applied", "time": ["update"], "window": window_of("run"), "per": "job", "numerator": 96}
    return rate(**{**asked, "seconds": SECONDS, **more})


def test_a_rate_is_its_numerator_over_its_seconds() -> None:
    assert (of()["value"], of()["numerator"], of()["seconds"], of()["unit"]) == (12.0, 96, 8.0, "targets/s")
    assert of(per="accelerator")["value"] == 3.0


def test_no_time_and_unknown_counts_give_no_value() -> None:
    assert of(seconds={"job": 0.0, "accelerator": 0.0})["value"] is None
    assert of(numerator=None)["value"] is None
    assert of(numerator=0)["value"] == 0.0


@pytest.mark.parametrize(
    ("work", "skipped", "recomputed"),
    [("attempted", True, True), ("applied", False, True), ("trajectory", False, False), ("preserved", False, False)],
)
def test_whose_work_is_in_the_numerator(work: str, skipped: bool, recomputed: bool) -> None:
    assert (of(work=work)["includes_skipped"], of(work=work)["includes_recomputed"]) == (skipped, recomputed)


def test_the_statement_can_be_quoted() -> None:
    said = of(time=["update", "checkpoint"], window=window_of("attempt:a2"), per="accelerator")["statement"]
    for part in ("3 targets per second per accelerator", "96 targets", "applied updates", "update time and checkpoint time", "attempt a2"):
        assert part in said


@pytest.mark.parametrize(
    ("text", "words"),
    [("run", "the whole run"), ("attempt:a1", "attempt a1"), ("last:300s", "the last 300 s"), ("updates:3-9", "updates 3 to 9")],
)
def test_a_window_is_named(text: str, words: str) -> None:
    assert window_of(text).words == words


REFUSED = ("", "runs", "run:x", "attempt:", "last:0s", "last:-1s", "last:nan", "updates:9-3", "updates:a-b", "updates:3")


@pytest.mark.parametrize("text", REFUSED)
def test_another_window_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        window_of(text)


@pytest.mark.parametrize(
    "asked",
    [
        ("tokens", "applied", ["update"], "job"),
        ("valid_targets", "all", ["update"], "job"),
        ("valid_targets", "applied", [], "job"),
        ("valid_targets", "applied", ["night"], "job"),
        ("valid_targets", "applied", ["wall", "update"], "job"),
        ("valid_targets", "applied", ["update"], "rank"),
    ],
)
def test_another_rate_is_refused(asked: tuple[str, str, list[str], str]) -> None:
    with pytest.raises(InvalidRequest):
        checked(*asked)


def test_updates_have_a_rate_too() -> None:
    checked("updates", "applied", ["update", "idle"], "job")
    assert of(quantity="updates", numerator=4)["unit"] == "updates/s"
