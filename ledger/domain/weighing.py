"""What unequal numbers of valid targets on R data-parallel ranks do to the mean that a trainer takes, and to its gradient.

| each rank's loss sum is multiplied by | then a target of a rank that has n of them weighs, against the gradient of the token mean |
|---|---|
| R/T | 1 where gradients are averaged over the ranks, R where they are added |
| 1/T | 1/R where they are averaged, 1 where they are added |
| 1/n, each rank its own mean | T/(R n) where they are averaged, T/n where they are added |

A rank without valid targets has no mean: it is not in the mean of rank means, yet it is one of the R that gradients are averaged over.
"""

import math
from collections.abc import Sequence
from typing import Any

from ledger.domain.conventions import loss_scale, loss_scale_rule, reducer_is_sum

MOST_RANKS = 64
EVEN_TOLERANCE = 1e-12


def weighed(valid_targets: Sequence[int], loss_sums: Sequence[float], gradient_reducer: str) -> dict[str, Any]:
    """The token mean, the mean of rank means and the loss scale of one update, and what each way to scale does to the gradient.

    Law: token mean = sum of losses / sum of valid targets; null where there are none, as the mean of a rank that has none is.

    >>> found = weighed([30, 10], [60.0, 40.0], "mean")
    >>> found["token_mean"], found["mean_of_rank_means"], found["loss_scale"]
    (2.5, 3.0, 0.05)
    >>> [scale["gradient_factors"] for scale in found["scales"]][-1]
    [0.6666666666666666, 2.0]
    """
    declared = {"gradient_reducer": gradient_reducer}
    ranks, total = len(valid_targets), sum(valid_targets)
    means = [loss / count if count else None for count, loss in zip(valid_targets, loss_sums, strict=True)]
    of_ranks = [mean for mean in means if mean is not None]
    token_mean = math.fsum(loss_sums) / total if total else None
    mean_of_means = math.fsum(of_ranks) / len(of_ranks) if of_ranks else None
    return {
        "ranks": [
            {"rank": rank, "valid_targets": count, "loss_sum": loss, "mean": mean}
            for rank, (count, loss, mean) in enumerate(zip(valid_targets, loss_sums, means, strict=True))
        ],
        "gradient_reducer": gradient_reducer,
        "rank_count": ranks,
        "valid_targets": total,
        "token_mean": token_mean,
        "mean_of_rank_means": mean_of_means,
        "loss_scale_rule": loss_scale_rule(declared),
        "loss_scale": loss_scale(declared, ranks, total),
        "scales": _scales(valid_targets, gradient_reducer) if total else [],
        "statement": _statement(valid_targets, token_mean, mean_of_means, gradient_reducer),
    }


def _scales(valid_targets: Sequence[int], gradient_reducer: str) -> list[dict[str, Any]]:
    ranks, total = len(valid_targets), sum(valid_targets)
    is_sum = reducer_is_sum({"gradient_reducer": gradient_reducer})
    return [
        {"rule": "R/T", "scale": ranks / total, "gradient_factors": _alike(valid_targets, float(ranks) if is_sum else 1.0)},
        {"rule": "1/T", "scale": 1 / total, "gradient_factors": _alike(valid_targets, 1.0 if is_sum else 1 / ranks)},
        {
            "rule": "1/n",
            "scale": None,
            "gradient_factors": [total / (count if is_sum else ranks * count) if count else None for count in valid_targets],
        },
    ]


def _alike(valid_targets: Sequence[int], factor: float) -> list[float | None]:
    return [factor if count else None for count in valid_targets]


def _statement(valid_targets: Sequence[int], token_mean: float | None, mean_of_means: float | None, gradient_reducer: str) -> str:
    """What the numbers come to, in words."""
    if token_mean is None or mean_of_means is None:
        return "No rank has a valid target: there is no token mean, and the update must not be applied as if its loss were 0."
    factors = [factor for factor in _scales(valid_targets, gradient_reducer)[-1]["gradient_factors"] if factor is not None]
    low, high = min(factors), max(factors)
    if high - low > EVEN_TOLERANCE * high:
        return (
            f"The ranks hold unequal numbers of valid targets. If each rank divides by its own, one target weighs between {low:.4g} and "
            f"{high:.4g} times what it weighs in the token mean: no single factor repairs that gradient."
        )
    if abs(high - 1) <= EVEN_TOLERANCE:
        return "All ranks hold equally many valid targets: the two means are the same, and so are their gradients."
    return f"Each rank's own mean gives {high:.4g} times the gradient of the token mean: the whole gradient is off by that factor."
