"""Plain PyTorch loops, under DDP and FSDP2 too: the outcome of an update, its checkpoints, and the layout of a device mesh.

    with Accumulation(run, number, optimizer, scaler) as update:
        for batch in group:
            update.microbatch(**counts_of(batch))
            scaler.scale(loss_of(batch)).backward()
        scaler.step(optimizer)
        scaler.update()

| recorded | when |
|---|---|
| microbatch | when the loop says so |
| applied | at the end of the block, if the optimizer stepped in it and the scaler found no gradient that is not finite |
| skipped, `overflow` | at the end of the block, if the scaler found one; where it cannot say, if its update lowered the scale |
| open | at the end of a block without an optimizer step, or left by an exception |
| checkpoint started | `saving(...)` is entered, or `run.checkpoint(...)` is called |
| checkpoint accepted | `saving(...)` is left, or the future of an asynchronous save is done; rejected where it failed |

Every rank records; DDP and FSDP2 reduce the gradients (FSDP2 also what the scaler found), so all of them see the same outcome. Of a
checkpoint the ranks may all tell: the same is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger_client.declaration import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Literal

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.run import Run
    from ledger_client.update import Update


def found_inf(optimizer: Any, scaler: Any) -> bool | None:
    """Whether the scaler found a gradient that is not finite; None where it cannot say.

    It can from `unscale_` or `step` on, until `update`. Reading it waits for the device, as `GradScaler.step` does by itself.
    """
    if scaler is None or not scaler.is_enabled():
        return None
    # `_found_inf_per_device` makes an entry for an optimizer that it does not know, and `update` would fail on that.
    state = scaler._per_optimizer_states.get(id(optimizer))
    found = state["found_inf_per_device"] if state else {}
    return any(value.item() for value in found.values()) if found else None


def current_scale(scaler: Any) -> float | None:
    """The loss scale as it stands; None where nothing is scaled. Waits for the device."""
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else None


def was_skipped(optimizer: Any, scaler: Any, scale_before: float | None = None) -> bool | None:
    """Whether the step was withheld: by what the scaler found, else by a scale lower than before; None where neither can say."""
    found = found_inf(optimizer, scaler)
    if found is not None:
        return found
    scale = current_scale(scaler)
    return None if scale is None or scale_before is None else scale < scale_before


class Accumulation:
    """One update of a plain loop: a block around its microbatches, the optimizer step and the update of the scaler.

    The outcome may be said outright (`skipped("nonfinite")` where the loop itself withholds a step); then that stands.
    """

    def __init__(self, run: Run, number: int, optimizer: Any, scaler: Any = None) -> None:
        self._update = run.update(number)
        self._watch = StepWatch(optimizer, scaler)
        self._said = False
        self._loss: object = None

    def microbatch(
        self,
        *,
        input_slots: object = None,
        consumed_tokens: object = None,
        valid_targets: object = None,
        samples: object = None,
        loss_sum: object = None,
        ranges: Iterable[Sequence[object]] | None = None,
    ) -> None:
        """Add one forward/backward pass of this rank; as `Update.microbatch`."""
        self._update.microbatch(
            input_slots=input_slots, consumed_tokens=consumed_tokens, valid_targets=valid_targets, samples=samples, loss_sum=loss_sum,
            ranges=ranges,
        )  # fmt: skip

    def reported_loss(self, loss: object) -> None:
        """The loss that the trainer itself reports for this update."""
        self._loss = loss

    def skipped(self, reason: str = "other") -> None:
        """The loop withholds the step, for a reason of its own; as `Update.skipped`."""
        self._said = True
        self._update.skipped(reason, reported_loss=self._loss)

    def abandoned(self) -> None:
        """The update was computed and never committed; as `Update.abandoned`."""
        self._said = True
        self._update.abandoned()

    def __enter__(self) -> Accumulation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watch.end()
        if kind is None and not self._said:
            self._watch.tell(self._update, reported_loss=self._loss)
        self._update.__exit__(kind, error, trace)


class StepWatch:
    """Sees whether an optimizer steps, and whether its scaler withholds the step, from its making until `end`."""

    def __init__(self, optimizer: Any, scaler: Any = None) -> None:
        self.stepped: bool | None = False
        """Whether a step was asked for; None where the optimizer does not say."""
        self.skipped: bool | None = None
        """Whether it was withheld; None where nothing says so."""
        self._optimizer = optimizer
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._scale: float | None = None
        self._undo: Callable[[], None] | None = None
        if self._scaler is not None:
            self._undo = around(self._scaler, "update", before=self._look, after=self._compare)
        elif hasattr(optimizer, "register_step_post_hook"):
            # Nothing scales: then a step that was made was made, and the hook tells only that it was.
            self._undo = optimizer.register_step_post_hook(self._after_step).remove
        else:
            self.stepped = None

    def end(self) -> None:
        """See what is still to be seen, and leave optimizer and scaler as they were."""
        if self._undo is not None:
            self._undo()
            self._undo = None
            self._look()

    def tell(self, update: Update, *, reported_loss: object = None) -> None:
        """Give the update its outcome: none without a step."""
        if self.skipped:
            update.skipped("overflow", reported_loss=reported_loss)
        elif self.skipped is False or (self.stepped and self._scaler is None):
            update.applied(reported_loss=reported_loss)
        elif self.stepped is not False:
            update.outcome_unknown(reported_loss=reported_loss)

    def _after_step(self, optimizer: object, args: object, kwargs: object) -> None:
        self.stepped = True

    def _look(self) -> None:
        """Read what the scaler found, while it still knows: after the step, before its own update."""
        if self._scaler is not None and self.skipped is None and has_stepped(self._optimizer, self._scaler):
            self.stepped = True
            self.skipped = found_inf(self._optimizer, self._scaler)
            self._scale = current_scale(self._scaler) if self.skipped is None else None

    def _compare(self, returned: object) -> None:
        """An optimizer that unscales by itself leaves nothing to read: then a scale that has dropped tells of it."""
        if self._scale is not None:
            self.skipped = was_skipped(self._optimizer, self._scaler, self._scale)
            self._scale = None


def has_stepped(optimizer: Any, scaler: Any) -> bool:
    """Whether the scaler has been asked for a step since its last update, whatever came of it."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return bool(state) and state["stage"].name == "STEPPED"


def around(
    owner: Any, name: str, *, before: Callable[..., object] | None = None, after: Callable[..., object] | None = None
) -> Callable[[], None]:
    """Call something before or after a method of one object; gives what takes it away again.

    `before` is called with nothing, `after` with what the method returned. Neither is called where the method raises.
    """
    inner = getattr(owner, name)
    own = name in vars(owner)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        returned = inner(*args, **kwargs)
        if after is not None:
            after(returned)
        return returned

    setattr(owner, name, wrapped)

    def undo() -> None:
        if own:
            setattr(owner, name, inner)
        else:
            delattr(owner, name)

    return undo


@contextmanager
def saving(
    run: Run, name: str, *, update: int | None = None, uri: str | None = None, positions: Mapping[str, object] | None = None
) -> Iterator[Checkpoint]:
    """A save that is over when the block is left: accepted then, rejected where it raises. The cursor goes into what is saved.

        with saving(run, "step-10", update=10) as checkpoint:
            torch.save({"model": model.state_dict(), "ledger": checkpoint.cursor()}, path)

    A format that takes mappings apart, as that of `torch.distributed.checkpoint` does, is given `json.dumps(checkpoint.cursor())`.
    """
    checkpoint = run.checkpoint(name, update=update, uri=uri, positions=positions)
    try:
        yield checkpoint
    except BaseException:
        checkpoint.rejected()
        raise
    checkpoint.accepted()


def accept_when_done(checkpoint: Checkpoint, future: Any) -> None:
    """Accept a checkpoint when the future of its asynchronous save is done; reject it where that failed or was cancelled.

    Takes what `torch.distributed.checkpoint.async_save` gives, or any future with `add_done_callback`.
    """
    getattr(future, "upload_completion", future).add_done_callback(lambda done: _settle(checkpoint, done))


def _settle(checkpoint: Checkpoint, done: Any) -> None:
    if done.cancelled() or done.exception() is not None:
        checkpoint.rejected()
    else:
        checkpoint.accepted()


def mesh_layout(
    mesh: Any,
    *,
    data: Sequence[str] = ("dp", "dp_replicate", "dp_shard", "replicate", "shard", "batch", "fsdp"),
    context: Sequence[str] = ("cp", "context"),
    cp_counts: Literal["shard", "whole"] = "shard",
) -> Layout:
    """The layout of a device mesh over the whole world: its `data` axes hold distinct samples, its `context` axes parts of them.

    All other axes (tensor, pipeline) hold replicas. `cp_counts` says whether a context-parallel rank counts its own slice or the whole
    sequence.
    """
    names = mesh.mesh_dim_names or ("dp",)
    ranks = mesh.mesh
    shards, dp_ranks = [0] * ranks.numel(), [0] * ranks.numel()
    for place, rank in zip(coordinates(tuple(ranks.shape)), ranks.flatten().tolist(), strict=True):
        dp = shard = 0
        for name, size, at in zip(names, ranks.shape, place, strict=True):
            if name in data:
                dp, shard = dp * size + at, shard * size + at
            elif name in context and cp_counts == "shard":
                shard = shard * size + at
        shards[rank], dp_ranks[rank] = shard, dp
    return Layout(shards=shards, dp_ranks=dp_ranks)


def coordinates(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All places of an array of that shape, the last axis fastest.

    >>> list(coordinates((2, 2)))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in coordinates(shape[1:]):
            yield (first, *rest)
