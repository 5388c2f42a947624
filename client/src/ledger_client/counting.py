"""Counts of a microbatch from its arrays: slots, tokens drawn, targets scored.

Nothing is imported: whatever has `shape`, slices, comparisons and `sum()` will do (NumPy, torch, JAX, CuPy), inside `jax.jit` and
`torch.compile` too. A count is given as the library gives it, an array of one element that stays on its device, so that no call makes
the host wait; a record call takes it as it is.

    update.microbatch(input_slots=input_slots(batch.input_ids), consumed_tokens=consumed_tokens(batch.attention_mask),
                      valid_targets=valid_targets(batch.labels, mask=batch.loss_mask, documents=batch.document_ids))
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IGNORED_LABEL = -100


def input_slots(array: Any) -> int:
    """Tensor positions of the inputs, padding included. Units: slots.

    Takes any array with one element a position: the token ids, their mask, the labels.
    """
    slots = 1
    for length in array.shape:
        slots *= int(length)
    return slots


def consumed_tokens(mask: Any) -> Any:
    """Tokens drawn from the data, padding excluded. Units: tokens.

    `mask` is 0 (or false) at padding and anything else at a token, so a mask that holds document numbers from 1 on will do.
    """
    return (mask != 0).sum()


def valid_targets(
    labels: Any,
    ignore_index: int | None = IGNORED_LABEL,
    shift: bool = True,
    *,
    mask: Any = None,
    documents: Any = None,
    positions: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """Labels that are scored. Units: targets.

    `shift`: the labels lie at their own tokens and the model's loss shifts them, so the first label of a row is no target; false
    where the loader has shifted them already. `ignore_index`: the label of what is never scored, or None.

    `mask`: true (or not 0) where a label may be scored, false at a prompt or at padding; it lies as the labels do.

    `documents`, `positions` or `cu_seqlens` tell of packed rows in which no document may predict the first token of the next one: a
    number a document at each input token; the place within the document, 0 at its first token; or, for one flat row, where each
    document starts, and at last where the row ends. Leave all out where the loss does score across boundaries. With labels that are
    shifted already, the label at a row's end belongs to a token that is not in the row; it counts as its label and the mask say.

    Law: equals the number of targets for which the loss has a term, if the loss is given the same labels, mask and boundaries.
    Raises: ValueError where arrays that lie side by side differ in shape, or `cu_seqlens` is given for several rows.
    """
    for name, array in (("mask", mask), ("documents", documents), ("positions", positions)):
        if array is not None and tuple(array.shape) != tuple(labels.shape):
            raise ValueError(f"{name} has the shape {tuple(array.shape)}, the labels have {tuple(labels.shape)}")
    # Unsigned labels hold no negative one; torch would compare them with the number that it wraps to.
    all_scored = ignore_index is None or (ignore_index < 0 and "uint" in str(labels.dtype))
    scored = (labels == 0) | (labels != 0) if all_scored else labels != ignore_index
    if mask is not None:
        scored = scored & (mask != 0)
    inner = scored[..., 1:] if shift else scored[..., :-1]
    if cu_seqlens is not None:
        if documents is not None or positions is not None:
            raise ValueError("cu_seqlens says by itself where documents start: documents and positions are left out")
        count = inner.sum() - _crossing(scored, cu_seqlens, shift)
    else:
        if documents is not None:
            inner = inner & (documents[..., 1:] == documents[..., :-1])
        if positions is not None:
            inner = inner & (positions[..., 1:] != 0)
        count = inner.sum()
    return count if shift else count + scored[..., -1:].sum()


def _crossing(scored: Any, cu_seqlens: Any, shift: bool) -> Any:
    """Scored labels of a flat row that are the first token of a document and not of the row.

    An empty document has no first token: of equal starts one counts. So starts may be filled up with the row's end.
    """
    slots = input_slots(scored)
    if slots != scored.shape[-1]:
        raise ValueError(f"cu_seqlens belongs to one flat row, the labels have the shape {tuple(scored.shape)}")
    if not slots:
        return 0
    starts = cu_seqlens[1:]
    inside = (starts != cu_seqlens[:-1]) & (starts < slots)
    places = (starts if shift else starts - 1).clip(0, slots - 1)
    return (scored.reshape(-1)[places] & inside).sum()
