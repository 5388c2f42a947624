"""Whether a trainer's gradient is that of the global token mean, found out on the user's own model and microbatches.

The reference is made in each process by itself, of the bare model: the gradient of each microbatch's loss sum, added up, divided once
by T. No wrapper, hook, accumulation or loss scale of the trainer has a part in it.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from .diagnosis import Diagnosis, auxiliary_weights, diagnose, weights
from .reduction import Simulation, add_over_ranks, device_of, fsdp_modules, gathered, reducing_group, torch_module

GRADIENT = "gradient"
SHOWN_GROUPS = 12
NOISE = 10
"""A group of microbatches may be off by so much more than the rounding of one gradient."""
COARSEST = 3e-2
"""What is off by more is not rounded."""
FLOOR = 1e-2
"""Of a parameter group whose gradient is a smaller part of the whole, the error is taken relative to this part of the whole: a gradient
that is zero but for rounding, as that of a bias before a normalization, is no error."""

Vectors = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class GroupError:
    """The gradient of one parameter group against the reference: the relative error, and what it is instead."""

    name: str
    error: float
    exact: bool
    factor: float | None
    cause: str


@dataclass(frozen=True)
class Verification:
    """Whether a trainer's gradient is that of the global token mean, and if not, what it is.

    `objective`: the mean whose gradient it is a multiple of, or `none` and the like; `factor`: the multiple, None for 1; `cause`: both in
    words, with R (ranks), A (microbatches of a rank) and T (targets); `error`: the largest of the groups, relative.
    """

    exact: bool
    objective: str
    factor: float | None
    cause: str
    error: float
    groups: tuple[GroupError, ...]
    ranks: int
    accumulation: int
    valid_targets: int
    tolerance: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.ranks} ranks, up to {self.accumulation} microbatches each, {self.valid_targets} targets"
        first = "The gradient is that of the global token mean" if self.exact else "The gradient is not that of the global token mean"
        lines = [f"{first} ({size}).", *([] if self.exact else [f"Cause: {self.cause}."])]
        lines.append(f"Relative error {self.error:.2g}, where {self.tolerance:.2g} is tolerated; by parameter group:")
        worst = sorted(self.groups, key=lambda group: -group.error)
        width = max((len(group.name) for group in worst[:SHOWN_GROUPS]), default=0)
        lines += [f"  {group.name:<{width}}  {group.error:8.2g}  {group.cause}" for group in worst[:SHOWN_GROUPS]]
        lines += [f"  and {len(worst) - SHOWN_GROUPS} more"] if len(worst) > SHOWN_GROUPS else []
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])


def verify_objective(
    model: Any,
    microbatches: Sequence[Any],
    loss_sum: Callable[[Any, Any], Sequence[Any]],
    step: Callable[[Any, Sequence[Any]], None],
    *,
    simulate: Literal["mean", "sum"] | None = None,
    auxiliary: Literal["microbatches", "targets"] = "microbatches",
    reference: Any = None,
    concatenated: Any = None,
    optimizer: Any = None,
    process_group: Any = None,
    tolerance: float | None = None,
) -> Verification:
    """Compare the gradient of a trainer's step with that of the global token mean.

    `loss_sum(model, microbatch)` gives the loss added up over the targets and their count; behind these an auxiliary loss, if the model
    has one, which is averaged as `auxiliary` says. `step(model, microbatches)` does what the trainer does for one accumulation group, up
    to the gradients: zeroing, dividing, scaling and backward, without the optimizer's step.

    In a process group every rank calls this with its own microbatches, and gets the same answer. With `simulate`, a model in one process
    plays several ranks in turn, whose gradients are then averaged or added: `microbatches` holds one list a rank. A `TokenMean` in the
    step sees the counts of all of them.

    `reference`: a bare model of the same shape, which takes over the weights; needed only where the model itself is sharded.
    `concatenated`: all microbatches of all ranks as one, where the examples of a batch are not independent of each other.
    `optimizer`: its parameter groups are reported; else parameters are grouped by the submodules of the model. `tolerance`: of the
    relative error; left out, it follows from the parameters' type and from how one gradient is rounded. Where a sharded model computes
    in half precision and its reference does not, it has to be given.

    The model is in evaluation mode meanwhile, so that dropout draws nothing; its mode, weights, buffers and gradients and the state of
    the random numbers are left as they were found. Memory: about six gradients in float64. Use unequal counts and more than one
    microbatch, else several means are the same.

    Raises: ValueError where the step changes the weights, a sharded model has no reference, or parameters differ from the reference's.
    """
    peers = Alone() if simulate is not None else Peers(reducing_group(model, process_group))
    rows = [list(row) for row in microbatches] if simulate is not None else [list(microbatches)]
    bare = _bare(model, reference)
    notes = ["the model was set to evaluation meanwhile: dropout draws nothing"] if model.training else []
    with _as_found(model, bare):
        wanted = _wanted(bare, rows, loss_sum, peers, concatenated)
        if not wanted.steady:
            notes.append("the loss of a microbatch is another one at each call: something draws random numbers")
        run = _simulated(model, rows, step, simulate) if simulate is not None else _stepped(model, rows[0], step)
        if any(module.training for module in model.modules()):
            notes.append("the step turned training mode on: what dropout draws is taken for an error")
    counts, limit = wanted.counts, wanted.tolerance if tolerance is None else tolerance
    if len({count for row in counts for count in row}) == 1 < sum(map(len, counts)):
        notes.append("all microbatches have the same count, so that no mean can be told from the others: try unequal counts")
    grams = {name: _gram({**wanted.sums, GRADIENT: run}, names) for name, names in _groups(model, optimizer).items()}
    whole, errors = _diagnoses(peers.gathered(grams), counts, limit, auxiliary if wanted.has_auxiliary else None)
    return Verification(
        whole.exact, whole.objective, whole.factor, _cause(whole, errors), max((error.error for error in errors), default=0.0),
        tuple(errors), len(counts), max(map(len, counts)), sum(map(sum, counts)), limit, tuple(notes),
    )  # fmt: skip


def _cause(whole: Diagnosis, errors: Sequence[GroupError]) -> str:
    """What the whole gradient is; where it is nothing by itself and each of its groups is something, that it is not the same."""
    causes = {error.cause for error in errors}
    if whole.objective == "none" and len(causes) > 1:
        return "it is not the same in all parameter groups"
    return whole.cause


def _diagnoses(
    found: Sequence[Mapping[str, Any]], counts: Sequence[Sequence[int]], tolerance: float, auxiliary: str | None
) -> tuple[Diagnosis, list[GroupError]]:
    """What the gradient is, as a whole and by parameter group, the same on all ranks."""
    grams = found[0]
    whole_gram = {a: {b: sum(gram[a][b] for gram in grams.values()) for b in row} for a, row in next(iter(grams.values())).items()}
    size = math.sqrt(max(0.0, whole_gram["token_mean"]["token_mean"]))
    errors, causes = [], []
    for name, gram in grams.items():
        one = diagnose(gram, counts, tolerance, FLOOR * size, auxiliary)
        if any(_differs(gram, other[name], tolerance, FLOOR * size) for other in found[1:]):
            one = Diagnosis("not_reduced", one.error, False)
        causes.append(one)
        errors.append(GroupError(name, one.error, one.exact, one.factor, one.cause))
    whole = diagnose(whole_gram, counts, tolerance, 0.0, auxiliary)
    if any(one.objective == "not_reduced" for one in causes):
        whole = Diagnosis("not_reduced", whole.error, False)
    elif whole.exact and not all(one.exact for one in causes):
        whole = replace(next(one for one in causes if not one.exact), error=whole.error)
        whole = Diagnosis("none", whole.error, False) if len({one.cause for one in causes}) > 1 else whole
    return whole, errors


def _differs(left: Mapping[str, Mapping[str, float]], right: Mapping[str, Mapping[str, float]], tolerance: float, floor: float) -> bool:
    """Whether two ranks hold different gradients, by their inner products with the same vectors."""
    mine, other = left[GRADIENT], right[GRADIENT]
    if not all(map(math.isfinite, (*mine.values(), *other.values()))):
        return False
    size = max(math.sqrt(mine[GRADIENT]), math.sqrt(other[GRADIENT]), floor)
    lengths = {name: size if name == GRADIENT else math.sqrt(max(0.0, left[name][name])) for name in mine}
    return any(abs(mine[name] - other[name]) > tolerance * size * max(lengths[name], floor) for name in mine)


def _bare(model: Any, reference: Any) -> Any:
    """The model without what wraps it, or the reference with the model's weights. Raises: ValueError."""
    torch = torch_module()
    inner = _unwrapped(model)
    if reference is None:
        if fsdp_modules(inner):
            raise ValueError("a sharded model needs a reference: a bare model of the same shape")
        return inner
    mine, theirs = dict(inner.named_parameters()), dict(reference.named_parameters())
    if mine.keys() != theirs.keys():
        raise ValueError(f"the model and the reference differ in parameters: {sorted(mine.keys() ^ theirs.keys())[:5]}")
    with torch.no_grad():
        for name, tensor in [*inner.named_parameters(), *inner.named_buffers()]:
            target = theirs[name] if name in theirs else reference.get_buffer(name)
            target.copy_(_whole(tensor))
    return reference


def _unwrapped(model: Any) -> Any:
    """The model that DDP wraps, or the model itself."""
    return model.module if isinstance(model, torch_module().nn.parallel.DistributedDataParallel) else model


def _whole(tensor: Any) -> Any:
    """A sharded tensor put together, on every rank."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _trained(model: Any) -> dict[str, Any]:
    """The parameters that get a gradient; tied ones once."""
    return {name: parameter for name, parameter in _unwrapped(model).named_parameters() if parameter.requires_grad}


def _tolerance(model: Any) -> float:
    """What rounding may do to the gradient of a group of microbatches, by the coarsest type of the parameters."""
    torch = torch_module()
    coarse = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: COARSEST}
    return max(coarse.get(parameter.dtype, 1e-4) for parameter in model.parameters())


class Peers:
    """The ranks of a process group, each of which has microbatches of its own."""

    def __init__(self, process_group: Any) -> None:
        self._group = process_group

    def gathered(self, value: Any) -> Sequence[Any]:
        """What each rank says, in the order of the ranks."""
        return gathered(value, self._group)

    def counts(self, rows: list[list[int]]) -> tuple[list[list[int]], list[int]]:
        """The counts of all ranks, and which of the ranks are run here."""
        said = [row for rows_of_rank in self.gathered(rows) for row in rows_of_rank]
        return said, [int(torch_module().distributed.get_rank(self._group)) if len(said) > 1 else 0]

    def add(self, tensor: Any) -> None:
        """Add up over the ranks, in place."""
        add_over_ranks(tensor, self._group)


class Alone(Peers):
    """One process that plays all ranks: what it says is all there is."""

    def __init__(self) -> None:
        super().__init__(None)

    def gathered(self, value: Any) -> Sequence[Any]:
        """What is said here."""
        return [value]

    def counts(self, rows: list[list[int]]) -> tuple[list[list[int]], list[int]]:
        """The counts of all ranks; all of them are run here."""
        return rows, list(range(len(rows)))

    def add(self, tensor: Any) -> None:
        """Nothing: all of it is here."""


@dataclass(frozen=True)
class Wanted:
    """The gradients that a trainer's is compared with, and what was seen while they were made."""

    sums: Vectors
    counts: list[list[int]]
    has_auxiliary: bool
    steady: bool
    tolerance: float


def _wanted(
    bare: Any, rows: Sequence[Sequence[Any]], loss_sum: Callable[[Any, Any], Sequence[Any]], peers: Peers, concatenated: Any
) -> Wanted:
    """The gradient of each mean over all microbatches of all ranks."""
    with torch_module().no_grad():
        # Counts come first: the weights of the gradients depend on those of all ranks.
        first = [[_numbers(loss_sum(bare, microbatch)) for microbatch in row] for row in rows]
    counts, ranks = peers.counts([[count for _, count in row] for row in first])
    if not all(counts):
        raise ValueError("each rank takes part with at least one microbatch")
    parameters = _trained(bare)
    of_loss, of_auxiliary = weights(counts), auxiliary_weights(counts)
    sums = _vectors(of_loss, parameters)
    has_auxiliary, steady = False, True
    for row, rank, numbers in zip(rows, ranks, first, strict=True):
        for place, microbatch in enumerate(row):
            parts = loss_sum(bare, microbatch)
            again = _numbers(parts)[0]
            steady = steady and (again == numbers[place][0] or math.isnan(again))
            _add(sums, parameters, parts[0], {name: table[rank][place] for name, table in of_loss.items()})
            if len(parts) > 2:
                sums |= {} if has_auxiliary else _vectors(of_auxiliary, parameters)
                has_auxiliary = True
                _add(sums, parameters, parts[2], {name: table[rank][place] for name, table in of_auxiliary.items()})
    for vector in sums.values():
        for tensor in vector.values():
            peers.add(tensor)
    if concatenated is not None:
        sums |= _of_one_batch(bare, parameters, loss_sum(bare, concatenated))
    largest = max((labels for row in zip(rows, first, strict=True) for labels in zip(*row, strict=True)), key=lambda pair: pair[1][1])[0]
    rounding = _rounding(parameters, bare, loss_sum, largest) if steady else 0.0
    tolerance = max(_tolerance(bare), min(COARSEST, NOISE * max(peers.gathered(rounding))))
    return Wanted(sums, counts, has_auxiliary, steady, tolerance)


def _rounding(parameters: Mapping[str, Any], bare: Any, loss_sum: Callable[[Any, Any], Sequence[Any]], microbatch: Any) -> float:
    """By how much a gradient changes where its loss is scaled by what cannot be written exactly, as a loss scale cannot.

    Under autocast the gradients of float32 parameters are as coarse as what they pass through.
    """
    sums = _vectors(["plain", "scaled"], parameters)
    _add(sums, parameters, loss_sum(bare, microbatch)[0], {"plain": 1.0})
    _add(sums, parameters, loss_sum(bare, microbatch)[0] / 3, {"scaled": 3.0})
    gram = _gram(sums, parameters)
    size = gram["plain"]["plain"]
    off = size - 2 * gram["plain"]["scaled"] + gram["scaled"]["scaled"]
    return math.sqrt(max(0.0, off) / size) if size and math.isfinite(size + off) else 0.0


def _vectors(names: Iterable[str], parameters: Mapping[str, Any]) -> Vectors:
    """A vector of zeros for each name."""
    return {name: {key: _zeros(parameter) for key, parameter in parameters.items()} for name in names}


def _of_one_batch(bare: Any, parameters: Mapping[str, Any], parts: Sequence[Any]) -> Vectors:
    """The token mean of all examples in one forward and backward pass."""
    _, count = _numbers(parts)
    sums = _vectors(["token_mean"], parameters)
    _add(sums, parameters, parts[0], {"token_mean": 1 / count if count else 0.0})
    return sums


def _numbers(parts: Sequence[Any]) -> tuple[float, int]:
    """A loss sum and its count, on the host."""
    return float(parts[0].detach()), int(parts[1])


def _zeros(parameter: Any) -> Any:
    torch = torch_module()
    wide = torch.float32 if parameter.device.type == "mps" else torch.float64
    return torch.zeros(parameter.shape, dtype=wide, device=parameter.device)


def _add(sums: Vectors, parameters: Mapping[str, Any], loss: Any, multiples: Mapping[str, float]) -> None:
    """Add multiples of a loss's gradient. The model's own gradients, and what hangs on them, see nothing of it."""
    torch = torch_module()
    if not getattr(loss, "requires_grad", False):
        return
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            for vector, multiple in multiples.items():
                if multiple:
                    sums[vector][name].add_(gradient.to(sums[vector][name].dtype), alpha=multiple)


def _stepped(model: Any, own: Sequence[Any], step: Callable[[Any, Sequence[Any]], None]) -> dict[str, Any]:
    """The gradient that the trainer leaves behind."""
    _clear(model)
    step(model, own)
    return {name: _wide(parameter) for name, parameter in _trained(model).items()}


def _simulated(
    model: Any, rows: Sequence[Sequence[Any]], step: Callable[[Any, Sequence[Any]], None], reducer: Literal["mean", "sum"]
) -> dict[str, Any]:
    """The gradients that the trainer leaves behind on each rank, reduced. Raises: ValueError where there is no such reducer."""
    if reducer not in ("mean", "sum"):
        raise ValueError(f"simulated ranks are reduced by mean or sum, not by {reducer!r}")
    parameters = _trained(model)
    reduced = {name: _zeros(parameter) for name, parameter in parameters.items()}
    part = 1 / len(rows) if reducer == "mean" else 1.0

    def collect(rank: int) -> None:
        for name, parameter in parameters.items():
            reduced[name].add_(_wide(parameter), alpha=part)

    Simulation(len(rows)).run(lambda rank: step(model, rows[rank]), collect, lambda: _clear(model))
    return reduced


def _clear(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _wide(parameter: Any) -> Any:
    """A parameter's gradient, whole and as wide as the reference; zeros where it has none."""
    if parameter.grad is None:
        return _zeros(parameter)
    gradient = _whole(parameter.grad.detach())
    # A clone: where the gradient is as wide as that already, the next step would write into it.
    return gradient.to(_zeros(gradient[:0] if gradient.ndim else gradient).dtype, copy=True)


def _gram(vectors: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The inner products of the vectors, over some of the parameters."""
    order = list(vectors)
    gram = {name: dict.fromkeys(order, 0.0) for name in order}
    flat = [[vectors[vector][name].reshape(-1) for vector in order] for name in names]
    for index, a in enumerate(order):
        for other, b in enumerate(order[: index + 1]):
            gram[a][b] = gram[b][a] = sum(float(parts[index].dot(parts[other])) for parts in flat)
    return gram


def _groups(model: Any, optimizer: Any) -> dict[str, list[str]]:
    """The names of the parameters by group: the optimizer's groups, else the submodules of the model."""
    trained = _trained(model)
    groups: dict[str, list[str]] = {}
    if optimizer is None:
        for name in trained:
            groups.setdefault(name.split(".")[0], []).append(name)
        return groups
    names = {id(parameter): name for name, parameter in trained.items()}
    for index, group in enumerate(optimizer.param_groups):
        own = [names.pop(id(parameter)) for parameter in group["params"] if id(parameter) in names]
        groups[str(group.get("name", f"group {index}"))] = own
    if names:
        groups["in no group"] = list(names.values())
    return {name: own for name, own in groups.items() if own}


@contextmanager
def _as_found(model: Any, bare: Any) -> Iterator[None]:
    """Evaluation mode, and afterwards everything as it was: modes, weights, buffers, gradients, random numbers.

    Raises: ValueError where weights were changed meanwhile; they have been put back.
    """
    torch = torch_module()
    modes = [(module, module.training) for whole in (model, bare) for module in whole.modules()]
    parameters = list(model.parameters())
    tensors = [(tensor, tensor.detach().clone()) for tensor in [*parameters, *model.buffers()]]
    gradients = [(parameter, parameter.grad, None if parameter.grad is None else parameter.grad.clone()) for parameter in parameters]
    device, numpy = device_of(model), sys.modules.get("numpy")
    pythons, numpys = random.getstate(), None if numpy is None else numpy.random.get_state()
    changed = False
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            for whole in (model, bare):
                whole.eval()
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for index, (tensor, kept) in enumerate(tensors):
                if not torch.equal(_local(tensor), _local(kept)):
                    changed = changed or index < len(parameters)
                    tensor.copy_(kept)
            for parameter, gradient, kept in gradients:
                # Gradients may lie in buckets that a wrapper goes on using: the same tensor gets its values back.
                parameter.grad = gradient if gradient is None else gradient.copy_(kept)
        random.setstate(pythons)
        if numpy is not None:
            numpy.random.set_state(numpys)
    if changed:
        raise ValueError("the step changed the weights: it ends with the gradients, before the optimizer's step")


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
