"""Which mean the trainer's own loss is: the token mean, a mean of means, or one of them off by a whole factor.

A mean of rank means or of microbatch means weighs targets unequally wherever ranks or microbatches hold unequal numbers of them; a
loss that is off by R or by the number of accumulation steps has had a denominator applied twice, or not at all.
"""

import math
from collections.abc import Mapping
from typing import Any

from ledger.domain.conventions import LOSS_NAMES

RELATIVE_TOLERANCE = 1e-4
"""Two losses are the same within this: trainers report float32 numbers, often rounded for a log."""


def _same(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)


def verdict(reported: float | None, means: Mapping[str, float | None], dp_count: int, accumulation: int) -> tuple[str | None, float | None]:
    """Which mean the reported loss equals, and the whole factor that it is off by: (name, factor).

    The factor is reported / mean. Null where nothing can be compared; `none` where the loss is none of the means.

    >>> verdict(5.0, {"token_mean": 2.5}, 2, 1)
    ('token_mean', 2.0)
    """
    if reported is None or not math.isfinite(reported) or all(means.get(name) is None for name in LOSS_NAMES):
        return None, None
    for name in LOSS_NAMES:
        mean = means.get(name)
        if mean is not None and _same(reported, mean):
            return name, None
    factors = sorted({float(f) for f in (dp_count, accumulation, dp_count * accumulation) if f and f > 1})
    for name in LOSS_NAMES:
        mean = means.get(name)
        for factor in factors if mean else ():
            for candidate in (factor, 1 / factor):
                if _same(reported, (mean or 0.0) * candidate):
                    return name, candidate
    return "none", None


def statement(verdicts: Mapping[str, int], rule: str) -> str:
    """One sentence on what the reported loss is."""
    compared = sum(verdicts.values())
    if not compared:
        return f"No update could be compared; the loss scale of the global token mean is {rule}."
    name, count = max(sorted(verdicts.items()), key=lambda item: item[1])
    what, _, factor = name.partition("*")
    words = what.replace("_", " ")
    end = f"the loss scale of the global token mean is {rule}."
    if what == "none":
        return f"In {count} of {compared} updates the reported loss is none of the means; {end}"
    scale = f", off by the factor {float(factor):g}" if factor else ""
    return f"In {count} of {compared} updates the reported loss is the {words}{scale}; {end}"


def label(name: str | None, factor: float | None) -> str | None:
    """A verdict as one word, to count by: the mean's name, with `*factor` behind it where it is off."""
    return None if name is None else name if factor is None else f"{name}*{factor!r}"


def common(verdicts: Mapping[str, int]) -> tuple[str | None, float | None]:
    """The verdict that most updates share."""
    if not verdicts:
        return None, None
    name, _, factor = max(sorted(verdicts.items()), key=lambda item: item[1])[0].partition("*")
    return name, float(factor) if factor else None


def larger_gap(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Of two updates the one whose token mean and mean of rank means lie further apart; the earlier one where they tie."""
    if left is None or right is None:
        return left or right

    def size(item: Mapping[str, Any]) -> tuple[float, int]:
        return abs(item["token_mean"] - item["mean_of_rank_means"]), -int(item["update"])

    return max(left, right, key=size)
