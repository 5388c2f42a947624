"""The model, the microbatches and the trainers of the tests of the objective; run as a program, the ranks of a job that check it with gloo.

Each check prints one line of what came out; ranks agree on all of them.
"""

import copy
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ledger_client.counting import valid_targets
from ledger_client.objective import TokenMean, verify_objective

NO = -100
VOCABULARY, WIDTH, LENGTH = 13, 8, 12
Microbatch = torch.Tensor
Step = Callable[[Any, Sequence[Microbatch]], None]


class Tiny(torch.nn.Module):
    """A language model of one hidden layer whose head and embedding are tied; beside its logits it has an auxiliary loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        hidden = self.dropout(torch.tanh(self.hidden(self.embedding(tokens.clamp(min=0)))))
        return self.head(hidden), hidden.float().square().mean()


def microbatch(targets: int, seed: int) -> Microbatch:
    """Labels of two rows with so many targets in the second one and the first."""
    labels = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    scored = torch.zeros(2 * (LENGTH - 1), dtype=torch.bool)
    scored[:targets] = True
    labels[:, 1:][~scored.reshape(2, LENGTH - 1)] = NO
    return labels


def rows(*counts: Sequence[int]) -> list[list[Microbatch]]:
    """Microbatches by rank, with so many targets."""
    return [[microbatch(count, 100 * rank + place) for place, count in enumerate(row)] for rank, row in enumerate(counts)]


COUNTS = ([20, 3], [5, 1], [12, 0])
"""R = 3, A = 2, T = 41: no two of R, A, T and their quotients are the same number."""
T, R, A = 41, 3, 2


def summed(model: Any, labels: Microbatch) -> torch.Tensor:
    """The loss of a microbatch, added up over its targets."""
    logits, _ = model(labels)
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), labels[:, 1:].reshape(-1), ignore_index=NO, reduction="sum")


def loss_sum(model: Any, labels: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
    """What the verification asks for."""
    return summed(model, labels), valid_targets(labels)


COEFFICIENT = 0.7


def auxiliary(model: Any, labels: Microbatch) -> torch.Tensor:
    """A loss that is a mean already."""
    return COEFFICIENT * model(labels)[1]


def with_auxiliary(model: Any, labels: Microbatch) -> tuple[torch.Tensor, ...]:
    """The same with an auxiliary loss."""
    return (*loss_sum(model, labels), auxiliary(model, labels))


def times(factor: float) -> Step:
    """A trainer that calls backward on loss sums times a factor."""

    def step(model: Any, microbatches: Sequence[Microbatch]) -> None:
        for labels in microbatches:
            (summed(model, labels) * factor).backward()

    return step


def of_rank_means(model: Any, microbatches: Sequence[Microbatch], factor: float = 1.0) -> None:
    """A trainer that divides by the targets of its own rank."""
    own = sum(int(valid_targets(labels)) for labels in microbatches)
    for labels in microbatches:
        (summed(model, labels) * factor / max(own, 1)).backward()


def of_microbatch_means(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that takes each microbatch's mean and divides by the accumulation count."""
    for labels in microbatches:
        (summed(model, labels) / valid_targets(labels).clamp(min=1) / len(microbatches)).backward()


def of_microbatch_means_divided_twice(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """The same where the library has divided by the accumulation count before."""
    for labels in microbatches:
        (summed(model, labels) / valid_targets(labels).clamp(min=1) / len(microbatches) ** 2).backward()


def of_step_means(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that counts over all ranks, but each accumulation step by itself."""
    for place, labels in enumerate(microbatches):
        (summed(model, labels) * R / sum(row[place] for row in COUNTS) / A).backward()


def of_means_over_nothing(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that takes the mean under a mask, though the mask may let nothing through."""
    for labels in microbatches:
        logits, _ = model(labels)
        wanted = labels[:, 1:].reshape(-1)
        losses = F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), wanted.clamp(min=0), reduction="none")
        (losses * (wanted != NO) / (wanted != NO).sum()).sum().backward()


def of_library_means(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that lets the library take the mean, and divides by no accumulation count."""
    for labels in microbatches:
        logits, _ = model(labels)
        F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1), ignore_index=NO).backward()


def wrapped(objective: TokenMean, deferred: bool, auxiliary_of: Callable[[Any, Microbatch], Any] | None = None) -> Step:
    """A trainer that leaves the scale to the wrapper."""

    def step(model: Any, microbatches: Sequence[Microbatch]) -> None:
        counts = [valid_targets(labels) for labels in microbatches]
        group = objective.group() if deferred else objective.group(counts)
        for labels, count in zip(microbatches, counts, strict=True):
            extra = None if auxiliary_of is None else auxiliary_of(model, labels)
            loss = group.loss(summed(model, labels), valid_targets=count if deferred else None, auxiliary=extra)
            (loss / objective.divided_by).backward()
        group.finish()

    return step


def last_synchronized(step: Step) -> Step:
    """The same trainer under DDP as it is run: gradients are reduced with the last microbatch only."""

    def run(model: Any, microbatches: Sequence[Microbatch]) -> None:
        with model.no_sync():
            for labels in microbatches[:-1]:
                step(model, [labels])
        step(model, microbatches[-1:])

    return run


def by_hand(model: Any, batches: Sequence[Sequence[Microbatch]], of_auxiliary: bool = False) -> dict[str, torch.Tensor]:
    """The gradient of the global token mean, of a bare model and all microbatches of all ranks in this process."""
    bare = copy.deepcopy(model).eval()
    every = [labels for row in batches for labels in row]
    loss = sum(summed(bare, labels) for labels in every) / sum(int(valid_targets(labels)) for labels in every)
    if of_auxiliary:
        loss = loss + sum(auxiliary(bare, labels) for labels in every) / len(every)
    loss.backward()
    return {name: parameter.grad for name, parameter in bare.named_parameters()}


def distance(model: Any, wanted: dict[str, torch.Tensor]) -> float:
    """How far a model's gradients are from others, relative to these."""
    own = {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}
    whole = {name: gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient for name, gradient in own.items()}
    return max(float((whole[name] - gradient).norm() / gradient.norm()) for name, gradient in wanted.items())


def accumulated(model: Any, objective: TokenMean, batches: Sequence[Microbatch], deferred: bool, extra: bool = False) -> Any:
    """One group of a plain training loop; what has come of its count."""
    counts = [valid_targets(labels) for labels in batches]
    group = objective.group() if deferred else objective.group(counts)
    for place, (labels, count) in enumerate(zip(batches, counts, strict=True)):
        last = place == len(batches) - 1
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)
        with model.no_sync() if not last and hasattr(model, "no_sync") else nullcontext():
            loss = group.loss(
                summed(model, labels), valid_targets=count if deferred else None, auxiliary=auxiliary(model, labels) if extra else None
            )
            (loss / objective.divided_by).backward()
    group.finish()
    return group


def said(check: str, /, **values: object) -> None:
    """One line for the test."""
    print(json.dumps({"check": check, **values}), flush=True)


def check_ddp(rank: int) -> None:
    """The wrapper and the verification under DDP."""
    torch.manual_seed(5)
    bare = Tiny()
    batches = rows(*COUNTS)
    model = DistributedDataParallel(bare, gradient_as_bucket_view=True)
    wanted = by_hand(bare, batches)
    for deferred in (False, True):
        for divided_by in (1, A):
            model.zero_grad()
            group = accumulated(model, TokenMean(model, divided_by=divided_by), batches[rank], deferred)
            said("ddp", error=distance(model, wanted), targets=int(group.valid_targets), kind=str(group.valid_targets.dtype))
    model.zero_grad()
    accumulated(model, TokenMean(model), batches[rank], False, extra=True)
    said("auxiliary", error=distance(model, by_hand(bare, batches, of_auxiliary=True)))
    model.zero_grad()
    accumulated(model, TokenMean(model), batches[rank][:1], False)
    said("shorter group", error=distance(model, by_hand(bare, [row[:1] for row in batches])))
    before = [parameter.grad.clone() for parameter in model.parameters()]
    for name, step in {
        "exact": last_synchronized(times(R / T)), "rank means": of_rank_means, "microbatch means": of_microbatch_means,
        "divided twice": of_microbatch_means_divided_twice, "sum": last_synchronized(times(1.0)),
        "times R": last_synchronized(times(R * R / T)), "by A": last_synchronized(times(R / T / A)), "step means": of_step_means,
        "nothing": of_means_over_nothing, "wrapper": lambda model, own: accumulated(model, TokenMean(model), own, False),
        "deferred": lambda model, own: accumulated(model, TokenMean(model), own, True), "not reduced": not_reduced,
    }.items():  # fmt: skip
        found = verify_objective(model, batches[rank], loss_sum, step)
        said("verify", name=name, cause=found.cause, exact=found.exact, ranks=found.ranks, targets=found.valid_targets)
    said("kept", equal=all(torch.equal(parameter.grad, was) for parameter, was in zip(model.parameters(), before, strict=True)))
    empty = accumulated(model, TokenMean(model), rows([0, 0], [0, 0], [0, 0])[rank], False)
    said("no targets", no_targets=empty.no_targets, finite=all(bool(p.grad.isfinite().all()) for p in model.parameters()))
    said("large", targets=int(TokenMean(model).group([2**40 + rank]).valid_targets))


def not_reduced(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that forgets to reduce with the last microbatch."""
    with model.no_sync():
        times(R / T)(model, microbatches)


def check_half(rank: int) -> None:
    """DDP with parameters in bfloat16."""
    torch.manual_seed(5)
    model = DistributedDataParallel(Tiny().to(torch.bfloat16))
    own = rows(*COUNTS)[rank]
    for name, step in {"wrapper": lambda model, own: accumulated(model, TokenMean(model), own, False), "rank means": of_rank_means}.items():
        found = verify_objective(model, own, loss_sum, step)
        said("half", name=name, cause=found.cause, exact=found.exact)


def check_fsdp(rank: int) -> None:
    """FSDP2: gradients are sharded, averaged or added."""
    batches = rows(*COUNTS)
    for reducer, reshard in (("mean", True), ("sum", False)):
        torch.manual_seed(5)
        bare = Tiny()
        wanted = by_hand(bare, batches)
        model = copy.deepcopy(bare)
        mesh = init_device_mesh("cpu", (R,))
        fully_shard(model.hidden, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        if reducer == "sum":
            for part in (model, model.hidden):
                part.set_gradient_divide_factor(1.0)
                # Gloo knows no reduction that multiplies before it adds.
                part.set_force_sum_reduction_for_comms(True)
        for deferred in (False, True):
            model.zero_grad()
            accumulated(model, TokenMean(model, reducer=reducer), batches[rank], deferred)
            said("fsdp", error=distance(model, wanted))
        fresh = Tiny()
        for name, step in {
            "wrapper": lambda model, own: accumulated(model, TokenMean(model, reducer=reducer), own, False),  # noqa: B023 - called here
            "deferred": lambda model, own: accumulated(model, TokenMean(model, reducer=reducer), own, True),  # noqa: B023 - called here
            "rank means": of_rank_means, "sum": times(1.0), "times R": times(R * R / T),
        }.items():  # fmt: skip
            found = verify_objective(model, batches[rank], loss_sum, step, reference=fresh)
            said(f"verify {reducer}", name=name, cause=found.cause, exact=found.exact)
    try:
        verify_objective(model, batches[rank], loss_sum, times(1.0))
    except ValueError as error:
        said("no reference", error=str(error))


def check_subgroup(rank: int) -> None:
    """Two data-parallel groups in one job: each has its own T and its own R."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(5)
    bare = Tiny()
    batches = rows([20, 3], [5, 0], [1, 2], [9, 9])[rank // 2 * 2 :][:2]
    model = DistributedDataParallel(bare, process_group=pairs[rank // 2])
    group = accumulated(model, TokenMean(model), batches[rank % 2], False)
    own = batches[rank % 2]
    found = verify_objective(model, own, loss_sum, lambda model, own: accumulated(model, TokenMean(model), own, True))
    said("subgroup", error=distance(model, by_hand(bare, batches)), targets=int(group.valid_targets), ranks=found.ranks, exact=found.exact)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for check in sys.argv[1:]:
        {"ddp": check_ddp, "half": check_half, "fsdp": check_fsdp, "subgroup": check_subgroup}[check](dist.get_rank())
    dist.destroy_process_group()
