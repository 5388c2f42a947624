"""A save is (attempt, name, update): which rows speak of which save."""

from typing import Any

from ledger.domain.checkpoints import CheckpointRow, saves_of_owner
from ledger.domain.trajectory import Save, Start


def said(seq: int, name: str, state: str, update: int | None = None, **more: Any) -> CheckpointRow:
    """What rank 0 of attempt 1 says of a checkpoint, unless told otherwise."""
    place: dict[str, Any] = {"attempt": 1, "rank": 0, "writer": "w0", "owner": "a1", "uri": None, "positions": None, "seconds": None}
    place |= more
    return CheckpointRow(seq=seq, checkpoint=name, state=state, update=update, **place)


def told(*rows: CheckpointRow) -> dict[tuple[str, int], tuple[bool, bool]]:
    """What becomes of the saves, whatever order the rows come in: (accepted, rejected) by name and update."""
    forwards, backwards = saves_of_owner(1, rows), saves_of_owner(1, reversed(rows))
    assert forwards == backwards
    return {(save.checkpoint, save.update): (save.accepted, save.rejected) for save in forwards}


def test_a_save_lives_from_its_start_to_its_acceptance_or_rejection() -> None:
    assert told(said(1, "c4", "started", 4)) == {("c4", 4): (False, False)}
    assert told(said(1, "c4", "started", 4), said(2, "c4", "accepted")) == {("c4", 4): (True, False)}
    assert told(said(1, "c4", "started", 4), said(2, "c4", "rejected")) == {("c4", 4): (False, True)}


def test_an_accepted_save_can_be_rejected_and_that_wins_in_any_order() -> None:
    assert told(said(1, "c4", "started", 4), said(2, "c4", "rejected"), said(3, "c4", "accepted")) == {("c4", 4): (True, True)}


def test_a_state_without_an_update_belongs_to_the_nearest_earlier_start_in_its_own_sequence() -> None:
    rows = (said(1, "latest", "started", 4), said(2, "latest", "accepted"), said(3, "latest", "started", 8), said(4, "latest", "rejected"))
    assert told(*rows) == {("latest", 4): (True, False), ("latest", 8): (False, True)}
    later_elsewhere = said(9, "latest", "started", 12, rank=1)
    assert told(*rows, later_elsewhere)["latest", 12] == (False, False)


def test_a_state_may_say_the_update_itself() -> None:
    rows = (said(1, "latest", "started", 4), said(2, "latest", "started", 8), said(3, "latest", "accepted", 4))
    assert told(*rows) == {("latest", 4): (True, False), ("latest", 8): (False, False)}


def test_the_same_name_at_two_updates_is_two_saves() -> None:
    assert set(told(said(1, "latest", "started", 4), said(2, "latest", "started", 8))) == {("latest", 4), ("latest", 8)}


def test_an_acceptance_with_an_update_and_no_start_stands_for_both() -> None:
    (save,) = saves_of_owner(1, [said(5, "c4", "accepted", 4)])
    assert (save.accepted, save.starts) == (True, (Start(0, "w0", 5),))
    (with_start,) = saves_of_owner(1, [said(3, "c4", "started", 4), said(5, "c4", "accepted", 4)])
    assert with_start.starts == (Start(0, "w0", 3),)


def test_another_attempt_may_reject_a_save() -> None:
    rows = (said(1, "c4", "started", 4), said(2, "c4", "accepted"), said(1, "c4", "rejected", attempt=2))
    assert told(*rows) == {("c4", 4): (True, True)}


def test_a_save_keeps_its_positions_its_place_and_the_longest_time() -> None:
    position = {"train": {"epoch": 0, "position": 4}}
    rows = [
        said(1, "c4", "started", 4, positions=position, seconds=0.5),
        said(2, "c4", "accepted", uri="s3://bucket/c4", seconds=3.0),
        said(1, "c4", "accepted", 4, rank=1, seconds=2.0),
    ]
    assert saves_of_owner(1, rows) == [Save(1, "c4", 4, True, False, (Start(0, "w0", 1),), position, "s3://bucket/c4", 3.0)]


def test_a_row_whose_save_cannot_be_told_makes_none() -> None:
    assert saves_of_owner(1, [said(2, "c4", "accepted")]) == []


def test_a_state_never_belongs_to_a_save_that_began_after_it() -> None:
    # The start that the acceptance means has not arrived yet; the one that has, came later.
    later = said(7, "latest", "started", 8)
    assert told(said(4, "latest", "accepted"), later) == {("latest", 8): (False, False)}
    arrived = told(said(4, "latest", "accepted"), later, said(3, "latest", "started", 4))
    assert arrived == {("latest", 4): (True, False), ("latest", 8): (False, False)}


def test_a_state_may_follow_an_acceptance_that_stood_for_its_start() -> None:
    rows = (said(1, "latest", "accepted", 4), said(2, "latest", "rejected"), said(3, "latest", "started", 8))
    assert told(*rows) == {("latest", 4): (True, True), ("latest", 8): (False, False)}
