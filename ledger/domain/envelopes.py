"""Envelopes: what many updates look like as one stroke of a chart, none of their extremes hidden.

| series | of each update |
|---|---|
| valid_targets | its valid-token batch |
| occupancy | valid targets in an input slot |
| token_mean | its token mean |
| rank_gap | mean of rank means minus token mean |
| microbatch_gap | mean of microbatch means minus token mean |
| reported_loss | the trainer's own loss |

An update that lacks a value is in no envelope of that series; it is never taken as 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SERIES = ("valid_targets", "occupancy", "token_mean", "rank_gap", "microbatch_gap", "reported_loss")
Envelope = list[Any]
"""[how many values, their sum, the lowest, the highest]"""


def _floats(items: list[Any]) -> NDArray[np.float64]:
    return np.array([np.nan if item is None else item for item in items], dtype=np.float64)


def series_of(rows: Sequence[Any]) -> dict[str, NDArray[np.float64]]:
    """The value that each folded update gives to each series; NaN where it has none."""
    valid = _floats([None if row.unknown_valid_targets else row.known_valid_targets for row in rows])
    slots = _floats([None if row.unknown_input_slots else row.known_input_slots or None for row in rows])
    token_mean = _floats([row.token_mean for row in rows])
    return {
        "valid_targets": valid,
        "occupancy": valid / slots,
        "token_mean": token_mean,
        "rank_gap": _floats([row.mean_of_rank_means for row in rows]) - token_mean,
        "microbatch_gap": _floats([row.mean_of_microbatch_means for row in rows]) - token_mean,
        "reported_loss": _floats([None if row.reported_loss is None else float(row.reported_loss) for row in rows]),
    }


def envelopes_of(series: Mapping[str, NDArray[np.float64]]) -> dict[str, Envelope]:
    """The envelope of each series that has a value.

    >>> envelopes_of({"valid_targets": np.array([3.0, np.nan, 5.0]), "occupancy": np.array([np.nan])})
    {'valid_targets': [2, 8.0, 3.0, 5.0]}
    """
    found = {}
    for name, values in series.items():
        finite = values[np.isfinite(values)]
        if len(finite):
            found[name] = [len(finite), float(finite.sum()), float(finite.min()), float(finite.max())]
    return found


def joined(left: Mapping[str, Envelope], right: Mapping[str, Envelope]) -> dict[str, Envelope]:
    """The envelopes of two sets of updates together, series by series.

    >>> joined({"occupancy": [1, 5, 5, 5]}, {"occupancy": [2, 8, 3, 5]})
    {'occupancy': [3, 13, 3, 5]}
    """
    both = dict(left)
    for name, (count, total, low, high) in right.items():
        mine = both.get(name) or [0, 0, low, high]
        both[name] = [mine[0] + count, mine[1] + total, min(mine[2], low), max(mine[3], high)]
    return both
