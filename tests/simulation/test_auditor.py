"""The auditor itself, on the worked example of the accounting page and on its own arithmetic."""

from tests.simulation.auditor import audit
from tests.simulation.coverage import merged, minus, tally
from tests.simulation.delivery import apply, empty_facts, plan
from tests.simulation.facts import Declaration, Facts, Row
from tests.simulation.workload import write_history

LAYOUT = {"dp": 2, "tp": 1, "pp": 1, "cp": 1, "order": "tp-cp-dp-pp", "cp_counts": "shard"}


class Story:
    """Facts written by hand, one event after another."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.seq = 0

    def launch(self, attempt: str, checkpoint: str | None) -> None:
        """Open an attempt."""
        source = None if checkpoint is None else {"checkpoint": checkpoint}
        self.facts.declarations.append(Declaration(attempt, 0, source, LAYOUT, {}, None))

    def update(self, attempt: str, number: int, outcome: str = "applied") -> None:
        """An update of 36 targets on two ranks."""
        for rank in (0, 1):
            self.event(attempt, rank, "updates", update=number, outcome=outcome, reason="overflow", valid_targets=18)

    def save(self, attempt: str, name: str, number: int) -> None:
        """A save that is accepted."""
        self.event(attempt, 0, "checkpoints", checkpoint=name, state="started", update=number)
        self.event(attempt, 0, "checkpoints", checkpoint=name, state="accepted", update=None)

    def event(self, attempt: str, rank: int, kind: str, /, **columns: object) -> None:
        """One row."""
        self.seq += 1
        self.facts.add_rows([Row(attempt, rank, "w0", self.seq, kind, columns)])

    def targets(self) -> dict[str, int]:
        """What is known of the balance of valid targets."""
        known: dict[str, int] = audit(self.facts)["balance"]["valid_targets"]["known"]
        return known


def buckets(attempted: int, preserved: int, pending: int, lost: int, skipped: int) -> dict[str, int]:
    """A balance in which nothing was dropped."""
    return {
        "attempted": attempted,
        "preserved": preserved,
        "pending": pending,
        "lost_to_restart": lost,
        "skipped": skipped,
        "dropped": 0,
    }


def test_the_worked_example() -> None:
    story = Story()
    story.launch("a1", None)
    for number in (1, 2, 3, 4):
        story.update("a1", number)
    story.save("a1", "c4", 4)
    story.update("a1", 5)
    story.update("a1", 6, "skipped")
    story.update("a1", 7)
    assert story.targets() == buckets(252, 144, 72, 0, 36)
    story.launch("a2", "c4")
    assert story.targets() == buckets(252, 144, 0, 72, 36)
    for number in (5, 6, 7):
        story.update("a2", number)
    story.save("a2", "c7", 7)
    assert story.targets() == buckets(360, 252, 0, 72, 36)
    assert audit(story.facts)["recomputed"]["valid_targets"] == 108


def test_a_save_covers_the_skipped_try_that_lies_before_its_start() -> None:
    story = Story()
    story.launch("a1", None)
    story.update("a1", 1)
    story.update("a1", 2, "skipped")
    story.save("a1", "c1", 1)
    for rank in (0, 1):
        story.event("a1", rank, "updates", update=2, retry=1, outcome="applied", valid_targets=18)
    fates = {key[1:]: item["fate"] for key, item in audit(story.facts)["items"].items()}
    assert fates == {(1, 0): "preserved", (2, 0): "preserved", (2, 1): "pending"}


def test_preserved_falls_when_the_newest_checkpoint_turns_out_corrupt() -> None:
    story = Story()
    story.launch("a1", None)
    for number in (1, 2):
        story.update("a1", number)
        story.save("a1", f"c{number}", number)
    assert story.targets() == buckets(72, 72, 0, 0, 0)
    story.launch("a2", "c1")
    assert story.targets() == buckets(72, 36, 0, 36, 0)
    story.event("a2", 0, "checkpoints", checkpoint="c2", state="rejected", attempt="a1")
    assert audit(story.facts)["checkpoints"] == {("a1", "c1", 1): "accepted", ("a1", "c2", 2): "rejected"}


def test_nothing_moves_on_one_ranks_word() -> None:
    story = Story()
    story.launch("a1", None)
    story.update("a1", 1)
    story.save("a1", "c1", 1)
    story.update("a1", 2)
    story.launch("a2", "c1")
    story.launch("a2", None)
    story.update("a2", 2)
    told = audit(story.facts)
    assert told["head"] == "a1"
    assert told["items"]["a2", 2, 0]["outcome"] == "held"
    assert story.targets() == buckets(108, 36, 36, 36, 0)


def test_only_the_shards_that_took_part_are_expected() -> None:
    story = Story()
    story.launch("a1", None)
    story.event("a1", 1, "updates", update=1, outcome="applied", valid_targets=18, participants=[1])
    story.event("a1", 1, "updates", update=2, outcome="applied", valid_targets=18)
    items = audit(story.facts)["items"]
    assert items["a1", 1, 0]["outcome"] == "applied"
    assert items["a1", 2, 0]["outcome"] == "held"


def test_intervals() -> None:
    assert tally([(0, 4), (2, 6)]) == [(0, 2, 1), (2, 4, 2), (4, 6, 1)]
    assert merged([(4, 6), (0, 2), (2, 4)]) == [[0, 6]]
    assert minus([(0, 10)], [(2, 3), (5, 10)]) == [[0, 2], [3, 5]]


def test_the_auditor_does_not_see_the_order_of_delivery() -> None:
    for seed in range(40):
        history = write_history(seed)
        audits = []
        for disorder in ("none", "some", "full"):
            facts = empty_facts(history)
            for step in plan(history, seed, disorder):
                apply(facts, step)
            audits.append(audit(facts))
        assert audits[0] == audits[1] == audits[2], f"seed {seed}"
