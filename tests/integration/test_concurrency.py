"""Writers at once: overlapping resends, two services on one database, readers in between."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from ledger.domain.events import RankEvents
from ledger.services import export, registration
from ledger.storage.engine import open_engine
from ledger.storage.store import Store
from tests.simulation.driver import PROJECT, Driver, Ledger, now, opened
from tests.simulation.facts import Declaration
from tests.simulation.workload import History

RUN = "busy"
ATTEMPT = "a1"
RANKS = 4
ROUNDS = 3
SPANS = ((1, 101), (50, 151), (1, 151), (140, 160), (1, 2))
LAST = 159


@pytest.fixture
def ledgers(store: Store) -> Iterator[list[Ledger]]:
    """Two services on one database, as two processes would have them: nothing in common but the database."""
    other = Store(open_engine(store.engine.url.render_as_string(hide_password=False)))
    with ExitStack() as stack:
        running = [stack.enter_context(opened(one)) for one in (store, other)]
        driver = Driver(running[0], History(0, {}), RUN)
        driver.open()
        driver.post(Declaration(ATTEMPT, 0, None, {"dp": RANKS}, {}, None))
        yield running
    other.engine.dispose()


def targets(rank: int, seq: int) -> int:
    """What an event counts; another number for each."""
    return 1000 * rank + seq


def submit(ledger: Ledger, ranks: Sequence[int], span: tuple[int, int]) -> dict[str, Any]:
    """Post the events [start, stop) of some ranks in one batch."""
    numbers = [*range(*span)]
    entries = []
    for rank in ranks:
        columns: dict[str, list[object]] = {"seq": [*numbers], "update": [*numbers], "outcome": ["applied"] * len(numbers)}
        columns["valid_targets"] = [targets(rank, seq) for seq in numbers]
        entries.append(RankEvents(rank, "w0", {"updates": columns}))
    return ledger.ingestion.submit(PROJECT, RUN, ATTEMPT, entries)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What calls give that are made at the same moment in threads of their own."""
    barrier, answers = threading.Barrier(len(calls)), [None] * len(calls)
    failures: list[BaseException] = []

    def make(place: int, call: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            answers[place] = call()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=make, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return answers


def assert_each_once(ledger: Ledger, answers: list[dict[str, Any]]) -> None:
    """Every event stands once, with its own content, at offsets without a hole; the answers add up."""
    entries = list(export.events(ledger.store, PROJECT, RUN))
    assert [entry["offset"] for entry in entries] == list(range(1, len(entries) + 1))
    posted = [entry for entry in entries if entry["kind"] == "updates"]
    found = Counter((entry["rank"], entry["seq"]) for entry in posted)
    assert found == Counter(itertools.product(range(RANKS), range(1, LAST + 1)))
    assert all(entry["valid_targets"] == targets(entry["rank"], entry["seq"]) for entry in posted)
    assert sum(answer["accepted"] for answer in answers) == RANKS * LAST
    assert not [answer for answer in answers if answer["rejected"]]
    report = ledger.exposure(RUN)
    right = sum(targets(rank, seq) for rank in range(RANKS) for seq in range(1, LAST + 1))
    assert report["balance"]["valid_targets"]["attempted"] == report["balance"]["valid_targets"]["pending"] == right
    assert (report["updates"]["applied"], report["as_of"]["events"]) == (LAST, len(entries))


def test_overlapping_resends_from_threads_store_each_event_once(ledgers: list[Ledger]) -> None:
    calls = [lambda rank=rank, span=span: submit(ledgers[0], [rank], span) for rank in range(RANKS) for span in SPANS]
    assert_each_once(ledgers[0], at_once(*calls))


def test_overlapping_resends_to_two_services_store_each_event_once(ledgers: list[Ledger]) -> None:
    answers = []
    for _ in range(ROUNDS):
        calls = [
            lambda ledger=ledger, rank=rank, span=span: submit(ledger, [rank], span)
            for rank in range(RANKS)
            for ledger, span in zip(itertools.cycle(ledgers), SPANS, strict=False)
        ]
        answers += at_once(*calls)
    for ledger in ledgers:
        assert_each_once(ledger, answers)


def test_batches_of_several_ranks_in_opposite_orders_never_wait_for_each_other(ledgers: list[Ledger]) -> None:
    orders = (range(RANKS), range(RANKS - 1, -1, -1))
    calls = [
        lambda ledger=ledger, ranks=ranks, span=span: submit(ledger, list(ranks), span)
        for span in SPANS
        for ledger, ranks in zip(ledgers, orders, strict=True)
    ]
    assert_each_once(ledgers[1], at_once(*calls))


def test_a_conflict_is_told_though_both_arrive_at_once(ledgers: list[Ledger]) -> None:
    def say(ledger: Ledger, value: int) -> dict[str, Any]:
        columns: dict[str, list[object]] = {"seq": [1], "update": [1], "outcome": ["applied"], "valid_targets": [value]}
        return ledger.ingestion.submit(PROJECT, RUN, ATTEMPT, [RankEvents(0, "w0", {"updates": columns})])

    answers = at_once(*(lambda ledger=ledger, value=value: say(ledger, value) for value, ledger in enumerate(ledgers * 3)))
    assert sum(answer["accepted"] for answer in answers) == 1
    assert [item["code"] for answer in answers for item in answer["rejected"]] == ["event_conflict"] * 5


def test_attempts_opened_at_once_have_one_ordinal_each(ledgers: list[Ledger]) -> None:
    body = {"resumed_from": None, "layout": {"dp": RANKS}, "conventions": {}, "rank": None, "started_at": None}
    calls = [
        lambda ledger=ledger, name=name: registration.open_attempt(ledger.store, PROJECT, RUN, name, body, now())[0]
        for name in ("b", "c", "d")
        for ledger in ledgers * 2
    ]
    ordinals = {answer["attempt"]: answer["ordinal"] for answer in at_once(*calls)}
    assert sorted(ordinals.values()) == [2, 3, 4]
    assert all(answer["ordinal"] == ordinals[answer["attempt"]] for answer in at_once(*calls))


def test_a_reader_always_sees_what_was_acknowledged_and_a_balance_that_holds(ledgers: list[Ledger]) -> None:
    acknowledged = 0
    done = threading.Event()
    offsets: list[int] = []

    def write() -> None:
        nonlocal acknowledged
        try:
            for start in range(1, LAST + 1, 3):
                acknowledged += submit(ledgers[0], range(RANKS), (start, start + 3))["accepted"]
        finally:
            done.set()

    def read() -> None:
        while not done.is_set():
            before = acknowledged
            balance = ledgers[1].exposure(RUN)
            assert balance["as_of"]["events"] >= before + 2
            valid = balance["balance"]["valid_targets"]
            assert valid["attempted"] == valid["pending"]
            assert balance["updates"]["attempted"] == balance["updates"]["applied"]
            offsets.append(balance["as_of"]["events"])

    at_once(write, read)
    assert offsets == sorted(offsets)
    assert_each_once(ledgers[1], [{"accepted": acknowledged, "rejected": []}])
