"""`ledger verify` on each database: an intact run has no difference, a damaged one has its damage named, a rebuild cures it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from ledger.cli import app
from ledger.domain.errors import RunUnknown
from ledger.domain.events import KINDS
from ledger.services import registration, reports, verification
from ledger.services.recount import Recount, recount
from ledger.services.recounting import facts
from ledger.storage import registry, tables
from ledger.storage.encoding import absent, decode, encode
from ledger.storage.store import Store
from tests.simulation.delivery import Post, plan
from tests.simulation.driver import PROJECT, Driver, Ledger, now, opened
from tests.simulation.facts import Columns, Declaration, Ending, Resolution, Row
from tests.simulation.workload import History, write_history

LAYOUT: Columns = {"dp": 2, "tp": 2}
RUN = "told"
SEEDS = (5, 18, 51)


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    with opened(store) as running:
        yield running


class Story:
    """A run written by hand: two data-parallel ranks of two replicas each, rank 0 posts what only one rank posts."""

    def __init__(self, ledger: Ledger, run: str = RUN) -> None:
        self.driver = Driver(ledger, History(0, {}), run)
        self.driver.open()
        self.seq: dict[tuple[str, int], int] = {}

    def launch(self, attempt: str, day: int, resumed_from: Columns | None = None) -> None:
        self.driver.post(Declaration(attempt, 0, resumed_from, LAYOUT, {}, f"2026-01-{day:02d}T00:00:00Z"))

    def row(self, attempt: str, rank: int, kind: str, /, **columns: Any) -> Row:
        seq = self.seq[attempt, rank] = self.seq.get((attempt, rank), 0) + 1
        return Row(attempt, rank, "w", seq, kind, columns)

    def event(self, attempt: str, rank: int, kind: str, /, **columns: Any) -> None:
        self.driver.post(Post(attempt, (self.row(attempt, rank, kind, **columns),)))

    def update(self, attempt: str, number: int, outcome: str = "applied", /, **columns: Any) -> None:
        """An update of 36 targets in 4 positions; the second replica of each shard does not know its targets."""
        rows = []
        for rank in range(4):
            start = 4 * (number - 1) + 2 * (rank // 2)
            counts = {"input_slots": 32, "consumed_tokens": 24, "valid_targets": (20, None, 16, None)[rank]}
            drawn = {"ranges": [["train", 0, start, start + 2]]}
            rows.append(self.row(attempt, rank, "updates", **{"update": number, "outcome": outcome, **counts, **drawn, **columns}))
        self.driver.post(Post(attempt, tuple(rows)))

    def save(self, attempt: str, name: str, number: int) -> None:
        self.event(attempt, 0, "checkpoints", checkpoint=name, state="started", update=number)
        self.event(attempt, 0, "checkpoints", checkpoint=name, state="accepted")


def tell(ledger: Ledger) -> Story:
    """The worked example of the accounting, with something of every other kind around it."""
    story = Story(ledger)
    story.launch("a1", 1)
    for number in (1, 2, 3, 4):
        story.update("a1", number)
    story.update("a1", 5, "skipped", reason="overflow")
    story.save("a1", "c4", 4)
    story.update("a1", 5, retry=1)
    story.update("a1", 6, "skipped", reason="overflow")
    story.update("a1", 7)
    story.event("a1", 0, "passes", update=8, stream="train", epoch=0, start=28, stop=32)
    story.event("a1", 0, "discards", update=8, input_slots=7, consumed_tokens=6, valid_targets=5, samples=1, reason="remainder")
    story.event("a1", 0, "evaluations", update=7, name="validation", input_slots=512, consumed_tokens=500, valid_targets=490, samples=3)
    story.event("a1", 0, "idles", label="restart", seconds=3.0)
    story.event("a1", 0, "counters", update=7, name="global_step", value=7)
    story.event("a1", 0, "gaps", first=90, last=95, reason="spool_full")
    story.driver.post(Ending("a1", "crashed"))
    story.launch("a2", 2, {"checkpoint": "c4"})
    for number in (5, 6, 7):
        story.update("a2", number)
    story.save("a2", "c7", 7)
    story.event("a2", 0, "updates", update=8, outcome="open", input_slots=9)
    return story


def quiet(_done: int, _total: int) -> None:
    """A bar that nobody sees."""


def verified(store: Store, run: str = RUN) -> verification.Difference | None:
    return verification.verify(store, PROJECT, run, quiet)


def counted(store: Store, run: str = RUN) -> Recount:
    with store.read() as connection:
        return recount(connection, PROJECT, run, registry.find_run(connection, PROJECT, run).entries, quiet)


def damage(store: Store, statement: str, **values: Any) -> None:
    with store.write() as connection:
        changed = connection.execute(text(statement), values).rowcount
    assert changed > 0, f"nothing was damaged by {statement}"


def test_the_recount_gives_the_worked_numbers(ledger: Ledger) -> None:
    tell(ledger)
    report = counted(ledger.store).exposure()
    balance = report["balance"]["valid_targets"]
    terms = ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")
    assert balance["attempted"] is None, "the open group does not say its targets"
    assert [balance["known"][term] for term in terms] == [401, 252, 0, 72, 72, 5]
    assert report["balance"]["input_slots"]["attempted"] == 11 * 64 + 7 + 9
    assert report["matrix"]["input_slots"]["skipped"] == {"preserved": 64, "pending": 0, "lost": 64}
    assert report["recomputed"]["valid_targets"] == 108
    assert report["evaluation"]["valid_targets"] == 490
    assert report["passed_over"]["samples"] == 4
    assert report["as_of"] == {"head": "a2", "complete_through_update": 7}
    (train,) = counted(ledger.store).coverage()
    assert (train["effective_total"], train["effective_unique"], train["gaps"]) == (28, 28, [])


def test_an_intact_run_has_no_difference(ledger: Ledger) -> None:
    story = tell(ledger)
    assert verified(ledger.store) is None
    story.event("a1", 3, "updates", update=3, outcome="applied", input_slots=33)
    story.driver.post(Resolution("a1", 3, 0, 2, None))
    story.event("a2", 0, "checkpoints", checkpoint="c7", state="rejected")
    assert verified(ledger.store) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_told_histories_have_no_difference_on_the_way(ledger: Ledger, seed: int) -> None:
    driver = Driver(ledger, write_history(seed), "history")
    driver.open()
    steps = plan(driver.history, seed, ("none", "some", "full")[seed % 3])
    for place, step in enumerate(steps):
        driver.post(step)
        if place % (len(steps) // 3) == 0 or step is steps[-1]:
            assert verified(ledger.store, "history") is None, f"after step {place}"


def test_a_fork_is_counted_along_its_whole_path(ledger: Ledger) -> None:
    tell(ledger)
    forked_from = {"project": PROJECT, "run": RUN, "checkpoint": "c7"}
    registration.open_run(ledger.store, PROJECT, "fork", {"conventions": {}, "forked_from": forked_from}, now())
    fork = Driver(ledger, History(0, {}), "fork")
    fork.post(Declaration("f1", 0, None, {"dp": 1}, {}, None))
    fork.post(Post("f1", (Row("f1", 0, "w", 1, "updates", {"update": 8, "outcome": "applied", "ranges": [["train", 0, 32, 34]]}),)))
    assert counted(ledger.store, "fork").coverage()[0]["effective_total"] == 30
    assert verified(ledger.store, "fork") is None
    damage(ledger.store, "DELETE FROM drawn WHERE effect = 'effective' AND attempt = 2")
    assert place_of(verified(ledger.store, "fork")) == "/coverage/streams/train/0/effective_total"


def test_runs_forked_from_each_other_are_only_unresolved(ledger: Ledger) -> None:
    for run, other in (("left", "right"), ("right", "left")):
        forked_from = {"project": PROJECT, "run": other, "checkpoint": "c1"}
        registration.open_run(ledger.store, PROJECT, run, {"conventions": {}, "forked_from": forked_from}, now())
    Driver(ledger, History(0, {}), "left").post(Declaration("l1", 0, None, {"dp": 1}, {}, None))
    assert counted(ledger.store, "left").exposure()["undecided"] == {"l1": "unresolved"}


def place_of(difference: verification.Difference | None) -> str | None:
    return None if difference is None else difference.place


DAMAGES = (
    (
        "UPDATE totals SET known_valid_targets = 1 WHERE outcome = 'applied' AND attempt = 2",
        "/exposure/balance/valid_targets/preserved",
    ),
    ("UPDATE totals SET attempts = 0 WHERE outcome = 'skipped' AND first > 4", "/exposure/updates/attempted"),
    ("UPDATE totals SET unknown_samples = 1 WHERE outcome = 'applied'", "/exposure/balance/samples/preserved"),
    ("UPDATE attempt_states SET numbers = '[[5, 9]]' WHERE attempt = 2", "/exposure/as_of/complete_through_update"),
    ("UPDATE attempt_states SET recomputed = '[]' WHERE attempt = 2", "/attempts/a2/recomputed"),
    ("UPDATE saves SET accepted = false WHERE checkpoint = 'c7'", "/exposure/accepted_checkpoint/checkpoint"),
    ("UPDATE saves SET rejected = true WHERE checkpoint = 'c4'", "/checkpoints/0/state"),
    ("DELETE FROM early", "/exposure/matrix/input_slots/skipped/preserved"),
    ("DELETE FROM drawn WHERE attempt = 2 AND effect = 'effective'", "/coverage/streams/train/0/effective_total"),
    ("UPDATE updates SET outcome = 'held' WHERE attempt = 2 AND number = 6", "/updates/a2/6/0/outcome"),
    ("UPDATE updates SET reason = 'spike_guard' WHERE attempt = 1 AND number = 6", "/updates/a1/6/0/reason"),
    ("UPDATE updates SET known_samples = 5 WHERE attempt = 1 AND number = 5 AND retry = 1", "/updates/a1/5/1/known_samples"),
    ("UPDATE updates SET shards_expected = 1 WHERE attempt = 2 AND number = 8", "/updates/a2/8/0/shards_expected"),
    ("UPDATE updates SET ranges = NULL WHERE attempt = 1 AND number = 2", "/updates/a1/2/0/ranges"),
    ("UPDATE updates SET known_input_slots = 8 WHERE part = 1", "/discards/a1/8/0/known_input_slots"),
    ("UPDATE updates SET number = 99 WHERE attempt = 2 AND number = 7", "/updates/a2/99/0"),
    ("DELETE FROM updates WHERE attempt = 2 AND number = 5", "/updates/a2/5/0"),
    ("UPDATE evaluations SET known_valid_targets = 491", "/exposure/evaluation/valid_targets"),
    ("UPDATE evaluations SET name = 'other'", "/evaluations/a1/7/other/0"),
    ("UPDATE passes SET stop = 31", "/exposure/passed_over/samples"),
    ("UPDATE checkpoint_rows SET state = 'rejected' WHERE attempt = 2 AND state = 'accepted'", "/checkpoints/a2/0/w/5/state"),
    ("DELETE FROM checkpoint_rows WHERE attempt = 1 AND state = 'started'", "/checkpoints/a1/0/w/6"),
    ("UPDATE idles SET seconds = 4", "/idles/a1/0/w/14/seconds"),
    ("UPDATE counters SET value = 8", "/counters/a1/0/w/15/value"),
    ("DELETE FROM gaps", "/gaps/a1/0/w/16"),
    ("UPDATE gaps SET attempt = 2", "/gaps/a1/0/w/16"),
)
"""What is done to one row of a projection, and the place that must be named for it."""


def test_a_damaged_projection_is_named_and_a_rebuild_cures_it(ledger: Ledger) -> None:
    tell(ledger)
    assert verified(ledger.store) is None
    before = ledger.exposure(RUN)
    for statement, place in DAMAGES:
        damage(ledger.store, statement)
        assert place_of(verified(ledger.store)) == place, statement
        # What is not cured would be the first difference of the next one.
        verification.rebuild(ledger.store, PROJECT, RUN, quiet)
    assert verified(ledger.store) is None
    assert ledger.exposure(RUN) == before


JOURNAL_DAMAGES = (
    ("DELETE FROM journal WHERE first_entry = 11", "/journal/11"),
    ("DELETE FROM journal WHERE first_entry = (SELECT entries FROM runs)", "/journal/{last}"),
    ("UPDATE journal SET payload = :junk WHERE first_entry = 11", "/journal/11"),
    ("UPDATE journal SET payload = :junk WHERE kind = 'ending'", "/journal/{ending}"),
    ("UPDATE journal SET entries = 2 WHERE first_entry = (SELECT entries FROM runs)", "/journal/{last}/entries"),
    ("UPDATE journal SET last_update = 99 WHERE first_entry = 11", "/journal/11/updates"),
    ("UPDATE journal SET attempt = 7 WHERE first_entry = 11", "/journal/11/attempt"),
    # The two tries of update 5: what the first rank posted for one of them is there twice.
    (
        (
            "UPDATE journal SET (payload, first_seq, last_seq) = "
            "(SELECT payload, first_seq, last_seq FROM journal WHERE first_entry = 19) WHERE first_entry = 25"
        ),
        "/journal/sequences/a1/0/w",
    ),
    ("UPDATE streams SET journalled = '[[1, 3]]' WHERE attempt = 2 AND rank = 3", "/journal/sequences/a2/3/w"),
    ("DELETE FROM streams WHERE attempt = 2 AND rank = 3", "/journal/sequences/a2/3/w"),
)
"""What is done to a fact, and the place that must be named for it."""


def test_a_damaged_journal_is_named_and_a_rebuild_keeps_what_was_made_of_it_while_it_was_whole(ledger: Ledger) -> None:
    tell(ledger)
    assert verified(ledger.store) is None
    before = ledger.exposure(RUN)
    with ledger.store.read() as connection:
        last = connection.execute(text("SELECT entries FROM runs")).scalar_one()
        ending = connection.execute(text("SELECT first_entry FROM journal WHERE kind = 'ending'")).scalar_one()
        whole = [(table, connection.execute(table.select()).mappings().all()) for table in (tables.journal, tables.streams)]
    for statement, place in JOURNAL_DAMAGES:
        damage(ledger.store, statement, **({"junk": b"\x00junk"} if ":junk" in statement else {}))
        right = place.format(last=last, ending=ending)
        assert place_of(verified(ledger.store)) == right, statement
        verification.rebuild(ledger.store, PROJECT, RUN, quiet)
        assert place_of(verified(ledger.store)) == right, statement
        assert ledger.exposure(RUN) == before, statement
        with ledger.store.write() as connection:
            for table, rows in whole:
                connection.execute(table.delete())
                connection.execute(table.insert(), [dict(row) for row in rows])
    assert verified(ledger.store) is None


UNREADABLE_ROWS = (
    ("UPDATE attempt_states SET numbers = 'x' WHERE attempt = 2", "/projections"),
    ("UPDATE saves SET starts = 'x'", "/projections"),
    ("UPDATE totals SET extras = 'x'", "/projections"),
    ("UPDATE updates SET ranges = :junk WHERE attempt = 1 AND number = 2", "/updates"),
    ("UPDATE checkpoint_rows SET positions = 'x'", "/checkpoint_rows"),
)


def test_a_projection_that_cannot_be_read_is_named_and_a_rebuild_cures_it(ledger: Ledger) -> None:
    tell(ledger)
    assert verified(ledger.store) is None
    for statement, place in UNREADABLE_ROWS:
        damage(ledger.store, statement, **({"junk": b"\x00junk"} if ":junk" in statement else {}))
        assert place_of(verified(ledger.store)) == place, statement
        verification.rebuild(ledger.store, PROJECT, RUN, quiet)
        assert verified(ledger.store) is None, f"not cured of {statement}"


MISFILED = (
    "UPDATE journal SET first_seq = 900, last_seq = 900 WHERE first_entry = 11",
    "UPDATE journal SET first_rank = 99, last_rank = 99 WHERE first_entry = 11",
)


@pytest.mark.parametrize("statement", MISFILED)
def test_a_block_that_a_search_by_its_bounds_would_miss_is_named(ledger: Ledger, statement: str) -> None:
    tell(ledger)
    assert verified(ledger.store) is None
    damage(ledger.store, statement)
    assert place_of(verified(ledger.store)) == "/journal/11"


def test_a_block_without_what_its_kind_requires_is_named_and_never_rebuilt_from(ledger: Ledger) -> None:
    tell(ledger)
    assert verified(ledger.store) is None
    before = ledger.exposure(RUN)
    with ledger.store.read() as connection:
        query = text("SELECT first_entry, payload FROM journal WHERE kind = 'checkpoints' ORDER BY first_entry")
        entry, payload = connection.execute(query).first() or (0, b"")
    events = decode("checkpoints", payload)
    events.columns["state"] = absent(KINDS["checkpoints"].column("state"), len(events))
    damage(ledger.store, "UPDATE journal SET payload = :payload WHERE first_entry = :entry", payload=encode(events), entry=entry)
    assert place_of(verified(ledger.store)) == f"/journal/{entry}"
    verification.rebuild(ledger.store, PROJECT, RUN, quiet)
    assert ledger.exposure(RUN) == before


def test_a_declaration_of_another_shape_is_named(ledger: Ledger) -> None:
    tell(ledger)
    assert verified(ledger.store) is None
    damage(ledger.store, "UPDATE journal SET payload = :body WHERE first_entry = 2", body=b"[]")
    assert place_of(verified(ledger.store)) == "/journal/2"


def test_a_journal_that_the_projection_stumbles_over_is_named(ledger: Ledger) -> None:
    tell(ledger)
    damage(ledger.store, "UPDATE journal SET payload = :junk WHERE first_entry = 11", junk=b"\x00junk")
    assert place_of(verified(ledger.store)) == "/journal/11"


def test_a_run_may_grow_while_it_is_verified(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    story = tell(ledger)
    coverage: Callable[..., dict[str, Any]] = reports.coverage
    grown: list[int] = []

    def growing(*place: Any) -> dict[str, Any]:
        grown.append(len(grown))
        story.update("a2", 9 + len(grown))
        return coverage(*place)

    monkeypatch.setattr(reports, "coverage", growing)
    assert verified(ledger.store) is None
    assert len(grown) == verification.TRIES
    damage(ledger.store, "UPDATE totals SET known_input_slots = 1 WHERE attempt = 1 AND outcome = 'applied' AND first < 4")
    assert place_of(verified(ledger.store)) == "/exposure/balance/input_slots/attempted"


def test_windows_of_any_size_count_the_same(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(ledger)
    whole = counted(ledger.store).exposure()
    monkeypatch.setattr(facts, "PAGE", 1)
    for rows in (1, 5, 9):
        monkeypatch.setattr(facts, "WINDOW_ROWS", rows)
        assert counted(ledger.store).exposure() == whole


def test_the_bar_reaches_its_end_and_never_goes_back(ledger: Ledger) -> None:
    tell(ledger)
    seen: list[tuple[int, int]] = []
    verification.verify(ledger.store, PROJECT, RUN, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_an_unknown_run_is_said_to_be_unknown(store: Store) -> None:
    with pytest.raises(RunUnknown):
        verified(store)
    with pytest.raises(RunUnknown):
        verification.rebuild(store, PROJECT, RUN, quiet)


def test_the_command_names_damage_and_cures_it(ledger: Ledger) -> None:
    address = ledger.store.engine.url.render_as_string(hide_password=False)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", *arguments, "--database-url", address])
        return result.exit_code, result.stdout

    assert run() == (0, "there are no runs\n")
    tell(ledger)
    assert run() == (0, f"{PROJECT}/{RUN}: the same\n")
    damage(ledger.store, "UPDATE evaluations SET known_valid_targets = 491")
    expected = "/exposure/evaluation/valid_targets is 490 by the journal, 491 by the projection"
    assert run(f"{PROJECT}/{RUN}") == (1, f"{PROJECT}/{RUN}: {expected}\n")
    assert run("--rebuild") == (0, f"{PROJECT}/{RUN}: the same\n")
    assert run(f"{PROJECT}/none")[0] == 3
    assert run(f"{PROJECT}/none", "--rebuild")[0] == 3
