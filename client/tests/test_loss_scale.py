"""The loss scale as arithmetic: exact fractions, without any training library."""

import doctest
import random
import subprocess
import sys
from fractions import Fraction
from itertools import chain

import pytest

from ledger_client import counting, diagnosis, objective, reduction, verification
from ledger_client.objective import Reducer, RemainderPolicy, accumulation_groups, auxiliary_scale, loss_scale


@pytest.mark.parametrize("module", [counting, diagnosis, objective, reduction, verification], ids=lambda module: module.__name__)
def test_formulas_are_what_their_examples_say(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("reducer", ["mean", "sum"])
def test_the_scale_makes_any_reduction_the_token_mean(seed: int, reducer: Reducer) -> None:
    """A microbatch's gradient is a number here: reduced and divided as the trainer does, the numbers give the token mean."""
    draw = random.Random(seed)
    ranks, accumulation = draw.randint(1, 4), draw.randint(1, 4)
    divided_by = draw.choice([1, accumulation])
    counts = [[draw.randint(0, 9) for _ in range(accumulation)] for _ in range(ranks)]
    losses = [[draw.randint(-9, 9) if count else 0 for count in row] for row in counts]
    total, added = sum(map(sum, counts)), sum(map(sum, losses))
    scale = loss_scale(total, ranks, reducer=reducer, divided_by=divided_by)
    if not total:
        assert scale is None
        return
    assert scale is not None
    on_each_rank = [sum(Fraction(scale) * loss / divided_by for loss in row) for row in losses]
    reduced = sum(on_each_rank) / (ranks if reducer == "mean" else 1)
    assert float(reduced) == pytest.approx(added / total)
    extra = auxiliary_scale(ranks * accumulation, ranks, reducer=reducer, divided_by=divided_by)
    assert extra is not None
    on_each_rank = [sum(Fraction(extra) * loss / divided_by for loss in row) for row in losses]
    assert float(sum(on_each_rank) / (ranks if reducer == "mean" else 1)) == pytest.approx(added / (ranks * accumulation))


@pytest.mark.parametrize("policy", ["renormalize", "carry", "drop"])
def test_every_microbatch_lies_in_one_group(policy: RemainderPolicy) -> None:
    for lengths in ([7, 5], [0, 3], [4], [], [1, 1, 1, 1, 1]):
        epochs = [[(epoch, place) for place in range(length)] for epoch, length in enumerate(lengths)]
        groups = list(accumulation_groups(epochs, 4, policy))
        assert list(chain.from_iterable(group.microbatches for group in groups)) == list(chain.from_iterable(epochs))
        assert all(0 < len(group.microbatches) <= 4 for group in groups)
        assert all(len(group.microbatches) == 4 for group in groups if not group.discarded) or policy == "renormalize"
        assert sum(group.discarded for group in groups) == {
            "renormalize": 0, "carry": bool(sum(lengths) % 4), "drop": sum(bool(length % 4) for length in lengths),
        }[policy]  # fmt: skip


def test_groups_are_made_as_the_data_comes() -> None:
    def endless() -> object:
        number = 0
        while True:
            yield number
            number += 1

    groups = accumulation_groups([endless()], 2, "carry")  # type: ignore[list-item]
    assert [next(groups).microbatches for _ in range(2)] == [[0, 1], [2, 3]]


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="mean or sum"):
        loss_scale(4, 2, reducer="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one rank"):
        auxiliary_scale(4, 0)
    with pytest.raises(ValueError, match="renormalize, carry or drop"):
        list(accumulation_groups([], 2, "keep"))  # type: ignore[arg-type]


def test_the_arithmetic_needs_no_training_library() -> None:
    program = "import sys; import ledger_client.objective; print({'torch', 'jax', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "set()\n"
