"""Counts of torch and JAX arrays: the same as of NumPy, on their device, compiled too; and equal to the terms of the library's own loss."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.loss.loss_utils import ForCausalLMLoss

import ledger_client
from ledger_client.counting import consumed_tokens, input_slots, valid_targets
from ledger_client.testing import CapturingTransport

NO = -100
VOCABULARY = 11
LIBRARIES: dict[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}

LABELS = [[NO, NO, 12, NO, 21, 22, NO, NO], [1, 2, 3, 4, 5, 6, 7, 8]]
DOCUMENTS = [[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 2, 2, 3, 4]]
POSITIONS = [[0, 1, 2, 0, 1, 2, 0, 1], [0, 1, 2, 3, 0, 1, 0, 0]]
MASK = [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 1, 1]]
"""Row one: a prompt of two and an answer of one, a prompt of one and an answer of two, padding. Row two: documents of 4, 2, 1 and 1."""


@pytest.fixture(params=list(LIBRARIES))
def array(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes an array of one of the libraries from rows and a type."""
    make = LIBRARIES[request.param]
    return lambda rows, kind="int32": make(np.array(rows, dtype=kind))


@pytest.mark.parametrize("kind", ["int32", "int64", "int16"])
def test_hand_counted_rows(array: Callable[..., Any], kind: str) -> None:
    labels, documents, positions = array(LABELS, kind), array(DOCUMENTS), array(POSITIONS)
    assert input_slots(labels) == 16
    # Row one: 12, 21, 22. Row two: all but its first label, which nothing predicts.
    assert int(valid_targets(labels)) == 3 + 7
    # Of row two, documents of 4, 2, 1 and 1 leave 3 + 1.
    assert int(valid_targets(labels, documents=documents)) == int(valid_targets(labels, positions=positions)) == 3 + 4
    # Shifted by the loader: labels at a document's last place cross; 12 and 22 lie there, 4, 6 and 7 too. 8 at the row's end counts.
    assert int(valid_targets(labels, shift=False)) == 3 + 8
    assert int(valid_targets(labels, shift=False, documents=documents)) == 1 + 5
    assert int(valid_targets(labels, ignore_index=None)) == 14


@pytest.mark.parametrize("kind", ["bool", "int32", "int64", "uint8", "float32"])
def test_masks_of_any_type(array: Callable[..., Any], kind: str) -> None:
    mask = array(MASK, kind)
    assert int(consumed_tokens(mask)) == 13
    assert int(valid_targets(array(LABELS), mask=mask)) == 3 + 6
    assert int(valid_targets(array(LABELS), mask=mask, positions=array(POSITIONS))) == 3 + 3
    assert int(valid_targets(array(LABELS), mask=array(np.zeros((2, 8)), kind))) == 0


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_flat_rows(array: Callable[..., Any], kind: str) -> None:
    labels, starts = array(LABELS[1]), array([0, 4, 6, 7, 8, 8], kind)
    assert int(valid_targets(labels, cu_seqlens=starts)) == int(valid_targets(labels[None], cu_seqlens=starts)) == 4
    assert int(valid_targets(labels, shift=False, cu_seqlens=starts)) == 5


def test_empty_batches(array: Callable[..., Any]) -> None:
    for shape in ((0, 8), (2, 0), (0,)):
        empty = array(np.zeros(shape))
        assert input_slots(empty) == int(consumed_tokens(empty)) == 0
        assert [int(valid_targets(empty, shift=shift, documents=empty)) for shift in (True, False)] == [0, 0]
    assert int(valid_targets(array(np.zeros((1, 0))), cu_seqlens=array([0]))) == 0


def test_bytes_are_all_scored(array: Callable[..., Any]) -> None:
    assert int(valid_targets(array([[1, 156, 2]], "uint8"), shift=False)) == 3


def terms(labels: torch.Tensor, ignore_index: int = NO) -> int:
    """For how many labels torch's cross entropy has a term: the rows of logits that its sum depends on."""
    logits = torch.randn(labels.numel(), VOCABULARY, requires_grad=True)
    F.cross_entropy(logits, labels.reshape(-1), ignore_index=ignore_index, reduction="sum").backward()
    assert logits.grad is not None
    return int((logits.grad != 0).any(-1).sum())


def drawn(seed: int) -> torch.Tensor:
    """Labels of a random batch; of some batches none is scored, of others all."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = (int(size) for size in torch.randint(1, 9, (2,), generator=generator))
    labels = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
    ignored = torch.rand((rows, length), generator=generator) < (seed % 5) / 4
    return labels.masked_fill(ignored, NO)


@pytest.mark.parametrize("seed", range(60))
def test_the_count_is_that_of_the_terms_of_torchs_own_loss(seed: int) -> None:
    labels = drawn(seed)
    other = int(labels.reshape(-1)[0])
    assert int(valid_targets(labels, shift=False)) == terms(labels)
    assert int(valid_targets(labels)) == terms(labels[:, 1:].contiguous())
    ignored = labels.masked_fill(labels == NO, 3)
    assert int(valid_targets(ignored, ignore_index=other, shift=False)) == terms(ignored, other)
    # With boundaries: the loader that blanks the first label of each document makes the same loss.
    starts = torch.rand(labels.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    starts[:, 0] = True
    want = terms(labels.masked_fill(starts, NO)[:, 1:].contiguous())
    documents = starts.cumsum(-1)
    places = torch.arange(labels.shape[1]).expand_as(labels)
    positions = places - torch.where(starts, places, 0).cummax(-1).values
    assert int(valid_targets(labels, documents=documents)) == int(valid_targets(labels, positions=positions)) == want
    flat, flat_starts = labels.reshape(-1), starts.reshape(-1)
    cu_seqlens = torch.cat([flat_starts.nonzero()[:, 0], torch.tensor([flat.numel()])]).int()
    lasts = torch.cat([flat_starts[1:], torch.tensor([False])])
    # An empty document here and there, and starts that are filled up with the end.
    for said in (cu_seqlens, cu_seqlens.repeat_interleave(2), torch.cat([cu_seqlens, cu_seqlens[-1:]])):
        assert int(valid_targets(flat, cu_seqlens=said)) == terms(flat.masked_fill(flat_starts, NO)[1:])
        assert int(valid_targets(flat, shift=False, cu_seqlens=said)) == terms(flat.masked_fill(lasts, NO))


@pytest.mark.parametrize("seed", range(20))
def test_the_count_is_that_of_the_loss_of_transformers(seed: int) -> None:
    """Equal logits give each term the loss log V, so that the sum tells how many there are."""
    labels = drawn(seed)
    logits = torch.zeros(*labels.shape, VOCABULARY, dtype=torch.float64)
    loss = ForCausalLMLoss(logits, labels, VOCABULARY, num_items_in_batch=torch.tensor(1))
    assert int(valid_targets(labels)) == round(float(loss) / math.log(VOCABULARY))


def test_a_count_stays_on_its_device() -> None:
    labels = torch.empty((2, 8), dtype=torch.int64, device="meta")
    for count in (
        valid_targets(labels),
        valid_targets(labels, shift=False, mask=labels, documents=labels, positions=labels),
        valid_targets(labels[:1], cu_seqlens=torch.empty(5, dtype=torch.int32, device="meta")),
        consumed_tokens(labels),
    ):
        # A tensor of this device holds no value: whatever asked for one would have failed.
        assert (count.device.type, tuple(count.shape), count.dtype) == ("meta", (), torch.int64)


def test_counts_are_traced_by_jax() -> None:
    @jax.jit
    def counts(labels: Any, mask: Any, documents: Any, starts: Any) -> Any:
        return (
            valid_targets(labels), valid_targets(labels, shift=False, mask=mask, documents=documents), consumed_tokens(mask),
            valid_targets(labels[1], cu_seqlens=starts), input_slots(labels),
        )  # fmt: skip

    starts = jnp.array([0, 4, 6, 7, 8])
    assert [int(count) for count in counts(jnp.array(LABELS), jnp.array(MASK), jnp.array(DOCUMENTS), starts)] == [10, 6, 13, 4, 16]


def test_counts_are_compiled_by_torch_as_one_graph() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def counts(labels: Any, mask: Any, documents: Any, starts: Any) -> Any:
        return (
            valid_targets(labels), valid_targets(labels, shift=False, mask=mask, documents=documents), consumed_tokens(mask),
            valid_targets(labels[1], cu_seqlens=starts),
        )  # fmt: skip

    tensors = (torch.tensor(rows) for rows in (LABELS, MASK, DOCUMENTS, [0, 4, 6, 7, 8]))
    assert [int(count) for count in counts(*tensors)] == [10, 6, 13, 4]


def test_counts_are_taken_by_a_record_call(array: Callable[..., Any]) -> None:
    capture = CapturingTransport()
    run = ledger_client.start("demo", transport=capture, attempt="a1")
    labels, mask = array(LABELS), array(MASK, "bool")
    with run.update(1) as update:
        update.microbatch(input_slots=input_slots(labels), consumed_tokens=consumed_tokens(mask), valid_targets=valid_targets(labels))
        update.applied()
    assert run.close()
    (row,) = capture.ledger.rows("updates")
    assert (row["input_slots"], row["consumed_tokens"], row["valid_targets"]) == (16, 13, 10)
