"""Faults that simulations found, each as the shortest story that shows it."""

from typing import Any

import pytest

from tests.simulation.auditor import audit
from tests.simulation.comparison import compare_all
from tests.simulation.delivery import Post, Step, apply
from tests.simulation.driver import PROJECT, Driver, Ledger
from tests.simulation.facts import Columns, Declaration, Facts, Row
from tests.simulation.workload import History

PAIR: Columns = {"dp": 2, "tp": 1, "pp": 1, "cp": 1}


class Story:
    """A run written by hand, one event after another, in the ledger and in the auditor's facts."""

    def __init__(self, ledger: Ledger, run: str, forked_from: Columns | None = None, parent: "Story | None" = None) -> None:
        self.driver = Driver(ledger, History(0, {}), run)
        self.driver.open_as(forked_from)
        self.facts = Facts()
        if parent is not None and forked_from is not None:
            self.facts.parent, self.facts.fork_name = parent.facts, forked_from["checkpoint"]
        self.seq: dict[tuple[str, int], int] = {}

    def tell(self, step: Step) -> None:
        """Deliver a step to both."""
        self.driver.post(step)
        apply(self.facts, step)

    def launch(self, attempt: str, day: int, resumed_from: Columns | None = None, layout: Columns = PAIR) -> None:
        """Open an attempt."""
        self.tell(Declaration(attempt, 0, resumed_from, layout, {}, f"2026-01-{day:02d}T00:00:00Z"))

    def event(self, attempt: str, rank: int, kind: str, /, **columns: Any) -> None:
        """One row."""
        seq = self.seq[attempt, rank] = self.seq.get((attempt, rank), 0) + 1
        self.tell(Post(attempt, (Row(attempt, rank, "w0", seq, kind, columns),)))

    def update(self, attempt: str, number: int, outcome: str = "applied", /, **columns: Any) -> None:
        """An update of two ranks that draw two positions each."""
        reason = "overflow" if outcome == "skipped" else None
        for rank in (0, 1):
            self.event(attempt, rank, "updates", update=number, outcome=outcome, reason=reason, **{"valid_targets": 18, **columns})

    def save(self, attempt: str, name: str, number: int, position: int | None = None) -> None:
        """A save that is accepted."""
        positions = None if position is None else {"train": {"epoch": 0, "position": position}}
        self.event(attempt, 0, "checkpoints", checkpoint=name, state="started", update=number, positions=positions)
        self.event(attempt, 0, "checkpoints", checkpoint=name, state="accepted", update=None)

    def kinds(self) -> set[str]:
        """The kinds of findings."""
        return {finding["kind"] for finding in self.driver.findings()}

    def assert_agreed(self) -> None:
        """The ledger says what the auditor says."""
        assert list(compare_all(self.driver, audit(self.facts), set())) == []


@pytest.fixture
def story(ledger: Ledger) -> Story:
    """A run of its own."""
    return Story(ledger, "found")


def test_a_forked_run_sees_its_parent_though_nobody_has_read_the_parent(ledger: Ledger) -> None:
    parent = Story(ledger, "parent")
    parent.launch("a1", 1)
    parent.update("a1", 1, ranges=[["train", 0, 0, 2]])
    parent.save("a1", "base", 1)
    child = Story(ledger, "child", {"project": PROJECT, "run": "parent", "checkpoint": "base"}, parent)
    child.launch("b1", 2)
    report = child.driver.exposure()
    assert (report["as_of"]["head"], report["trajectory"]) == ("b1", [{"attempt": "b1", "after": 1, "through": 1}])
    assert child.driver.coverage()[0]["effective_total"] == 4
    child.assert_agreed()


def test_all_that_bears_the_first_number_may_be_what_was_drawn_first_after_a_resume(story: Story) -> None:
    story.launch("a1", 1)
    story.update("a1", 1, ranges=[["train", 0, 0, 5]])
    story.save("a1", "c1", 1, position=5)
    story.launch("a2", 2, {"checkpoint": "c1"})
    story.event("a2", 0, "discards", update=2, valid_targets=1, ranges=[["train", 0, 5, 6]])
    story.update("a2", 2, ranges=[["train", 0, 6, 8]])
    assert "resume_position_mismatch" not in story.kinds()
    story.assert_agreed()


def test_a_declared_position_may_lie_behind_a_skipped_try_at_the_next_number(story: Story) -> None:
    story.launch("a1", 1)
    story.update("a1", 1, ranges=[["train", 0, 0, 4]])
    story.update("a1", 2, "skipped", ranges=[["train", 0, 4, 5]])
    story.save("a1", "c1", 1, position=5)
    story.update("a1", 2, "skipped", retry=1, ranges=[["train", 0, 5, 9]])
    assert "checkpoint_position_mismatch" not in story.kinds()
    story.assert_agreed()


def test_work_outside_the_participants_is_not_recomputed(story: Story) -> None:
    story.launch("a1", 1)
    story.update("a1", 1)
    story.launch("a2", 2)
    story.update("a2", 1, "abandoned")
    story.event("a2", 0, "updates", update=1, retry=1, outcome="applied", valid_targets=7, participants=[0])
    story.event("a2", 1, "updates", update=1, retry=1, outcome="abandoned", valid_targets=1000)
    report = story.driver.exposure()
    assert report["recomputed"]["valid_targets"] == 36 + 7
    assert report["updates"]["recomputed"] == 2
    story.assert_agreed()


def test_what_is_held_may_yet_learn_its_counts(story: Story) -> None:
    story.launch("a1", 1)
    story.update("a1", 1)
    story.update("a1", 2, valid_targets=None)
    story.event("a1", 0, "updates", update=3, outcome="applied", valid_targets=None)
    story.event("a1", 1, "updates", update=3, outcome="skipped", valid_targets=18)
    lacking = [finding["update"] for finding in story.driver.findings() if finding["kind"] == "missing_count"]
    assert lacking == [2]
    assert story.driver.exposure()["findings"]["missing_count"] == 1
    story.assert_agreed()


def test_work_that_begins_at_a_high_number_is_complete_before_and_after_a_resume(story: Story) -> None:
    story.launch("a1", 1)
    for number in (5, 6, 7):
        story.update("a1", number)
    assert story.driver.exposure()["as_of"]["complete_through_update"] == 7
    story.save("a1", "c6", 6)
    story.launch("a2", 2, {"checkpoint": "c6"})
    assert story.driver.exposure()["as_of"]["complete_through_update"] == 6
    story.assert_agreed()


def test_a_skip_that_is_held_has_no_reason_yet(story: Story) -> None:
    story.launch("a1", 1)
    story.launch("a1", 1, {"checkpoint": "elsewhere"})
    story.update("a1", 1, "skipped")
    (item,) = story.driver.updates()
    assert (item["outcome"], item["reason"]) == ("held", None)
    story.assert_agreed()


def test_a_save_is_not_accepted_by_a_word_that_came_before_it_began(story: Story) -> None:
    story.launch("a1", 1)
    story.update("a1", 1)
    story.seq["a1", 0] = 6
    story.event("a1", 0, "checkpoints", checkpoint="latest", state="started", update=1)
    story.seq["a1", 0] = 3
    story.event("a1", 0, "checkpoints", checkpoint="latest", state="accepted", update=None)
    assert story.driver.exposure()["updates"]["preserved"] == 0
    story.assert_agreed()


def test_a_skip_before_a_save_lies_before_it_though_its_attempt_is_undecided(ledger: Ledger) -> None:
    parent = Story(ledger, "undecided")
    parent.launch("a1", 1)
    parent.launch("a1", 1, {"checkpoint": "elsewhere"})
    parent.update("a1", 1, ranges=[["train", 0, 0, 4]])
    parent.update("a1", 2, "skipped", ranges=[["train", 0, 4, 8]])
    parent.save("a1", "c1", 1, position=8)
    story = Story(ledger, "child", {"project": PROJECT, "run": "undecided", "checkpoint": "c1"}, parent)
    story.launch("b1", 2)
    story.update("b1", 2, ranges=[["train", 0, 8, 12]])
    assert "sample_gap" not in story.kinds()
    story.assert_agreed()
