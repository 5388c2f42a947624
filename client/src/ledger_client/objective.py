"""The loss scale that makes the gradient that of the global token mean, whatever reduces it and whatever divides by the accumulation count.

With R ranks, A microbatches a rank and T valid targets in the accumulation group over all ranks, each microbatch calls backward on its
loss *sum* times

| gradients over the ranks | backward divides by | loss scale |
|---|---|---|
| averaged | 1 | R/T |
| averaged | A | A*R/T |
| added | 1 | 1/T |
| added | A | A/T |

    objective = TokenMean(model)                                     # or reducer="sum", divided_by=A
    group = objective.group([valid_targets(b.labels) for b in batches])
    for b in batches:
        group.loss(loss_sum_of(model, b)).backward()
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from .reduction import add_over_ranks, device_of, rank_count, reducing_group, torch_module
from .verification import Verification, verify_objective

__all__ = [
    "AccumulationGroup", "ScaledGroup", "TokenMean", "Verification", "accumulation_groups", "auxiliary_scale", "loss_scale",
    "verify_objective",
]  # fmt: skip

Reducer = Literal["mean", "sum"]
RemainderPolicy = Literal["renormalize", "carry", "drop"]
Microbatch = TypeVar("Microbatch")


def loss_scale(valid_targets: int, ranks: int = 1, *, reducer: Reducer = "mean", divided_by: int = 1) -> float | None:
    """The factor on each microbatch's loss sum that gives the gradient of the global token mean; None where there are no targets.

    `valid_targets`: those of the whole accumulation group over all ranks. `divided_by`: what the trainer divides each microbatch's loss
    or gradient by on its own, 1 where it does not. That is often the configured accumulation count in a shorter final group too.

    Law: R * divided_by / T where gradients are averaged over R ranks, divided_by / T where they are added.

    >>> loss_scale(36, 2) == 2 / 36
    True
    >>> loss_scale(36, 2, divided_by=4) == 4 * 2 / 36
    True
    >>> loss_scale(36, 2, reducer="sum") == 1 / 36
    True
    >>> loss_scale(0, 2) is None
    True
    """
    return _multiplier(ranks, reducer, divided_by) / valid_targets if valid_targets else None


def auxiliary_scale(microbatches: int, ranks: int = 1, *, reducer: Reducer = "mean", divided_by: int = 1) -> float | None:
    """The factor on each microbatch's auxiliary loss that gives the gradient of its mean over all microbatches of all ranks.

    An auxiliary loss (a load balance, a z-loss) is a mean already, and R/T does not belong on it.

    Law: R * divided_by / N for N microbatches on all ranks together: 1 / A under a mean over R ranks of A microbatches each.

    >>> auxiliary_scale(8, 2) == 1 / 4
    True
    >>> auxiliary_scale(8, 2, divided_by=4)
    1.0
    >>> auxiliary_scale(8, 2, reducer="sum") == 1 / 8
    True
    """
    return _multiplier(ranks, reducer, divided_by) / microbatches if microbatches else None


def _multiplier(ranks: int, reducer: Reducer, divided_by: int) -> int:
    """What undoes the reduction over the ranks and the trainer's own division. Raises: ValueError."""
    if reducer not in ("mean", "sum") or ranks < 1 or divided_by < 1:
        raise ValueError(f"gradients are reduced by mean or sum over at least one rank, not by {reducer!r} over {ranks}, over {divided_by}")
    return (ranks if reducer == "mean" else 1) * divided_by


@dataclass(frozen=True)
class AccumulationGroup(Generic[Microbatch]):
    """Microbatches that one update is made of, or that enter none and are discarded as a remainder."""

    microbatches: Sequence[Microbatch]
    discarded: bool = False


def accumulation_groups(
    epochs: Iterable[Iterable[Microbatch]], accumulation: int, remainder_policy: RemainderPolicy
) -> Iterator[AccumulationGroup[Microbatch]]:
    """The accumulation groups of a rank's microbatches, with what becomes of the last ones of an epoch where they do not fill a group.

    `renormalize`: they are an update of their own, with its own T. `carry`: the next epoch fills the group up; after the last epoch they
    are discarded. `drop`: they are discarded.

    Law: every microbatch lies in exactly one group, in the order of the data.

    >>> [(group.microbatches, group.discarded) for group in accumulation_groups(["abc", "def"], 2, "renormalize")]
    [(['a', 'b'], False), (['c'], False), (['d', 'e'], False), (['f'], False)]
    >>> [(group.microbatches, group.discarded) for group in accumulation_groups(["abc", "de"], 2, "carry")]
    [(['a', 'b'], False), (['c', 'd'], False), (['e'], True)]
    >>> [(group.microbatches, group.discarded) for group in accumulation_groups(["abc", "de"], 2, "drop")]
    [(['a', 'b'], False), (['c'], True), (['d', 'e'], False)]
    """
    if remainder_policy not in ("renormalize", "carry", "drop") or accumulation < 1:
        raise ValueError(f"remainders: renormalize, carry or drop, not {remainder_policy!r}; groups of 1 or more, not {accumulation}")
    begun: list[Microbatch] = []
    for epoch in epochs:
        for microbatch in epoch:
            begun.append(microbatch)
            if len(begun) == accumulation:
                yield AccumulationGroup(begun)
                begun = []
        if begun and remainder_policy != "carry":
            yield AccumulationGroup(begun, discarded=remainder_policy == "drop")
            begun = []
    if begun:
        yield AccumulationGroup(begun, discarded=True)


class TokenMean:
    """The objective of a torch model under DDP, FSDP2 or none of them: the mean over all targets of an accumulation group on all ranks.

    `reducer`: how the ranks' gradients are reduced; FSDP2 adds them after `set_gradient_divide_factor(1.0)`. `divided_by`: as in
    `loss_scale`. `auxiliary`: whether auxiliary losses are averaged over the microbatches alike, or each by its microbatch's targets.
    `process_group`: the ranks over which gradients are reduced, where the model does not say.

    All ranks take part in every group and with as many microbatches, one without targets too.

    Raises: ValueError where the model does not say over which ranks its gradients are reduced.
    """

    def __init__(
        self,
        model: Any,
        *,
        reducer: Reducer = "mean",
        divided_by: int = 1,
        auxiliary: Literal["microbatches", "targets"] = "microbatches",
        process_group: Any = None,
    ) -> None:
        _multiplier(1, reducer, divided_by)
        if auxiliary not in ("microbatches", "targets"):
            raise ValueError(f"auxiliary losses are averaged by microbatches or by targets, not by {auxiliary!r}")
        self.model = model
        self.reducer = reducer
        self.divided_by = divided_by
        self.auxiliary = auxiliary
        self.process_group = reducing_group(model, process_group)
        self.device = device_of(model)

    def group(self, valid_targets: Iterable[Any] | None = None, *, divided_by: int | None = None) -> ScaledGroup:
        """Begin an accumulation group.

        `valid_targets`: the count of each of this rank's microbatches, in their order, integers or tensors. Left out, each is given with
        its loss, and gradients are scaled by `finish` after the last backward. Adds up over the ranks; the host waits for no device.
        """
        return ScaledGroup(self, valid_targets, self.divided_by if divided_by is None else divided_by)


class ScaledGroup:
    """The losses of one accumulation group, scaled: before backward where all counts are known, after the last one otherwise."""

    def __init__(self, objective: TokenMean, valid_targets: Iterable[Any] | None, divided_by: int) -> None:
        self._objective = objective
        self._multiplier = _multiplier(rank_count(objective.process_group), objective.reducer, divided_by)
        self._counts = [] if valid_targets is None else [self._count(count) for count in valid_targets]
        self._deferred = valid_targets is None
        self._used = 0
        self._sums: Any = None if self._deferred else self._added()

    def loss(self, loss_sum: Any, *, valid_targets: Any = None, auxiliary: Any = None) -> Any:
        """What to call backward on for the next microbatch of this rank.

        `loss_sum`: the loss added up over the microbatch's targets, best in float32. `auxiliary`: a loss that is a mean already, with its
        coefficient. `valid_targets` only where the group was begun without counts.

        Raises: ValueError where counts are given twice or not at all, or for more microbatches than counts; or where an auxiliary loss
        is to be averaged by microbatches in a group that is scaled after backward, which would scale it too.
        """
        if self._deferred:
            return self._unscaled(loss_sum, valid_targets, auxiliary)
        if valid_targets is not None:
            raise ValueError("the counts of this group were given when it was begun")
        if self._used == len(self._counts):
            raise ValueError(f"the group was begun with the counts of {len(self._counts)} microbatches")
        count = self._counts[self._used]
        self._used += 1
        loss = _scaled(loss_sum, self.loss_scale)
        if auxiliary is None:
            return loss
        weight = self._by_microbatches() if self._objective.auxiliary == "microbatches" else self.loss_scale * count
        return loss + _scaled(auxiliary, weight)

    def finish(self) -> None:
        """Scale the gradients of a group that was begun without counts; to be called once, after the last backward and before clipping.

        Raises: ValueError where it was finished before.
        """
        if not self._deferred:
            return
        if self._sums is not None:
            raise ValueError("the gradients of this group have been scaled")
        self._sums = self._added()
        scale = self.loss_scale
        with torch_module().no_grad():
            for parameter in self._objective.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale.to(parameter.grad.device))

    @property
    def valid_targets(self) -> Any:
        """T, a tensor of one element on the model's device. Raises: ValueError before `finish` where counts come with the losses."""
        return self._known()[0]

    @property
    def loss_scale(self) -> Any:
        """The factor on each loss sum, a float32 tensor (float64 where the model is); 0 where there are no targets."""
        return self._over(self._known()[0])

    @property
    def no_targets(self) -> bool:
        """Whether there is nothing to average: the step is left out, and the update is `skipped("no_targets")`. Waits for the device."""
        return not bool(self.valid_targets)

    def _unscaled(self, loss_sum: Any, valid_targets: Any, auxiliary: Any) -> Any:
        if self._sums is not None:
            raise ValueError("the gradients of this group have been scaled")
        if valid_targets is None:
            raise ValueError("a group that was begun without counts takes the count of each microbatch with its loss")
        if auxiliary is not None and self._objective.auxiliary != "targets":
            raise ValueError("where gradients are scaled after backward, an auxiliary loss can be averaged by targets only")
        self._counts.append(self._count(valid_targets))
        # Scaled with the rest, this is the mean of the auxiliary loss by targets.
        return loss_sum if auxiliary is None else loss_sum + _scaled(auxiliary, self._counts[-1])

    def _known(self) -> Any:
        if self._sums is None:
            raise ValueError("the counts of this group come with its losses: it is known after `finish` how many there are")
        return self._sums

    def _by_microbatches(self) -> Any:
        return self._over(self._known()[1])

    def _over(self, divisor: Any) -> Any:
        """The multiplier over a count, 0 where that is 0."""
        torch = torch_module()
        parameter = next(iter(self._objective.model.parameters()))
        precision = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        return self._multiplier / divisor.clamp(min=1).to(precision) * (divisor > 0)

    def _count(self, count: Any) -> Any:
        torch, device = torch_module(), self._objective.device
        if isinstance(count, torch.Tensor):
            if count.is_floating_point() or count.dtype == torch.bool or count.numel() != 1:
                raise TypeError(f"a count is one integer, not {count.dtype} of shape {tuple(count.shape)}")
            if count.device.type != "cpu":
                return count.detach().reshape(()).to(device, torch.int64, non_blocking=True)
            count = count.item()
        if isinstance(count, bool):
            raise TypeError("a count is one integer, not a truth value")
        # Filled in there by the device itself: copying a number to it would make the host wait.
        return torch.full((), operator.index(count), dtype=torch.int64, device=device)

    def _added(self) -> Any:
        """Targets and microbatches over all ranks, as int64: a float would round them."""
        torch = torch_module()
        own = torch.stack([*self._counts, torch.zeros((), dtype=torch.int64, device=self._objective.device)]).sum()
        microbatches = torch.full((), len(self._counts), dtype=torch.int64, device=self._objective.device)
        return add_over_ranks(torch.stack([own, microbatches]), self._objective.process_group)


def _scaled(loss: Any, scale: Any) -> Any:
    """A loss times a scale, in float32 at least: R/T in half precision would be off by as much as half precision is."""
    torch = torch_module()
    wide = loss if loss.dtype in (torch.float32, torch.float64) else loss.float()
    return wide * scale.to(wide.dtype)
