"""Who grew out of whom: the order of attempts, resume points, the head and its path."""

import numpy as np
import pytest

from ledger.domain.intervals import Intervals
from ledger.domain.trajectory import (
    Attempt,
    Resume,
    Save,
    Start,
    Tree,
    accepted_on,
    lies_before,
    recomputed_numbers,
    tree_of,
)


def attempt(ordinal: int, resumed_from: Resume | None = None, started_at: int | None = None, numbers: int = 0) -> Attempt:
    """An attempt named after its ordinal that has attempted the updates up to a number."""
    return Attempt(ordinal, f"a{ordinal}", (resumed_from,), started_at=started_at, numbers=Intervals.of([(1, numbers + 1)]))


def saved(owner: int, name: str, update: int, *, accepted: bool = True, rejected: bool = False, seq: int = 10) -> Save:
    """A save of an attempt."""
    return Save(owner, name, update, accepted, rejected, (Start(0, "w0", seq),))


def path(tree: Tree) -> list[tuple[int, int, int | None]]:
    """The trajectory of the head: (attempt, after, through)."""
    return [(part.attempt, part.after, part.through) for part in tree.path(tree.head)]


def test_the_trajectory_is_the_head_and_each_ancestor_up_to_where_its_child_left_it() -> None:
    attempts = [attempt(1), attempt(2, Resume("c4")), attempt(3, Resume("c6"))]
    tree = tree_of(attempts, [saved(1, "c4", 4), saved(2, "c6", 6)])
    assert path(tree) == [(1, 0, 4), (2, 4, 6), (3, 6, None)]


def test_an_attempt_that_is_left_aside_lies_off_the_trajectory() -> None:
    attempts = [attempt(1), attempt(2, Resume("c4")), attempt(3, Resume("c4", "a1"))]
    assert path(tree_of(attempts, [saved(1, "c4", 4)])) == [(1, 0, 4), (3, 4, None)]


def test_without_dates_the_order_of_opening_holds() -> None:
    assert tree_of([attempt(2), attempt(1), attempt(3)], []).order == (1, 2, 3)


def test_dates_order_the_dated_among_the_places_they_were_opened_at() -> None:
    tree = tree_of([attempt(1, started_at=30), attempt(2), attempt(3, started_at=10), attempt(4, started_at=20)], [])
    assert tree.order == (3, 2, 4, 1)
    assert tree.head == 1


def test_a_child_is_newer_than_its_parent_whatever_their_clocks_say() -> None:
    attempts = [attempt(1, started_at=50), attempt(2, Resume("c4", "a1"), started_at=40)]
    tree = tree_of(attempts, [saved(1, "c4", 4)])
    assert (tree.order, tree.head) == ((1, 2), 2)


def test_only_the_child_moves_and_as_little_as_it_must() -> None:
    attempts = [attempt(1, Resume("c4", "a3")), attempt(2), attempt(3), attempt(4)]
    assert tree_of(attempts, [saved(3, "c4", 4)]).order == (2, 3, 1, 4)


def test_an_unknown_save_of_a_named_owner_already_orders_the_attempts() -> None:
    tree = tree_of([attempt(1, Resume("c4", "a2"), started_at=10), attempt(2, started_at=20)], [])
    assert tree.order == (2, 1)


def test_a_named_owner_counts_before_names_are_looked_up() -> None:
    # By its date a3 is older than its parent a1; behind it, it is the newest that was older than a2.
    attempts = [attempt(1, started_at=20), attempt(3, Resume("c4", "a1"), started_at=10), attempt(2, Resume("last"), started_at=30)]
    tree = tree_of(attempts, [saved(1, "c4", 4), saved(1, "last", 5), saved(3, "last", 6)])
    assert tree.nodes[2].parent == 3


def test_names_that_go_in_a_circle_resolve_at_most_one() -> None:
    tree = tree_of([attempt(1, Resume("c", "a2")), attempt(2, Resume("c", "a1"))], [saved(1, "c", 1), saved(2, "c", 1)])
    assert sorted(tree.order) == [1, 2]
    assert sum(node.parent is not None for node in tree.nodes.values()) == 1


def test_a_name_means_the_newest_save_in_the_newest_older_attempt() -> None:
    attempts = [attempt(1), attempt(2), attempt(3, Resume("latest"))]
    saves = [saved(1, "latest", 9), saved(2, "latest", 2), saved(2, "latest", 4)]
    assert path(tree_of(attempts, saves)) == [(2, 0, 4), (3, 4, None)]


def test_a_name_may_say_its_owner_and_its_update() -> None:
    saves = [saved(1, "latest", 3), saved(1, "latest", 5), saved(2, "latest", 4)]
    owner_named = tree_of([attempt(1), attempt(2), attempt(3, Resume("latest", "a1"))], saves)
    assert path(owner_named) == [(1, 0, 5), (3, 5, None)]
    update_named = tree_of([attempt(1), attempt(2), attempt(3, Resume("latest", "a1", 3))], saves)
    assert path(update_named) == [(1, 0, 3), (3, 3, None)]


def test_a_parent_that_was_opened_later_is_found_where_dates_do_not_forbid_it() -> None:
    undated = tree_of([attempt(1, Resume("c4")), attempt(2)], [saved(2, "c4", 4)])
    assert (undated.order, path(undated)) == ((2, 1), [(2, 0, 4), (1, 4, None)])
    dated = tree_of([attempt(1, Resume("c4"), started_at=1), attempt(2, started_at=2)], [saved(2, "c4", 4)])
    assert dated.nodes[1].undecided == "unresolved"


def test_resuming_proves_that_a_started_save_is_readable() -> None:
    tree = tree_of([attempt(1), attempt(2, Resume("c4"))], [saved(1, "c4", 4, accepted=False)])
    (save,) = tree.saves
    assert (save.accepted, save.origin) == (True, "resume")


def test_a_rejection_wins_over_an_acceptance_by_resume() -> None:
    tree = tree_of([attempt(1), attempt(2, Resume("c4"))], [saved(1, "c4", 4, accepted=False, rejected=True)])
    assert path(tree) == [(1, 0, 4), (2, 4, None)]
    assert accepted_on(tree.path(tree.head), tree.saves) is None


def test_an_unknown_checkpoint_leaves_the_attempt_unresolved_and_the_trajectory_as_it_was() -> None:
    tree = tree_of([attempt(1, numbers=7), attempt(2, Resume("c4"))], [])
    assert (tree.nodes[2].undecided, tree.head) == ("unresolved", 1)


def test_a_declared_update_makes_the_save_in_the_newest_older_attempt_that_holds_it() -> None:
    attempts = [attempt(1, numbers=9), attempt(2, numbers=6), attempt(3, numbers=3), attempt(4, Resume("lost", None, 5))]
    tree = tree_of(attempts, [])
    assert path(tree) == [(2, 0, 5), (4, 5, None)]
    assert [(save.key, save.accepted, save.origin) for save in tree.saves] == [((2, "lost", 5), True, "declared_on_resume")]


def test_a_declared_update_of_a_named_owner_is_taken_at_once() -> None:
    assert path(tree_of([attempt(1), attempt(2, Resume("lost", "a1", 5))], [])) == [(1, 0, 5), (2, 5, None)]


def test_a_declared_update_that_nobody_holds_is_unresolved() -> None:
    assert tree_of([attempt(1, numbers=3), attempt(2, Resume("lost", None, 5))], []).nodes[2].undecided == "unresolved"


def conflicted(*resolved: Resume | None) -> Attempt:
    """An attempt whose ranks declare different resume points."""
    return Attempt(2, "a2", (Resume("c4"), None), resolved)


def test_nothing_moves_on_one_ranks_word() -> None:
    tree = tree_of([attempt(1, numbers=7), conflicted()], [saved(1, "c4", 4)])
    assert (tree.nodes[2].undecided, tree.head) == ("resume_conflict", 1)


def test_what_descends_from_an_undecided_attempt_is_undecided() -> None:
    tree = tree_of([attempt(1), conflicted(), attempt(3, Resume("c6", "a2"))], [saved(1, "c4", 4), saved(2, "c6", 6)])
    assert (tree.nodes[3].undecided, tree.head) == ("unresolved", 1)


def test_a_resolution_settles_the_resume_point() -> None:
    saves = [saved(1, "c4", 4)]
    assert path(tree_of([attempt(1), conflicted(Resume("c4"))], saves)) == [(1, 0, 4), (2, 4, None)]
    assert path(tree_of([attempt(1), conflicted(Resume("c4"), None)], saves)) == [(2, 0, None)]


@pytest.mark.parametrize(
    ("left", "right", "together"),
    [
        (Resume("c"), Resume("c", "a1"), Resume("c", "a1")),
        (Resume("c", None, 4), Resume("c", "a1"), Resume("c", "a1", 4)),
        (Resume("c"), Resume("d"), None),
        (Resume("c", "a1"), Resume("c", "a2"), None),
        (Resume("c", "a1", 4), Resume("c", "a1", 5), None),
    ],
)
def test_declarations_that_say_more_or_less_of_the_same_agree(left: Resume, right: Resume, together: Resume | None) -> None:
    assert left.agreed(right) == right.agreed(left) == together


def test_a_forked_run_begins_at_the_fork() -> None:
    fork = saved(7, "base", 100)
    tree = tree_of([attempt(1), attempt(2, Resume("base")), attempt(3, Resume("c120"))], [saved(1, "c120", 120)], fork, forked=True)
    assert (tree.nodes[1].after, tree.nodes[2].after) == (100, 100)
    assert path(tree) == [(1, 100, 120), (3, 120, None)]


def test_a_forked_run_whose_fork_is_unknown_is_unresolved() -> None:
    assert tree_of([attempt(1)], [], None, forked=True).nodes[1].undecided == "unresolved"


def test_an_own_save_comes_before_the_fork_of_the_same_name() -> None:
    tree = tree_of([attempt(1), attempt(2, Resume("base"))], [saved(1, "base", 110)], saved(7, "base", 100), forked=True)
    assert tree.nodes[2].after == 110


def test_the_accepted_checkpoint_is_the_newest_on_the_trajectory() -> None:
    saves = [saved(1, "c4", 4), saved(1, "c6", 6), saved(2, "c5", 5), saved(2, "c7", 7, accepted=False), saved(2, "c8", 8, rejected=True)]
    tree = tree_of([attempt(1), attempt(2, Resume("c4"))], saves)
    found = accepted_on(tree.path(tree.head), tree.saves)
    assert found is not None
    assert found.key == (2, "c5", 5)


def test_a_late_acceptance_off_the_trajectory_does_not_matter() -> None:
    tree = tree_of([attempt(1), attempt(2, Resume("c4"))], [saved(1, "c4", 4), saved(1, "c6", 6)])
    found = accepted_on(tree.path(tree.head), tree.saves)
    assert found is not None
    assert found.key == (1, "c4", 4)


def test_numbers_that_an_older_attempt_attempted_are_recomputed() -> None:
    attempts = {item.ordinal: item for item in (attempt(1, numbers=7), attempt(2, numbers=9), attempt(3, numbers=2))}
    again = recomputed_numbers((2, 1, 3), attempts)
    assert {ordinal: spans.to_list() for ordinal, spans in again.items()} == {2: [], 1: [[1, 10]], 3: [[1, 10]]}


def test_a_row_lies_before_a_save_in_the_sequence_that_started_it() -> None:
    save = Save(1, "c", 4, starts=(Start(0, "w0", 10), Start(1, "w1", 5)))
    rank, writer, seq = np.array([0, 0, 0, 1, 1]), ["w0", "w0", "other", "w1", "w1"], np.array([9, 10, 1, 4, 6])
    assert lies_before(save, rank, writer, seq).tolist() == [True, False, False, True, False]


def test_an_attempt_opened_later_never_takes_a_child_from_an_older_one() -> None:
    attempts = [attempt(1, numbers=5), attempt(2, Resume("c4", None, 4)), attempt(3)]
    assert tree_of(attempts, [saved(3, "c4", 4)]).nodes[2].parent == 1


def test_the_fork_is_meant_where_its_name_and_its_update_fit_and_no_own_attempt_is_named() -> None:
    fork = saved(7, "base", 100)
    own = [attempt(1, numbers=103), attempt(2, Resume("base", None, 103)), attempt(3, Resume("base", "a1"))]
    tree = tree_of(own, [], fork, forked=True)
    assert (tree.nodes[2].parent, tree.nodes[2].after) == (1, 103)
    assert tree.nodes[3].parent == 1
    with_later = tree_of([attempt(1), attempt(2, Resume("base")), attempt(3)], [saved(3, "base", 140)], fork, forked=True)
    assert (with_later.nodes[2].parent, with_later.nodes[2].after) == (None, 100)


def test_a_save_that_only_a_resume_declared_can_be_resumed_from_by_its_name() -> None:
    attempts = [attempt(1, numbers=9), attempt(2, Resume("lost", None, 5)), attempt(3, Resume("lost"))]
    assert path(tree_of(attempts, [])) == [(1, 0, 5), (3, 5, None)]
