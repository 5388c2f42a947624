"""The gradient against that of the global token mean: the loss scale, the wrapper and the verification, with real torch and real ranks."""

import copy
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from objective_job import (
    COUNTS,
    LENGTH,
    NO,
    VOCABULARY,
    A,
    Microbatch,
    R,
    Step,
    T,
    Tiny,
    auxiliary,
    loss_sum,
    microbatch,
    of_library_means,
    of_means_over_nothing,
    of_microbatch_means,
    of_microbatch_means_divided_twice,
    of_rank_means,
    of_step_means,
    rows,
    summed,
    times,
    with_auxiliary,
    wrapped,
)  # fmt: skip
from transformers import GPT2Config, GPT2LMHeadModel

from ledger_client.counting import valid_targets
from ledger_client.objective import TokenMean, Verification, accumulation_groups, auxiliary_scale, loss_scale, verify_objective

FAULTY: dict[str, tuple[Step, str, float | None, str]] = {
    "exact": (times(R / T), "token_mean", None, "exact"),
    "mean of rank means": (of_rank_means, "mean_of_rank_means", None, "it is that of the mean of rank means"),
    "mean of microbatch means": (of_microbatch_means, "mean_of_microbatch_means", None, "it is that of the mean of microbatch means"),
    "divided by A twice": (of_microbatch_means_divided_twice, "mean_of_microbatch_means", 1 / A,
                           "it is that of the mean of microbatch means times 1/A (0.5)"),
    "token mean divided by A": (times(R / T / A), "token_mean", 1 / A, "it is that of the token mean times 1/A (0.5)"),
    "mean of step means": (of_step_means, "mean_of_accumulation_step_means", None, "it is that of the mean of accumulation step means"),
    "sum without scale": (times(1.0), "token_mean", T / R, "it is that of the token mean times T/R (13.6667)"),
    "not times R": (times(1 / T), "token_mean", 1 / R, "it is that of the token mean times 1/R (0.333333)"),
    "times R twice": (times(R * R / T), "token_mean", R, "it is that of the token mean times R (3)"),
    "not divided by A": (times(A * R / T), "token_mean", A, "it is that of the token mean times A (2)"),
    "an odd factor": (times(0.77 * R / T), "token_mean", 0.77,
                      "it is that of the token mean times 0.77, which is made up of neither R, A nor T"),
    "means over nothing": (of_means_over_nothing, "not_finite", None, "it is not finite, as a loss that is divided by no targets"),
    "mean of rank means times R": (lambda model, own: of_rank_means(model, own, R), "mean_of_rank_means", R,
                                   "it is that of the mean of rank means times R (3)"),
    "the library's means": (of_library_means, "mean_of_microbatch_means", A, "it is that of the mean of microbatch means times A (2)"),
    "nothing": (lambda model, microbatches: None, "no_gradient", 0.0, "there is no gradient"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FAULTY))
def test_each_kind_of_trainer_is_named(name: str) -> None:
    step, objective, factor, cause = FAULTY[name]
    torch.manual_seed(0)
    found = verify_objective(Tiny(), rows(*COUNTS), loss_sum, step, simulate="mean")
    assert (found.objective, found.cause, found.exact) == (objective, cause, name == "exact"), str(found)
    assert found.factor == (None if factor is None else pytest.approx(factor, rel=1e-4))
    assert (found.ranks, found.accumulation, found.valid_targets) == (R, A, T)
    assert [group.name for group in found.groups] == ["embedding", "hidden"]
    assert all(group.cause == cause for group in found.groups)
    assert found.exact == (found.error < 1e-5)


def test_gradients_that_are_added_need_no_rank_count() -> None:
    said = "it is that of the token mean times "
    for factor, cause in ((1 / T, "exact"), (R / T, said + "R (3)"), (1.0, said + "T (41)")):
        assert verify_objective(Tiny(), rows(*COUNTS), loss_sum, times(factor), simulate="sum").cause == cause


def test_the_reference_is_the_mean_of_the_concatenated_batch() -> None:
    """Torch's own mean over all rows at once, as the step of one rank."""
    batches = rows(*COUNTS)
    whole = torch.cat([labels for row in batches for labels in row])

    def step(model: Any, microbatches: Sequence[Microbatch]) -> None:
        logits, _ = model(whole)
        F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), whole[:, 1:].reshape(-1), ignore_index=NO).backward()

    model = Tiny()
    assert verify_objective(model, batches, loss_sum, step, simulate="mean").exact
    assert verify_objective(model, batches, loss_sum, times(R / T), simulate="mean", concatenated=whole).exact
    assert not verify_objective(model, batches, loss_sum, times(R / T), simulate="mean", concatenated=whole[:4]).exact


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("divided_by", [1, A])
@pytest.mark.parametrize("reducer", ["mean", "sum"])
def test_the_wrapper_makes_it_exact(reducer: Any, divided_by: int, deferred: bool) -> None:
    model = Tiny()
    objective = TokenMean(model, reducer=reducer, divided_by=divided_by)
    found = verify_objective(model, rows(*COUNTS), loss_sum, wrapped(objective, deferred), simulate=reducer)
    assert found.exact and found.cause == "exact", str(found)


@pytest.mark.parametrize(("by", "deferred"), [("microbatches", False), ("targets", False), ("targets", True)])
def test_an_auxiliary_loss_is_not_scaled_as_a_sum(by: Any, deferred: bool) -> None:
    model = Tiny()
    step = wrapped(TokenMean(model, auxiliary=by), deferred, auxiliary)
    found = verify_objective(model, rows(*COUNTS), with_auxiliary, step, simulate="mean", auxiliary=by)
    assert found.exact, str(found)
    other = "targets" if by == "microbatches" else "microbatches"
    found = verify_objective(model, rows(*COUNTS), with_auxiliary, step, simulate="mean", auxiliary=other)
    assert found.cause == f"it is that of the token mean, with the auxiliary loss averaged by {by}", str(found)


def scaled_with_it(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that takes the auxiliary loss for a loss sum."""
    for labels in microbatches:
        ((summed(model, labels) + auxiliary(model, labels)) * R / T).backward()


def not_divided(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """A trainer that adds the auxiliary loss at each accumulation step."""
    for labels in microbatches:
        (summed(model, labels) * R / T + auxiliary(model, labels)).backward()


@pytest.mark.parametrize(("step", "end"), [
    (scaled_with_it, ", and the auxiliary loss is there times R*A/T (0.146341), as if it were a loss sum"),
    (not_divided, ", and the auxiliary loss is there times A (2)"),
    (times(R / T), ", without the auxiliary loss"),
    (times(1 / T), " times 1/R (0.333333), without the auxiliary loss"),
])  # fmt: skip
def test_an_auxiliary_loss_that_is_off_is_named(step: Step, end: str) -> None:
    found = verify_objective(Tiny(), rows(*COUNTS), with_auxiliary, step, simulate="mean")
    assert found.cause == "it is that of the token mean" + end, str(found)


def test_a_group_without_targets_divides_by_nothing() -> None:
    model = Tiny()
    objective = TokenMean(model)
    for deferred in (False, True):
        found = verify_objective(model, rows([0, 0], [0, 0]), loss_sum, wrapped(objective, deferred), simulate="mean")
        assert (found.exact, found.objective, found.valid_targets) == (True, "no_targets", 0)
    group = objective.group([0, 0])
    group.loss(summed(model, microbatch(0, 1))).backward()
    assert group.no_targets and float(group.loss_scale) == 0
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in model.parameters() if parameter.grad is not None)
    assert loss_scale(0, 2) is None and auxiliary_scale(0, 2) is None
    wrong = verify_objective(model, rows([0], [0]), loss_sum, not_divided, simulate="mean")
    assert wrong.cause == "there are no targets, and yet there is a gradient"


@pytest.mark.parametrize("policy", ["renormalize", "carry", "drop"])
@pytest.mark.parametrize("divided_by", [1, 2])
def test_the_last_group_of_an_epoch_under_each_policy(policy: Any, divided_by: int) -> None:
    """Epochs of three microbatches in groups of two, on two ranks: whatever is an update is exact, the shorter one too."""
    model = Tiny()
    objective = TokenMean(model, divided_by=divided_by)
    ranks = rows([9, 4, 17, 3, 0, 8], [1, 22, 6, 7, 5, 2])
    groups = [list(accumulation_groups([row[:3], row[3:]], 2, policy)) for row in ranks]
    updates = [[group.microbatches for group in row if not group.discarded] for row in groups]
    for deferred in (False, True):
        for parts in zip(*updates, strict=True):
            assert verify_objective(model, parts, loss_sum, wrapped(objective, deferred), simulate="mean").exact
    sizes = [len(group) for group in updates[0]]
    assert sizes == {"renormalize": [2, 1, 2, 1], "carry": [2, 2, 2], "drop": [2, 2]}[policy]
    assert [len(group.microbatches) for group in groups[0] if group.discarded] == ([1, 1] if policy == "drop" else [])


def test_a_fixed_divisor_in_a_shorter_group_is_named() -> None:
    """A trainer that divides by the configured count of 2 also where one microbatch is left, and scales as if it had not."""
    found = verify_objective(Tiny(), rows([9], [4], [2]), loss_sum, times(3 / 15 / 2), simulate="mean")
    assert found.factor == pytest.approx(0.5) and found.objective == "token_mean"


class Uneven(Tiny):
    """With a parameter whose gradient is zero but for rounding, and one that only the auxiliary loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(()))
        self.router = torch.nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, extra = super().forward(tokens)
        return logits + self.shift, extra * self.router


def test_parameters_that_a_loss_does_not_reach_say_nothing_of_it() -> None:
    def off_in_rounding(model: Any, microbatches: Sequence[Microbatch]) -> None:
        step(model, microbatches)
        model.shift.grad += 1e-8

    model = Uneven()
    step = wrapped(TokenMean(model), False, auxiliary)
    assert verify_objective(model, rows(*COUNTS), with_auxiliary, off_in_rounding, simulate="mean").exact
    found = {group.name: group for group in verify_objective(model, rows(*COUNTS), with_auxiliary, not_divided, simulate="mean").groups}
    assert found["shift"].exact and not found["router"].exact
    assert found["router"].cause == "it is that of the token mean, and the auxiliary loss is there times A (2)"


def test_half_precision() -> None:
    model = Tiny().to(torch.bfloat16)
    step = wrapped(TokenMean(model), deferred=False)
    found = verify_objective(model, rows(*COUNTS), loss_sum, step, simulate="mean")
    assert found.exact and 1e-5 < found.error < 3e-2, str(found)
    for name in ("mean of rank means", "divided by A twice", "sum without scale", "times R twice"):
        step, objective, _, cause = FAULTY[name]
        found = verify_objective(model, rows(*COUNTS), loss_sum, step, simulate="mean")
        assert found.objective == objective and found.cause.split(" (")[0] == cause.split(" (")[0], str(found)


def test_half_precision_does_not_round_the_scale() -> None:
    model = Tiny().to(torch.bfloat16)
    group = TokenMean(model).group([41])
    assert group.loss_scale.dtype == torch.float32 and float(group.loss_scale) == pytest.approx(1 / 41, rel=1e-6)
    assert group.loss(torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True)).dtype == torch.float32


def test_autocast_rounds_more_than_the_parameters_do() -> None:
    def cast(model: Any, labels: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_sum(model, labels)

    def step(model: Any, microbatches: Sequence[Microbatch], scale: float) -> None:
        for labels in microbatches:
            (cast(model, labels)[0] * scale).backward()

    for scale, exact in ((R / T, True), (1 / T, False)):
        found = verify_objective(Tiny(), rows(*COUNTS), cast, partial(step, scale=scale), simulate="mean")
        assert found.exact is exact and 1e-4 < found.tolerance < 0.1, str(found)
        assert exact or found.cause.startswith("it is that of the token mean times 1/R"), str(found)


def test_the_wrapper_asks_no_device_for_a_value() -> None:
    """A tensor of this device holds no value: whatever asked for one would fail."""
    model = Tiny().to("meta")
    labels = torch.empty((2, LENGTH), dtype=torch.int64, device="meta")
    objective = TokenMean(model, auxiliary="targets")
    for deferred in (False, True):
        wrapped(objective, deferred, auxiliary)(model, [labels, labels])
    group = objective.group([valid_targets(labels), 3])
    assert (group.valid_targets.device.type, group.loss_scale.device.type, group.loss_scale.shape) == ("meta", "meta", ())


def test_groups_that_differ_are_told_apart() -> None:
    """The parameters of one submodule are reduced as if there were twice as many ranks."""

    def step(model: Any, microbatches: Sequence[Microbatch]) -> None:
        times(R / T)(model, microbatches)
        model.hidden.weight.grad /= R

    model = Tiny()
    optimizer = torch.optim.SGD([
        {"params": [model.hidden.weight], "name": "matrices"}, {"params": [model.embedding.weight]}, {"params": [model.hidden.bias]},
    ], lr=1.0)  # fmt: skip
    found = verify_objective(model, rows(*COUNTS), loss_sum, step, simulate="mean", optimizer=optimizer)
    assert {group.name: (group.exact, group.cause) for group in found.groups} == {
        "matrices": (False, "it is that of the token mean times 1/R (0.333333)"), "group 1": (True, "exact"), "group 2": (True, "exact"),
    }  # fmt: skip
    assert not found.exact and found.cause == "it is not the same in all parameter groups"


def test_everything_is_left_as_it_was_found() -> None:
    torch.manual_seed(3)
    model = Tiny(dropout=0.5)
    model.hidden.eval()
    summed(model, microbatch(5, 0)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    before = copy.deepcopy((dict(model.state_dict()), gradients, torch.get_rng_state(), random.getstate()))

    def step(trained: Any, microbatches: Sequence[Microbatch]) -> None:
        torch.rand(3)
        random.random()
        times(R / T)(trained, microbatches)

    found = verify_objective(model, rows(*COUNTS), loss_sum, step, simulate="mean")
    assert found.exact and found.notes == ("the model was set to evaluation meanwhile: dropout draws nothing",)
    assert model.training and model.dropout.training and not model.hidden.training
    assert all(now is was for now, was in zip((parameter.grad for parameter in model.parameters()), gradients, strict=True))
    after = (dict(model.state_dict()), gradients, torch.get_rng_state(), random.getstate())
    assert all(torch.equal(after[0][name], before[0][name]) for name in before[0])
    assert all(torch.equal(now, was) for now, was in zip(after[1], before[1], strict=True))
    assert torch.equal(after[2], before[2]) and after[3] == before[3]


def test_a_step_of_the_optimizer_is_taken_back_and_refused() -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())

    def step(trained: Any, microbatches: Sequence[Microbatch]) -> None:
        times(R / T)(trained, microbatches)
        optimizer.step()

    with pytest.raises(ValueError, match="changed the weights"):
        verify_objective(model, rows(*COUNTS), loss_sum, step, simulate="mean")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_told_is_said() -> None:
    def noisy(model: Any, labels: Microbatch) -> tuple[torch.Tensor, int]:
        return summed(model, labels) * (1 + torch.rand(())), int(valid_targets(labels))

    found = verify_objective(Tiny(), rows([4, 4], [4, 4]), loss_sum, of_rank_means, simulate="mean")
    assert found.exact and any("cannot be told" in note or "no mean can be told" in note for note in found.notes)
    found = verify_objective(Tiny(), rows(*COUNTS), noisy, times(R / T), simulate="mean")
    assert not found.exact and any("random numbers" in note for note in found.notes)

    def training(model: Any, microbatches: Sequence[Microbatch]) -> None:
        model.train()
        times(R / T)(model, microbatches)

    found = verify_objective(Tiny(dropout=0.5), rows(*COUNTS), loss_sum, training, simulate="mean")
    assert not found.exact and found.objective == "none" and any("training mode" in note for note in found.notes)


def test_the_answer_reads_well() -> None:
    torch.manual_seed(0)
    found: Verification = verify_objective(Tiny(), rows(*COUNTS), loss_sum, times(R / T / A), simulate="mean")
    assert str(found) == (
        "The gradient is not that of the global token mean (3 ranks, up to 2 microbatches each, 41 targets).\n"
        "Cause: it is that of the token mean times 1/A (0.5).\n"
        "Relative error 0.5, where 0.0001 is tolerated; by parameter group:\n"
        "  embedding       0.5  it is that of the token mean times 1/A (0.5)\n"
        "  hidden          0.5  it is that of the token mean times 1/A (0.5)\n"
        "Note: the model was set to evaluation meanwhile: dropout draws nothing."
    )


def test_what_a_group_is_not_given_is_refused() -> None:
    model = Tiny()
    objective = TokenMean(model)
    loss = torch.tensor(1.0, requires_grad=True)
    group = objective.group([3])
    with pytest.raises(ValueError, match="when it was begun"):
        group.loss(loss, valid_targets=3)
    group.loss(loss)
    with pytest.raises(ValueError, match="counts of 1 microbatches"):
        group.loss(loss)
    late = objective.group()
    with pytest.raises(ValueError, match="takes the count"):
        late.loss(loss)
    with pytest.raises(ValueError, match="by targets only"):
        late.loss(loss, valid_targets=3, auxiliary=loss)
    with pytest.raises(ValueError, match="after `finish`"):
        _ = late.no_targets
    late.finish()
    with pytest.raises(ValueError, match="have been scaled"):
        late.finish()
    for wrong in (2.5, True, torch.tensor([1, 2]), torch.tensor(2.0), torch.tensor(True)):
        with pytest.raises(TypeError, match="integer"):
            objective.group([wrong])
    for options in ({"reducer": "max"}, {"divided_by": 0}, {"auxiliary": "ranks"}):
        with pytest.raises(ValueError):
            TokenMean(model, **options)  # type: ignore[arg-type]


def test_counts_are_added_as_integers() -> None:
    group = TokenMean(Tiny()).group([2**40, 2**24 + 1, torch.tensor(3, dtype=torch.int32)])
    assert group.valid_targets.dtype == torch.int64 and int(group.valid_targets) == 2**40 + 2**24 + 4


def test_ranks_that_do_not_add_alike_are_refused() -> None:
    model = Tiny()
    objective = TokenMean(model)

    def step(trained: Any, microbatches: Sequence[Microbatch]) -> None:
        if len(microbatches) > 1:
            objective.group([1] * len(microbatches))

    with pytest.raises(RuntimeError, match="wait for ever"):
        verify_objective(model, rows([3], [4, 5]), loss_sum, step, simulate="mean")


def test_a_model_of_transformers() -> None:
    """Its own loss is the mean of a microbatch; given one item, it is the sum. Biases before the softmax of attention have no gradient."""
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, **ends))

    def loss_of(model: Any, labels: Microbatch, **items: Any) -> torch.Tensor:
        return model(input_ids=labels.clamp(min=0), labels=labels, **items).loss

    def of_sum(model: Any, labels: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
        return loss_of(model, labels, num_items_in_batch=torch.tensor(1)), valid_targets(labels)

    def step(model: Any, microbatches: Sequence[Microbatch]) -> None:
        group = objective.group([valid_targets(labels) for labels in microbatches])
        for labels in microbatches:
            group.loss(of_sum(model, labels)[0]).backward()

    def usual(model: Any, microbatches: Sequence[Microbatch]) -> None:
        for labels in microbatches:
            (loss_of(model, labels) / len(microbatches)).backward()

    objective = TokenMean(model)
    optimizer = torch.optim.AdamW([{"params": [one for one in model.parameters() if (one.ndim > 1) is big]} for big in (True, False)])
    found = verify_objective(model, rows(*COUNTS), of_sum, step, simulate="mean", optimizer=optimizer)
    assert found.exact and found.valid_targets == T and [group.name for group in found.groups] == ["group 0", "group 1"], str(found)
    assert verify_objective(model, rows(*COUNTS), of_sum, usual, simulate="mean").cause == "it is that of the mean of microbatch means"


Launch = Callable[..., list[str]]


def lines(printed: Sequence[str]) -> list[dict[str, Any]]:
    """What the ranks said, which is the same on all of them but for the last digits of an error."""
    ranks = [[json.loads(line) for line in text.splitlines()] for text in printed]
    for rank in ranks:
        assert [line | {"error": None} for line in rank] == [line | {"error": None} for line in ranks[0]]
    return [line for rank in ranks for line in rank]


def answers(said: Sequence[dict[str, Any]], check: str) -> dict[str, str]:
    """The causes that a check found, by the name of the trainer."""
    return {line["name"]: line["cause"] for line in said if line["check"] == check}


def test_ddp(launch: Launch) -> None:
    said = lines(launch("objective_job.py", "ddp", "half", ranks=R))
    errors = [line["error"] for line in said if line["check"] in ("ddp", "auxiliary", "shorter group")]
    assert len(errors) == R * 6 and max(errors) < 1e-5
    assert all((line["targets"], line["kind"]) == (T, "torch.int64") for line in said if line["check"] == "ddp")
    assert answers(said, "verify") == {
        "exact": "exact", "wrapper": "exact", "deferred": "exact",
        "rank means": "it is that of the mean of rank means",
        "microbatch means": "it is that of the mean of microbatch means",
        "divided twice": "it is that of the mean of microbatch means times 1/A (0.5)",
        "sum": "it is that of the token mean times T/R (13.6667)",
        "times R": "it is that of the token mean times R (3)",
        "by A": "it is that of the token mean times 1/A (0.5)",
        "step means": "it is that of the mean of accumulation step means",
        "nothing": "it is not finite, as a loss that is divided by no targets",
        "not reduced": "it differs between the ranks: it was not reduced over them",
    }  # fmt: skip
    assert all((line["ranks"], line["targets"]) == (R, T) for line in said if line["check"] == "verify")
    last = {line["check"]: line for line in said}
    assert last["kept"]["equal"] and last["no targets"]["no_targets"] and last["no targets"]["finite"]
    assert last["large"]["targets"] == 3 * 2**40 + 3
    assert answers(said, "half") == {"wrapper": "exact", "rank means": "it is that of the mean of rank means"}


def test_fsdp2(launch: Launch) -> None:
    said = lines(launch("objective_job.py", "fsdp", ranks=R))
    errors = [line["error"] for line in said if line["check"] == "fsdp"]
    assert len(errors) == R * 4 and max(errors) < 1e-5
    exact = {"wrapper": "exact", "deferred": "exact"}
    assert answers(said, "verify mean") == exact | {
        "rank means": "it is that of the mean of rank means",
        "sum": "it is that of the token mean times T/R (13.6667)",
        "times R": "it is that of the token mean times R (3)",
    }
    assert answers(said, "verify sum") == exact | {
        "rank means": "it is that of the mean of rank means times R (3)",
        "sum": "it is that of the token mean times T (41)",
        "times R": "it is that of the token mean times 9, which is made up of neither R, A nor T",
    }
    assert "needs a reference" in said[-1]["error"]


def test_two_groups_of_ranks(launch: Launch) -> None:
    printed = launch("objective_job.py", "subgroup", ranks=4)
    said = [json.loads(text) for text in printed]
    assert [(line["targets"], line["ranks"], line["exact"]) for line in said] == [(28, 2, True)] * 2 + [(21, 2, True)] * 2
    assert all(line["error"] < 1e-5 for line in said)


def test_the_snippet_of_the_readme_prints_what_stands_below_it() -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split("## The loss that the gradient is of")[1]
    program, printed = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "text"))
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said == printed
