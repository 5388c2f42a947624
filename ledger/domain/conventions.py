"""What a run declares about itself, and what follows from it.

An attempt's conventions lie over the run's, key by key; they are kept with the attempt, so that a report can say what changed.
"""

from collections.abc import Mapping
from typing import Any

SCHEDULE_CLOCKS = ("applied_updates", "attempted_updates", "valid_targets", "consumed_samples")
LOSS_NAMES = ("token_mean", "mean_of_rank_means", "mean_of_microbatch_means")


def effective(run: Mapping[str, Any] | None, attempt: Mapping[str, Any] | None) -> dict[str, Any]:
    """The conventions that hold in an attempt."""
    result = {key: value for key, value in (run or {}).items() if value is not None}
    for key, value in (attempt or {}).items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = {**result[key], **{name: item for name, item in value.items() if item is not None}}
        elif value is not None:
            result[key] = value
    return result


def data_unit(conventions: Mapping[str, Any]) -> str:
    """Whether ranges are sampler positions or sample ids."""
    return str((conventions.get("data") or {}).get("unit") or "position")


def repeats_expected(conventions: Mapping[str, Any]) -> bool:
    """Whether data is drawn more than once in an epoch on purpose."""
    return bool((conventions.get("data") or {}).get("repeats_expected"))


def reducer_is_sum(conventions: Mapping[str, Any]) -> bool:
    """Whether gradients are added over the data-parallel ranks instead of averaged."""
    return str(conventions.get("gradient_reducer") or "mean").startswith("sum")


def loss_scale(conventions: Mapping[str, Any], dp_count: int, valid_targets: int | None) -> float | None:
    """The factor on each rank's loss sum that gives the gradient of the global token mean.

    Law: R / T where gradients are averaged over R data-parallel ranks, 1 / T where they are added.

    >>> loss_scale({}, 2, 36) == 2 / 36
    True
    """
    if not valid_targets:
        return None
    return (1 if reducer_is_sum(conventions) else dp_count) / valid_targets


def loss_scale_rule(conventions: Mapping[str, Any]) -> str:
    """The loss scale as a formula."""
    return "1/T" if reducer_is_sum(conventions) else "R/T"
