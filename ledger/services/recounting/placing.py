"""Where each rank of an attempt stands: the shard that it holds a replica of, and its data-parallel rank."""

from dataclasses import dataclass
from typing import Any

AXES = ("dp", "tp", "pp", "cp")
USUAL_ORDER = "tp-cp-dp-pp"


@dataclass(frozen=True, slots=True)
class Placement:
    """The shard and the data-parallel rank of each rank."""

    shard_of: tuple[int, ...]
    dp_rank_of: tuple[int, ...]
    owner_of: dict[int, int]
    """The data-parallel rank that each shard belongs to."""


def placement(layout: dict[str, Any] | None) -> Placement:
    """The placement that a layout says outright, or that follows from its axes: the first axis of its order varies fastest.

    >>> placement({"dp": 2, "tp": 2}).shard_of
    (0, 0, 1, 1)
    """
    layout = layout or {}
    if layout.get("shards") is not None:
        shards = tuple(layout["shards"])
        return _placed(shards, tuple(layout["dp_ranks"]) if layout.get("dp_ranks") is not None else shards)
    sizes = {axis: layout.get(axis) or 1 for axis in AXES}
    order = [axis for axis in (layout.get("order") or USUAL_ORDER).split("-") if axis in sizes]
    world = sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"]
    shards_found, owners = [], []
    for rank in range(world):
        left, at = rank, dict.fromkeys(AXES, 0)
        for axis in order:
            left, at[axis] = divmod(left, sizes[axis])
        owners.append(at["dp"])
        whole = layout.get("cp_counts") == "whole"
        shards_found.append(at["dp"] if whole else at["dp"] * sizes["cp"] + at["cp"])
    return _placed(tuple(shards_found), tuple(owners))


def _placed(shards: tuple[int, ...], owners: tuple[int, ...]) -> Placement:
    return Placement(shards, owners, dict(zip(shards, owners, strict=True)))
