"""The cursor: what a trainer writes into a checkpoint and gives back when it has loaded it."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from conftest import train

import ledger_client
from ledger_client.integrations.cursor import resume_source
from ledger_client.testing import CapturingTransport

Start = Callable[..., ledger_client.Run]
CURSOR = {"project": "default", "run": "demo", "attempt": "a1", "checkpoint": "c2", "update": 2}


def declared(capture: CapturingTransport, attempt: str) -> Any:
    return capture.ledger.attempts[attempt]["resumed_from"]


def test_a_cursor_goes_through_a_checkpoint_and_names_it_on_resume(start: Start) -> None:
    capture = CapturingTransport()
    run = start(transport=capture)
    train(run, 1, 2)
    cursor = json.loads(json.dumps(run.checkpoint("c2").cursor()))
    assert cursor == CURSOR
    resumed = start(transport=capture, attempt="a2", resumed_from=cursor)
    resumed.update(3).skipped()
    assert resumed.flush()
    assert declared(capture, "a2") == {"checkpoint": "c2", "attempt": "a1", "update": 2}


def test_a_handle_in_another_process_has_the_same_cursor(start: Start) -> None:
    checkpoint = start(mode="offline").checkpoint("c2", update=2)
    assert pickle.loads(pickle.dumps(checkpoint)).cursor() == checkpoint.cursor() == CURSOR


def test_what_was_not_recorded_has_no_attempt_to_name(start: Start) -> None:
    run = start(mode="disabled")
    assert run.checkpoint("c2", update=2).cursor() == {name: value for name, value in CURSOR.items() if name != "attempt"}
    assert run.attempt == ""


@pytest.mark.parametrize("other", [{"run": "older"}, {"project": "pretraining"}])
def test_a_cursor_of_another_run_is_refused_and_told_what_to_do(start: Start, other: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"saved by the run .*, not by default/demo: .* give the same mapping as forked_from"):
        start(resumed_from=CURSOR | other)
    with pytest.raises(ValueError, match="not by default/demo"):
        start(resumed_from=CURSOR | other, forked_from=CURSOR | other | {"checkpoint": "c1"})


def test_a_fork_takes_the_cursor_and_begins_at_it(start: Start) -> None:
    capture = CapturingTransport()
    origin = CURSOR | {"run": "older"}
    run = start(transport=capture, forked_from=origin, resumed_from=origin)
    run.update(3).skipped()
    assert run.flush()
    assert capture.ledger.runs["demo"]["forked_from"] == {"project": "default", "run": "older", "attempt": "a1", "checkpoint": "c2"}
    assert declared(capture, "a1") is None, "the ledger takes it to begin at the fork's checkpoint"
    own = run.checkpoint("c3", update=3).cursor()
    again = start(transport=capture, forked_from=origin, resumed_from=own, attempt="a2")
    again.update(4).skipped()
    assert again.flush()
    assert declared(capture, "a2") == {"checkpoint": "c3", "attempt": "a1", "update": 3}


def test_a_fork_says_from_which_checkpoint(start: Start) -> None:
    with pytest.raises(ValueError, match="'project', 'run' and 'checkpoint'"):
        start(forked_from={"run": "older"})


def test_what_was_loaded_is_judged_by_its_cursor_and_the_trainers_number(caplog: pytest.LogCaptureFixture) -> None:
    assert resume_source("elsewhere", CURSOR, 2) == CURSOR and not caplog.text
    assert resume_source("last", CURSOR, 5) == CURSOR | {"checkpoint": "last", "update": 5}
    assert "holds the cursor of update 2, and the trainer stands at 5" in caplog.text
    assert resume_source("step-5", None, 5) == {"checkpoint": "step-5", "update": 5}
    assert "step-5 holds no cursor of the ledger: it is taken to be a save of that name after update 5" in caplog.text
    assert resume_source("step-5", None, None) == {"checkpoint": "step-5"}
