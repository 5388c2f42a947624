"""Laws of the arithmetic alone: whatever rows ranks may post, in whatever order."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from event_rows import events_of
from ledger.domain.checkpoints import CheckpointRow, saves_of_owner
from ledger.domain.coverage import EFFECTIVE, PASSED, WITHOUT_EFFECT, Drawn, coverage_of
from ledger.domain.exposure import BUCKETS, FATES, MATRIX_OUTCOMES, Fates, Total, balance_of, matrix_of
from ledger.domain.intervals import Intervals
from ledger.domain.layout import Layout, layout_of
from ledger.domain.quantities import LARGEST_COUNT, QUANTITIES
from ledger.domain.trajectory import Attempt, Resume, Save, Segment, Start, tree_of
from ledger.domain.updates import Groups, Resolution, fold_discards, fold_updates

QUICK = settings(max_examples=60, derandomize=True, database=None, deadline=None)
LAYOUTS = [layout_of(declared) for declared in ({"dp": 1}, {"dp": 2}, {"dp": 2, "tp": 2}, {"dp": 1, "cp": 2}, {"dp": 2, "cp": 2})]
COUNTS = st.one_of(st.none(), st.integers(0, 4), st.integers(LARGEST_COUNT - 2, LARGEST_COUNT))
SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=8)


@st.composite
def rows_of_updates(draw: st.DrawFn) -> tuple[Layout, list[dict[str, Any]]]:
    """Rows of a few groups that may contradict each other in every way."""
    layout = draw(st.sampled_from(LAYOUTS))
    rows = []
    for seq in range(1, draw(st.integers(1, 12)) + 1):
        row: dict[str, Any] = {"rank": draw(st.integers(0, layout.world_size - 1)), "seq": seq}
        row |= {"writer": draw(st.sampled_from(("w0", "w1"))), "update": draw(st.integers(1, 2))}
        row |= {"retry": draw(st.sampled_from((None, 0, 1)))}
        row |= {"outcome": draw(st.sampled_from(("applied", "applied", "skipped", "abandoned", "open", None)))}
        row |= {"reason": draw(st.sampled_from(("overflow", "spike_guard", None))), "seconds": draw(st.sampled_from((None, 0.5, 1.0)))}
        row |= {"loss_sum": draw(st.sampled_from((None, 1.0, 2.0, "NaN"))), "reported_loss": draw(st.sampled_from((None, 1.0, 2.0)))}
        row |= {"schedule_step": draw(st.sampled_from((None, 1, 2))), **{name: draw(COUNTS) for name in QUANTITIES}}
        row["ranges"] = draw(st.none() | SPANS.map(lambda spans: [["train", 0, *span] for span in spans]))
        row["participants"] = draw(st.none() | st.just([0]))
        rows.append(row)
    return layout, rows


def plain(groups: Groups) -> list[Any]:
    """All that groups say, in the order of their places."""
    found = []
    for place in range(len(groups)):
        said = [groups.number, groups.retry, groups.part, groups.outcome, groups.shards_expected, groups.shards_reported, groups.dp_count]
        known = [int(groups.known[name][place]) for name in QUANTITIES]
        lacking = [int(groups.unknown[name][place]) for name in QUANTITIES]
        floats = [groups.loss, groups.token_mean, groups.mean_of_rank_means, groups.reported_loss, groups.seconds]
        once = [float(item.values[place]) if item.present[place] else None for item in floats]
        once += [int(groups.schedule_step[place]), int(groups.nonfinite_ranks[place])]
        found.append([*(int(array[place]) for array in said), groups.reason[place], known, lacking, groups.ranges.to_list()[place], once])
    kinds = {(item.kind, item.quantity, int(groups.number[item.group]), int(groups.retry[item.group])) for item in groups.disagreements}
    return [found, sorted(kinds)]


@QUICK
@given(rows_of_updates(), st.randoms(use_true_random=False))
def test_the_order_of_rows_never_matters(case: tuple[Layout, list[dict[str, Any]]], random: Any) -> None:
    layout, rows = case
    shuffled = random.sample(rows, len(rows))
    resolutions = [Resolution(1, 0, 0, None), Resolution(2, 0, None, "skipped")]
    for chosen in ([], resolutions):
        assert plain(fold_updates(events_of("updates", rows), layout, chosen)) == plain(
            fold_updates(events_of("updates", shuffled), layout, chosen)
        )


@QUICK
@given(rows_of_updates())
def test_updates_fold_alone_as_they_fold_together(case: tuple[Layout, list[dict[str, Any]]]) -> None:
    layout, rows = case
    together = plain(fold_updates(events_of("updates", rows), layout))[0]
    apart = []
    for number in sorted({row["update"] for row in rows}):
        apart += plain(fold_updates(events_of("updates", [row for row in rows if row["update"] == number]), layout))[0]
    assert together == apart


@QUICK
@given(rows_of_updates())
def test_a_replica_that_says_the_same_changes_nothing(case: tuple[Layout, list[dict[str, Any]]]) -> None:
    layout, rows = case
    again = [{**row, "writer": row["writer"] + "-again"} for row in rows]
    assert plain(fold_updates(events_of("updates", rows), layout)) == plain(fold_updates(events_of("updates", rows + again), layout))


@QUICK
@given(st.sampled_from(LAYOUTS), st.lists(st.integers(LARGEST_COUNT - 3, LARGEST_COUNT), min_size=4, max_size=4), st.integers(1, 3000))
def test_sums_are_exact(layout: Layout, counts: list[int], updates: int) -> None:
    rows = [{"rank": rank, "update": 1, "valid_targets": counts[layout.shards[rank]]} for rank in range(layout.world_size)]
    groups = fold_discards(events_of("discards", rows), layout)
    right = sum(counts[shard] for shard in set(layout.shards.tolist()))
    assert groups.known["valid_targets"].tolist() == [right]
    books = [Total(1, number, "applied", None, recomputed=False, updates=1, attempts=1) for number in range(1, updates + 1)]
    for total in books:
        total.known["valid_targets"] = right
    balance = balance_of(matrix_of(books, [], Fates((Segment(1, 0, None),), None, ())), "valid_targets")
    assert balance["attempted"] == balance["pending"] == updates * right


@st.composite
def books(draw: st.DrawFn) -> list[Total]:
    """Totals of three attempts, some of them with counts that are not known."""
    found = []
    for _ in range(draw(st.integers(0, 12))):
        outcome = draw(st.sampled_from(MATRIX_OUTCOMES))
        attempt, first, again = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.booleans())
        total = Total(attempt, first, outcome, None, recomputed=again, updates=1, attempts=1)
        for name in QUANTITIES:
            total.known[name], total.unknown[name] = draw(st.integers(0, 2**70)), draw(st.sampled_from((0, 0, 1)))
        found.append(total)
    return found


@QUICK
@given(books(), st.sets(st.integers(1, 3)), st.integers(0, 9), st.integers(0, 9))
def test_the_balance_always_holds(totals: list[Total], undecided: set[int], left_at: int, accepted_at: int) -> None:
    path = (Segment(1, 0, Save(1, "c", left_at)), Segment(2, left_at, None))
    matrix = matrix_of(totals, [], Fates(path, Save(2, "d", accepted_at, accepted=True), undecided))
    for quantity in QUANTITIES:
        balance = balance_of(matrix, quantity)
        known = balance.get("known", balance)
        assert known["attempted"] == sum(known[bucket] for bucket in BUCKETS) == sum(total.known[quantity] for total in totals)
        cells = [matrix.cell(outcome, fate, quantity) for outcome in MATRIX_OUTCOMES for fate in FATES]
        assert sum(count for count, _ in cells) == known["attempted"]
        assert (balance["attempted"] is None) == any(total.unknown[quantity] for total in totals)


@QUICK
@given(SPANS, SPANS)
def test_intervals_are_sets_of_integers(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    def members(spans: Any) -> set[int]:
        return {value for start, stop in spans for value in range(start, stop)}

    one, other = Intervals.of(left), Intervals.of(right)
    for result, expected in (
        (one, members(left)),
        (one.union(other), members(left) | members(right)),
        (one.minus(other), members(left) - members(right)),
        (Intervals.of_numbers(np.array(sorted(members(left)), dtype=np.int64)), members(left)),
    ):
        assert members(result) == expected
        assert all(stop < start for (_, stop), (start, _) in zip(result.spans, result.spans[1:], strict=False))
    values = np.arange(30)
    assert one.mask(values).tolist() == [value in members(left) for value in range(30)] == [one.holds(value) for value in range(30)]
    assert (one.first, one.last) == ((min(members(left)), max(members(left))) if members(left) else (None, None))


@QUICK
@given(SPANS, SPANS, SPANS)
def test_coverage_counts_each_position(
    applied: list[tuple[int, int]], skipped: list[tuple[int, int]], passed: list[tuple[int, int]]
) -> None:
    parts = [(EFFECTIVE, applied), (WITHOUT_EFFECT, skipped), (PASSED, passed)]
    drawn = [
        Drawn("train", 0, effect, np.array([start for start, _ in spans], np.int64), np.array([stop for _, stop in spans], np.int64))
        for effect, spans in parts
        if spans
    ]
    times = [sum(start <= place < stop for start, stop in applied) for place in range(30)]
    idle = [any(start <= place < stop for start, stop in skipped) for place in range(30)]
    jumped = [any(start <= place < stop for start, stop in passed) for place in range(30)]
    top = max((place for place in range(30) if times[place] or idle[place]), default=-1)
    for item in coverage_of(drawn):
        assert item.times_seen == {seen: times.count(seen) for seen in set(times) - {0}}
        assert item.effective_total == sum(times)
        assert item.repeated == Intervals.of((place, place + 1) for place in range(30) if times[place] > 1)
        assert item.without_effect == Intervals.of((place, place + 1) for place in range(30) if idle[place] and not times[place])
        gaps = [place for place in range(top) if not (times[place] or idle[place] or jumped[place])]
        assert item.gaps == Intervals.of((place, place + 1) for place in gaps)


@QUICK
@given(st.data())
def test_the_order_of_checkpoint_rows_never_matters(data: st.DataObject) -> None:
    states = st.sampled_from(("started", "accepted", "rejected"))
    rows = [
        CheckpointRow(data.draw(st.integers(1, 2)), 0, "w0", seq, "a1", "latest", state, update, None, None, None)
        for seq, (state, update) in enumerate(data.draw(st.lists(st.tuples(states, st.none() | st.integers(1, 3)), max_size=8)))
        if state != "started" or update is not None
    ]
    shuffled = data.draw(st.permutations(rows))
    assert saves_of_owner(1, rows) == saves_of_owner(1, shuffled)


@st.composite
def families(draw: st.DrawFn) -> tuple[list[Attempt], list[Save]]:
    """Attempts that resume from each other's saves, some of them from saves that nobody knows."""
    attempts, saves = [], []
    for ordinal in range(1, draw(st.integers(1, 6)) + 1):
        owner = draw(st.none() | st.integers(1, 6).map(lambda number: f"a{number}"))
        resume = draw(st.none() | st.builds(Resume, st.sampled_from(("c", "d")), st.just(owner), st.none() | st.integers(1, 3)))
        numbers = Intervals.of([(1, draw(st.integers(1, 5)))])
        attempts.append(Attempt(ordinal, f"a{ordinal}", (resume,), (), draw(st.none() | st.integers(0, 9)), numbers=numbers))
        names = draw(st.sets(st.sampled_from(("c", "d"))))
        saves += [Save(ordinal, name, draw(st.integers(1, 3)), starts=(Start(0, "w0", 1),)) for name in names]
    return attempts, saves


@QUICK
@given(families(), st.randoms(use_true_random=False))
def test_every_attempt_has_one_place_behind_its_parent(case: tuple[list[Attempt], list[Save]], random: Any) -> None:
    attempts, saves = case
    tree = tree_of(attempts, saves)
    assert sorted(tree.order) == [attempt.ordinal for attempt in attempts]
    for ordinal, node in tree.nodes.items():
        assert node.parent is None or tree.order.index(node.parent) < tree.order.index(ordinal)
        path = tree.path(ordinal)
        assert [part.attempt for part in path][-1] == ordinal
        assert len({part.attempt for part in path}) == len(path)
    other = tree_of(random.sample(attempts, len(attempts)), random.sample(saves, len(saves)))
    assert (other.order, other.nodes) == (tree.order, tree.nodes)
