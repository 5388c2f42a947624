"""Counts of slots, tokens and targets, each counted by hand from the arrays above it."""

from typing import Any

import pytest

import ledger_client
from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.testing import CapturingTransport

numpy = pytest.importorskip("numpy")

NO = -100


def array(*rows: list[int]) -> Any:
    """A batch of rows."""
    return numpy.array(rows)


def test_padding_takes_slots_and_no_tokens() -> None:
    mask = array([1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1])
    assert input_slots(mask) == 12
    assert consumed_tokens(mask) == 9
    assert consumed_tokens(array([1, 1, 2, 2, 2, 0], [1, 0, 0, 0, 0, 0])) == 6
    assert consumed_tokens(mask.astype(bool)) == 9


def test_a_shifted_row_has_one_target_less_than_tokens() -> None:
    # Row one: 4 tokens, targets at 1, 2, 3. Row two: 2 tokens and padding, one target.
    labels = array([5, 6, 7, 8], [5, 6, NO, NO])
    assert valid_targets(labels) == 4
    assert valid_targets(labels, shift=False) == 6
    assert valid_targets(labels, ignore_index=None) == 6
    assert valid_targets(labels, ignore_index=6, shift=False) == 6


def test_a_first_label_that_is_ignored_takes_nothing_away_when_labels_shift() -> None:
    assert valid_targets(array([NO, 6, 7, 8])) == 3
    assert valid_targets(array([NO, 6, 7, 8]), shift=False) == 3


def test_a_prompt_is_not_scored_and_its_last_token_predicts_the_first_scored_one() -> None:
    # Prompt of three tokens, answer of two: both answer tokens are targets, by ignored labels and by a mask alike.
    assert valid_targets(array([NO, NO, NO, 8, 9])) == 2
    labels, mask = array([5, 6, 7, 8, 9], [5, 6, 7, 8, NO]), array([0, 0, 0, 1, 1], [1, 0, 0, 1, 1])
    assert valid_targets(labels, mask=mask) == 3
    assert valid_targets(labels, mask=mask.astype(bool)) == 3
    assert valid_targets(labels, mask=mask, shift=False) == 4


def test_no_document_predicts_the_first_token_of_the_next_one() -> None:
    # Documents of 3, 2 and 1 tokens: 2 + 1 + 0 targets; across boundaries it would be 5.
    labels, documents, positions = array([1, 2, 3, 4, 5, 6]), array([1, 1, 1, 2, 2, 3]), array([0, 1, 2, 0, 1, 0])
    assert valid_targets(labels) == 5
    assert valid_targets(labels, documents=documents) == 3
    assert valid_targets(labels, positions=positions) == 3
    assert valid_targets(labels, documents=documents, positions=positions) == 3
    # Labels shifted by the loader: the label at a place is the next token, and the last one is that of a token not in the row.
    shifted = array([2, 3, 4, 5, 6, 7])
    assert valid_targets(shifted, shift=False, documents=documents) == 4
    assert valid_targets(array([2, 3, 4, 5, 6, NO]), shift=False, positions=positions) == 3


def test_documents_of_a_flat_row_are_told_by_where_they_start() -> None:
    # The same documents of 3, 2 and 1 tokens, with and without a row axis.
    labels, starts = array([1, 2, 3, 4, 5, 6]), numpy.array([0, 3, 5, 6], dtype=numpy.int32)
    assert valid_targets(labels, cu_seqlens=starts) == 3
    assert valid_targets(labels[0], cu_seqlens=starts) == 3
    assert valid_targets(array([2, 3, 4, 5, 6, 7]), shift=False, cu_seqlens=starts) == 4
    # Starts filled up with the row's end, and an empty document in the middle, change nothing.
    assert valid_targets(labels, cu_seqlens=numpy.array([0, 3, 3, 5, 6, 6, 6])) == 3
    # The second document begins with a label that is not scored anyway: nothing is taken away for it.
    assert valid_targets(array([1, 2, 3, NO, 5, 6]), cu_seqlens=starts) == 3
    assert valid_targets(labels, mask=array([1, 1, 0, 0, 1, 1]), cu_seqlens=starts) == 2
    # What lies behind the last document is apart from it.
    assert valid_targets(labels, cu_seqlens=numpy.array([0, 3, 5])) == 3
    assert valid_targets(numpy.zeros((1, 0), dtype=int), cu_seqlens=numpy.array([0])) == 0


def test_starts_belong_to_one_row_and_say_all() -> None:
    starts = numpy.array([0, 2, 4])
    with pytest.raises(ValueError, match="one flat row"):
        valid_targets(array([1, 2], [3, 4]), cu_seqlens=starts)
    with pytest.raises(ValueError, match="left out"):
        valid_targets(array([1, 2, 3, 4]), cu_seqlens=starts, positions=array([0, 1, 0, 1]))


def test_padding_on_the_left() -> None:
    # Two places of padding, then three tokens. The loss of a shifting model scores the first of them from padding unless it is told.
    labels, mask = array([NO, NO, 7, 8, 9]), array([0, 0, 1, 1, 1])
    assert consumed_tokens(mask) == 3
    assert valid_targets(labels) == 3
    assert valid_targets(labels, positions=array([1, 1, 0, 1, 2])) == 2
    assert valid_targets(array([0, 0, 7, 8, 9]), mask=mask) == 3


def test_rows_in_which_nothing_is_scored() -> None:
    labels = array([NO, NO, NO], [5, NO, NO])
    assert valid_targets(labels) == 0
    assert valid_targets(array([1, 2, 3]), mask=array([0, 0, 0])) == 0
    assert valid_targets(array([1, 2, 3]), mask=array([0, 0, 0]), documents=array([0, 0, 0])) == 0
    assert consumed_tokens(array([0, 0, 0])) == 0


def test_unsigned_labels_hold_no_ignored_one() -> None:
    labels = numpy.array([[1, 156, 2]], dtype=numpy.uint8)
    assert valid_targets(labels, shift=False) == 3
    assert valid_targets(labels, ignore_index=156, shift=False) == 2


def test_packed_rows_with_prompts_and_padding() -> None:
    # Document 1: prompt 10 11, answer 12. Document 2: prompt 20, answer 21 22. Two places of padding. Targets: 12, 21, 22.
    labels = array([10, 11, 12, 20, 21, 22, NO, NO])
    answers = array([0, 0, 1, 0, 1, 1, 1, 1])
    assert valid_targets(labels, mask=answers, documents=array([1, 1, 1, 2, 2, 2, 0, 0])) == 3
    assert valid_targets(labels, mask=answers, cu_seqlens=numpy.array([0, 3, 6, 8])) == 3


def test_a_document_of_one_token_and_an_empty_row_have_no_target() -> None:
    assert valid_targets(array([4], [5])) == 0
    assert valid_targets(numpy.zeros((2, 0), dtype=int)) == 0
    assert valid_targets(numpy.zeros((2, 0), dtype=int), shift=False) == 0
    assert input_slots(numpy.zeros((2, 0))) == 0


def test_rows_of_any_rank() -> None:
    labels = numpy.arange(24).reshape(2, 3, 4)
    assert valid_targets(labels) == 18
    assert valid_targets(numpy.arange(5)) == 4


def test_arrays_of_different_shapes_are_refused() -> None:
    for name in ("mask", "documents", "positions"):
        with pytest.raises(ValueError, match=name):
            valid_targets(array([1, 2, 3]), **{name: numpy.ones(3, dtype=int)})


def test_a_count_of_an_array_is_taken_by_a_record_call(start: Any) -> None:
    capture = CapturingTransport()
    run: ledger_client.Run = start(transport=capture)
    labels, mask = array([5, 6, 7, 8], [5, 6, NO, NO]), array([1, 1, 1, 1], [1, 1, 0, 0])
    with run.update(1) as update:
        update.microbatch(input_slots=input_slots(mask), consumed_tokens=consumed_tokens(mask), valid_targets=valid_targets(labels))
        update.applied()
    assert run.flush()
    (row,) = capture.ledger.rows("updates")
    assert (row["input_slots"], row["consumed_tokens"], row["valid_targets"]) == (8, 6, 4)
