"""Counts of a microbatch from its arrays: slots, tokens drawn, targets scored.

Nothing is imported: whatever has `shape`, slices, comparisons and `sum()` will do (NumPy, torch, JAX, CuPy). A count is given as the
library gives it, an array of one element that stays on its device, so that no call makes the host wait; a record call takes it as it is.

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
) -> Any:
    """Labels that are scored. Units: targets.

    `shift`: the labels lie at their own tokens and the model's loss shifts them, so the first label of a row is no target; false
    where the loader has shifted them already. `ignore_index`: the label of what is never scored, or None.

    `mask`: true (or not 0) where a label may be scored, false at a prompt or at padding; it lies as the labels do.

    `documents` or `positions` tell of packed rows in which no document may predict the first token of the next one: a number a
    document at each input token, or the place within the document, 0 at its first token. Leave both out where the loss does score
    across boundaries. With labels that are shifted already, the label at a row's end belongs to a token that is not in the row; it
    counts as its label and the mask say.

    Law: equals the sum of the loss weights of a loss that scores exactly these labels with weight 1.
    Raises: ValueError where arrays that lie side by side differ in shape.
    """
    for name, array in (("mask", mask), ("documents", documents), ("positions", positions)):
        if array is not None and tuple(array.shape) != tuple(labels.shape):
            raise ValueError(f"{name} has the shape {tuple(array.shape)}, the labels have {tuple(labels.shape)}")
    scored = (labels == 0) | (labels != 0) if ignore_index is None else labels != ignore_index
    if mask is not None:
        scored = scored & (mask != 0)
    if shift:
        scored = scored[..., 1:]
    inner = scored if shift else scored[..., :-1]
    crossing = inner
    if documents is not None:
        crossing = crossing & (documents[..., 1:] == documents[..., :-1])
    if positions is not None:
        crossing = crossing & (positions[..., 1:] != 0)
    return crossing.sum() if shift else crossing.sum() + scored[..., -1:].sum()
