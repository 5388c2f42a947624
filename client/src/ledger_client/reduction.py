"""Over which ranks gradients are reduced, and how counts are added over the same ranks.

Nothing is imported: whoever has a model has torch. While a group is run for several ranks in one process, the sums are those of all
of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


def torch_module() -> Any:
    """The torch that the model is made of."""
    return sys.modules["torch"]


def fsdp_modules(model: Any) -> list[Any]:
    """The parts of a model that FSDP2 shards."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def device_of(model: Any) -> Any:
    """Where the parameters of a model lie."""
    return next(iter(model.parameters())).device


def reducing_group(model: Any, process_group: Any = None) -> Any:
    """The process group over which the gradients of a model are reduced; None for all ranks, or for a process that is alone.

    Raises: ValueError where the model does not say: its parameters are spread over a mesh of several axes, or not by FSDP2.
    """
    torch = torch_module()
    if process_group is not None:
        return process_group
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return model.process_group
    meshes = {mesh for parameter in model.parameters() if (mesh := getattr(parameter, "device_mesh", None)) is not None}
    if not meshes:
        return None
    if not fsdp_modules(model) or len(meshes) != 1 or any(mesh.ndim != 1 for mesh in meshes):
        raise ValueError("the parameters do not say over which ranks their gradients are reduced: name the process_group")
    return meshes.pop().get_group()


def rank_count(process_group: Any) -> int:
    """R: over how many ranks gradients are reduced."""
    if SIMULATIONS:
        return SIMULATIONS[-1].ranks
    distributed = torch_module().distributed
    return int(distributed.get_world_size(process_group)) if distributed.is_available() and distributed.is_initialized() else 1


def add_over_ranks(tensor: Any, process_group: Any) -> Any:
    """The sum of a tensor over the ranks, on its device, in place where there are others."""
    if SIMULATIONS:
        return SIMULATIONS[-1].add(tensor)
    if rank_count(process_group) > 1:
        torch_module().distributed.all_reduce(tensor, group=process_group)
    return tensor


class Simulation:
    """Ranks that run one after the other in one process.

    What a rank gives to a sum is heard in a first round, and what all of them gave is said in a second one, in the order of its calls.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._given: list[list[Any]] = [[] for _ in range(ranks)]
        self._rank = 0
        self._call = 0
        self._hearing = True

    def add(self, tensor: Any) -> Any:
        """The sum over all ranks, or what the rank itself gave while the others have not been heard. Raises: RuntimeError."""
        if self._hearing:
            self._given[self._rank].append(tensor.clone())
            return tensor
        place, self._call = self._call, self._call + 1
        if any(place >= len(given) for given in self._given):
            raise RuntimeError("the ranks do not add the same number of times: in a process group they would wait for ever")
        return torch_module().stack([given[place] for given in self._given]).sum(0)

    def run(self, step: Callable[[int], None], collect: Callable[[int], None], clear: Callable[[], None]) -> None:
        """Runs the ranks in both rounds; what each of them leaves behind in the second one is collected."""
        SIMULATIONS.append(self)
        try:
            for hearing in (True, False):
                self._hearing = hearing
                for rank in range(self.ranks):
                    self._rank, self._call = rank, 0
                    clear()
                    step(rank)
                    if not hearing:
                        collect(rank)
        finally:
            SIMULATIONS.pop()


SIMULATIONS: list[Simulation] = []
"""The one that runs, if any."""


def gathered(value: Any, process_group: Any) -> Sequence[Any]:
    """What each rank says, in the order of the ranks."""
    ranks = rank_count(process_group)
    if ranks == 1:
        return [value]
    said: list[Any] = [None] * ranks
    torch_module().distributed.all_gather_object(said, value, group=process_group)
    return said
