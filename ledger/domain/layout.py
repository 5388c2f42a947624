"""Which rank holds which part of an update: ranks -> shards -> data-parallel ranks.

Ranks of one shard are replicas and counted once. Tensor- and pipeline-parallel ranks are replicas; context-parallel ranks are
shards of their own where each counts its slice (`cp_counts: shard`), replicas where each counts the whole sequence (`whole`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.domain.errors import InvalidRequest

AXES = ("dp", "tp", "pp", "cp")
DEFAULT_ORDER = "tp-cp-dp-pp"
LARGEST_WORLD = 2**20


@dataclass(frozen=True)
class Layout:
    """The shard and the data-parallel rank of each rank of an attempt.

    Shape: both arrays have one entry a rank. Law: ranks of one shard have one data-parallel rank.
    """

    shards: NDArray[np.int64]
    dp_ranks: NDArray[np.int64]

    @property
    def world_size(self) -> int:
        """Training processes of the attempt."""
        return len(self.shards)

    @cached_property
    def shard_count(self) -> int:
        """Distinct parts of an update."""
        return len(np.unique(self.shards))

    @cached_property
    def dp_of_shard(self) -> dict[int, int]:
        """The data-parallel rank that each shard belongs to."""
        return dict(zip(self.shards.tolist(), self.dp_ranks.tolist(), strict=True))

    @cached_property
    def dp_count(self) -> int:
        """R, the number of shards on the data-parallel axis."""
        return len(np.unique(self.dp_ranks))


def _explicit(shards: Sequence[int], dp_ranks: Sequence[int] | None) -> Layout:
    owners = shards if dp_ranks is None else dp_ranks
    if len(owners) != len(shards) or not shards:
        raise InvalidRequest("shards and dp_ranks need one entry a rank", pointer="/layout/dp_ranks")
    seen: dict[int, int] = {}
    for rank, (shard, owner) in enumerate(zip(shards, owners, strict=True)):
        if seen.setdefault(shard, owner) != owner:
            raise InvalidRequest(
                f"rank {rank} puts shard {shard} on data-parallel rank {owner}, another rank on {seen[shard]}",
                pointer=f"/layout/dp_ranks/{rank}",
            )
    return Layout(np.array(shards, dtype=np.int64), np.array(owners, dtype=np.int64))


def layout_of(declared: Mapping[str, Any] | None) -> Layout:
    """The layout that an attempt declares; one rank where it declares none.

    The first axis of `order` varies fastest with the rank.

    >>> layout_of({"dp": 2, "tp": 2}).shards.tolist()
    [0, 0, 1, 1]

    Raises: InvalidRequest where axes and order do not fit together.
    """
    declared = declared or {}
    if declared.get("shards") is not None:
        return _explicit(declared["shards"], declared.get("dp_ranks"))
    sizes = {axis: int(declared.get(axis) or 1) for axis in AXES}
    world = sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"]
    if world > LARGEST_WORLD:
        raise InvalidRequest(f"a world of {world} ranks is more than {LARGEST_WORLD}", pointer="/layout")
    order = str(declared.get("order") or DEFAULT_ORDER).split("-")
    if sorted(order) != sorted(AXES):
        missing = [axis for axis in AXES if axis not in order]
        if set(order) - set(AXES) or len(set(order)) != len(order) or any(sizes[axis] > 1 for axis in missing):
            raise InvalidRequest("order must name each axis of dp, tp, pp, cp once", pointer="/layout/order")
        order += missing
    place, stride, ranks = {}, 1, np.arange(world)
    for axis in order:
        place[axis] = (ranks // stride) % sizes[axis]
        stride *= sizes[axis]
    whole = declared.get("cp_counts") == "whole"
    shards = place["dp"] if whole else place["dp"] * sizes["cp"] + place["cp"]
    return Layout(shards.astype(np.int64), place["dp"].astype(np.int64))
