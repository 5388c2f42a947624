"""Which mean a gradient is that of, and by which factor it is off: read off inner products alone.

The gradients of a group's microbatches, each of its own loss sum, are added under the weights of each mean. What a trainer computed is
compared with these sums; where it is a multiple of one of them, the multiple is named if R, A or T make it up.

| mean | weight of a microbatch with t targets |
|---|---|
| `token_mean` | 1 / T, of T targets in the whole group |
| `mean_of_rank_means` | 1 / (R * targets of its rank) |
| `mean_of_microbatch_means` | 1 / (R * A * t) |
| `mean_of_accumulation_step_means` | 1 / (A * targets of all ranks' microbatches of the same place in the group) |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MEANS = ("token_mean", "mean_of_rank_means", "mean_of_microbatch_means", "mean_of_accumulation_step_means")
AUXILIARY = {"microbatches": "auxiliary_by_microbatches", "targets": "auxiliary_by_targets"}
"""How an auxiliary loss is averaged: each microbatch alike, or by its share of the targets."""
TIE = 10
"""Of two means whose residuals lie within this factor, neither fits better."""

Gram = Mapping[str, Mapping[str, float]]
Counts = Sequence[Sequence[int]]


def weights(counts: Counts) -> dict[str, list[list[float]]]:
    """The weight of each microbatch's loss sum in each mean, by rank and place in the group.

    Law: a mean of means without any target has weight 0; it is not left out of the divisor.

    >>> weights([[3, 1], [4, 0]])["token_mean"]
    [[0.125, 0.125], [0.125, 0.125]]
    >>> weights([[3, 1], [1, 0]])["mean_of_rank_means"]
    [[0.125, 0.125], [0.5, 0.5]]
    >>> weights([[2, 1], [4, 0]])["mean_of_microbatch_means"]
    [[0.125, 0.25], [0.0625, 0.0]]
    >>> weights([[3, 1], [1, 0]])["mean_of_accumulation_step_means"]
    [[0.125, 0.5], [0.125, 0.5]]
    """
    ranks, steps = len(counts), max(map(len, counts), default=0)
    total = sum(map(sum, counts))
    columns = [sum(row[place] for row in counts if place < len(row)) for place in range(steps)]

    def inverse(divisor: int) -> float:
        return 1 / divisor if divisor else 0.0

    return {
        "token_mean": [[inverse(total)] * len(row) for row in counts],
        "mean_of_rank_means": [[inverse(ranks * sum(row))] * len(row) for row in counts],
        "mean_of_microbatch_means": [[inverse(ranks * len(row) * count) for count in row] for row in counts],
        "mean_of_accumulation_step_means": [[inverse(steps * columns[place]) for place in range(len(row))] for row in counts],
    }


def auxiliary_weights(counts: Counts) -> dict[str, list[list[float]]]:
    """The weight of each microbatch's auxiliary loss, by how it is averaged.

    >>> auxiliary_weights([[3, 1], [4, 0]])["auxiliary_by_targets"]
    [[0.375, 0.125], [0.5, 0.0]]
    """
    microbatches, total = sum(map(len, counts)), sum(map(sum, counts))
    return {
        AUXILIARY["microbatches"]: [[1 / microbatches] * len(row) for row in counts],
        AUXILIARY["targets"]: [[count / total if total else 0.0 for count in row] for row in counts],
    }


def factors(ranks: int, accumulation: int, valid_targets: int) -> list[list[tuple[str, float]]]:
    """The multiples that have a name, the plainest first.

    >>> factors(3, 2, 36)[0]
    [('R', 3), ('1/R', 0.3333333333333333), ('A', 2), ('1/A', 0.5)]
    """
    r, a, t = ranks, accumulation, valid_targets
    plain: list[tuple[str, float]] = [("R", r), ("1/R", 1 / r), ("A", a), ("1/A", 1 / a)]
    joint: list[tuple[str, float]] = [("R*A", r * a), ("1/(R*A)", 1 / (r * a)), ("R/A", r / a), ("A/R", a / r)]
    if t:
        joint += [("T", t), ("T/R", t / r), ("T/(R*A)", t / (r * a)), ("T/A", t / a), ("1/T", 1 / t), ("R*A/T", r * a / t), ("R/T", r / t)]
    return [[named for named in plain if named[1] != 1], [named for named in joint if named[1] != 1]]


def name_of(factor: float, named: Sequence[Sequence[tuple[str, float]]], tolerance: float) -> str | None:
    """The formula of a factor, of several that give the same number all; None where none does.

    >>> name_of(0.25, factors(4, 3, 36), 1e-4)
    '1/R'
    >>> name_of(0.5, factors(2, 2, 36), 1e-4)
    '1/R or 1/A'
    >>> name_of(0.7, factors(2, 2, 36), 1e-4) is None
    True
    """
    for formulas in named:
        fitting = [formula for formula, value in formulas if math.isclose(value, factor, rel_tol=tolerance)]
        if fitting:
            return " or ".join(fitting)
    return None


@dataclass(frozen=True)
class Diagnosis:
    """What a gradient is, beside the gradient of the global token mean.

    `objective` is one of the means, or `none`, `no_targets`, `no_gradient`, `not_finite`, `not_reduced`; `factor` what it is multiplied
    by, None for 1; `formula` the factor in R (ranks), A (microbatches of a rank) and T (targets), where they make it up. The same of
    the auxiliary loss, whose factor is 0 where it is missing. `error` is relative.
    """

    objective: str
    error: float
    exact: bool
    factor: float | None = None
    formula: str | None = None
    auxiliary_factor: float | None = None
    auxiliary_formula: str | None = None
    auxiliary_by: str | None = None

    @property
    def cause(self) -> str:
        """What it is, in words."""
        if self.exact:
            return "exact" if self.objective != "no_targets" else "no targets, and no gradient of their loss"
        said = SENTENCES.get(self.objective) or f"it is that of the {self.objective.replace('_', ' ')}" + _times(self.factor, self.formula)
        if self.auxiliary_by is not None:
            said += f", with the auxiliary loss averaged by {self.auxiliary_by}"
        if self.auxiliary_factor == 0:
            said += ", without the auxiliary loss"
        elif self.auxiliary_factor is not None:
            said += ", and the auxiliary loss is there" + _times(self.auxiliary_factor, self.auxiliary_formula)
            said += AS_A_SUM if self.auxiliary_formula is not None and "R*A/T" in self.auxiliary_formula.split(" or ") else ""
        return said


SENTENCES = {
    "none": "it is a multiple of no mean of the loss",
    "no_targets": "there are no targets, and yet there is a gradient",
    "no_gradient": "there is no gradient",
    "not_finite": "it is not finite, as a loss that is divided by no targets",
    "not_reduced": "it differs between the ranks: it was not reduced over them",
}
AS_A_SUM = ", as if it were a loss sum"


def _times(factor: float | None, formula: str | None) -> str:
    """A factor behind what it multiplies."""
    if factor is None:
        return ""
    return f" times {formula} ({factor:.6g})" if formula else f" times {factor:.6g}, which is made up of neither R, A nor T"


def diagnose(gram: Gram, counts: Counts, tolerance: float, floor: float = 0.0, auxiliary: str | None = None) -> Diagnosis:
    """What the vector `gradient` is, by its inner products with the means and with itself.

    `auxiliary` says how the auxiliary loss is averaged, where there is one; `floor`: a gradient that is smaller is as good as none.

    >>> twice = {"gradient": {"gradient": 4.0, **dict.fromkeys(MEANS, 2.0)}} | {
    ...     mean: {"gradient": 2.0, **dict.fromkeys(MEANS, 1.0)} for mean in MEANS}
    >>> diagnose(twice, [[4, 4, 4], [4, 4, 4]], 1e-4).cause
    'it is that of the token mean times R (2)'
    """
    size = gram["gradient"]["gradient"]
    if not math.isfinite(size):
        return Diagnosis("not_finite", math.inf, False)
    total = sum(map(sum, counts))
    declared = None if auxiliary is None else AUXILIARY[auxiliary]
    want = {"token_mean": 1.0} if declared is None else {"token_mean": 1.0, declared: 1.0}
    whole = max(math.sqrt(_square(gram, want)), floor)
    off = math.sqrt(_residual(gram, want))
    error = off / whole if whole else (math.inf if off else 0.0)
    if error <= tolerance:
        return Diagnosis("token_mean" if total else "no_targets", error, True)
    if not total:
        return Diagnosis("no_targets", error, False)
    if math.sqrt(size) <= tolerance * whole:
        return Diagnosis("no_gradient", error, False, 0.0)
    fits = [fit for mean in MEANS for fit in _fits(gram, mean, declared)]
    close = [fit for fit in fits if fit[0] <= tolerance * max(math.sqrt(size), floor)]
    named = factors(len(counts), max(map(len, counts)), total)
    readings = [(residual, _reading(mean, by, found, named, tolerance, error, declared)) for residual, mean, by, found in close]
    if not readings:
        return Diagnosis("none", error, False)
    best = min(residual for residual, _ in readings)
    noise = tolerance * tolerance * math.sqrt(size)
    likely = [reading for residual, reading in readings if residual <= TIE * max(best, noise)]
    return min(likely, key=_strangeness)


def _reading(
    mean: str, by: str | None, found: Sequence[float], named: Sequence[Sequence[tuple[str, float]]], tolerance: float, error: float,
    declared: str | None,
) -> Diagnosis:  # fmt: skip
    """A fit in words: its factors, each None where it is 1."""
    factor = None if math.isclose(found[0], 1, rel_tol=tolerance) else found[0]
    formula = None if factor is None else name_of(factor, named, tolerance)
    if by is None:
        return Diagnosis(mean, error, False, factor, formula)
    of_auxiliary = None if math.isclose(found[1], 1, rel_tol=tolerance) else found[1] if abs(found[1]) > tolerance else 0.0
    words = {column: word for word, column in AUXILIARY.items()}
    return Diagnosis(
        mean, error, False, factor, formula, of_auxiliary, name_of(of_auxiliary, named, tolerance) if of_auxiliary else None,
        None if by == declared or of_auxiliary == 0 else words[by],
    )  # fmt: skip


def _strangeness(reading: Diagnosis) -> tuple[bool, bool, int, int]:
    """How unlikely it is as a cause: factors without a name first, then other means than the plain one, then how many factors."""
    nameless = reading.factor is not None and reading.formula is None
    strange = reading.auxiliary_factor not in (None, 0.0) and reading.auxiliary_formula is None
    faults = (reading.factor, reading.auxiliary_factor, reading.auxiliary_by)
    return nameless, strange, MEANS.index(reading.objective), sum(fault is not None for fault in faults)


def _fits(gram: Gram, mean: str, declared: str | None) -> list[tuple[float, str, str | None, list[float]]]:
    """The multiples of a mean, and of an auxiliary loss where there is one, that come nearest; and how far they are from it."""
    found: list[tuple[float, str, str | None, list[float]]] = []
    for by in [None] if declared is None else sorted(AUXILIARY.values(), key=lambda column: column != declared):
        basis = [mean] if by is None else [mean, by]
        solved = _solved(gram, basis)
        if solved is not None:
            found.append((math.sqrt(_residual(gram, dict(zip(basis, solved, strict=True)))), mean, by, solved))
    return found


def _solved(gram: Gram, basis: Sequence[str]) -> list[float] | None:
    """The multiples of one or two vectors whose sum lies nearest to the gradient; None where the vectors cannot be told apart."""
    first = basis[0]
    if len(basis) == 1:
        return [gram[first]["gradient"] / gram[first][first]] if gram[first][first] else None
    second = basis[1]
    a, b, d = gram[first][first], gram[first][second], gram[second][second]
    x, y = gram[first]["gradient"], gram[second]["gradient"]
    if not a or not d:
        # Parameters that one of the two does not reach say nothing of its factor.
        return [x / a if a else 1.0, y / d if d else 1.0] if a or d else None
    determinant = a * d - b * b
    if determinant <= 1e-12 * a * d:
        return None
    return [(x * d - y * b) / determinant, (a * y - b * x) / determinant]


def _square(gram: Gram, multiples: Mapping[str, float]) -> float:
    """The squared length of a sum of multiples."""
    return max(0.0, sum(left * right * gram[a][b] for a, left in multiples.items() for b, right in multiples.items()))


def _residual(gram: Gram, multiples: Mapping[str, float]) -> float:
    """The squared distance between the gradient and a sum of multiples."""
    return _square(gram, {"gradient": 1.0, **{name: -multiple for name, multiple in multiples.items()}})
