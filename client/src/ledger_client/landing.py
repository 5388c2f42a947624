"""How the value of a tensor gets to the host while nobody waits for it.

The training thread queues two copies behind the work that computes the value, each into its own place in pinned host memory: the
value, then a one. Copies of one stream land in their order, so whoever sees the one can read the value. The sender's thread looks at
host memory alone and asks the device nothing: a query of an event would spoil a CUDA graph that the training thread is capturing.
The places are used again, so that after the first values no memory is taken or given back.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLACES = 64


class Landings:
    """The places of torch, and the ones that lie ready on its devices: one for each stream, behind whose work it was made."""

    def __init__(self, torch: Any, pinned: bool) -> None:
        self._torch = torch
        self._pinned = pinned
        self._ones: dict[object, Any] = {}
        self._free: list[Any] = []

    def queued(self, value: Any, stream: object) -> Landing:
        """Queue the copies of a value in its device's present stream. Raises: ValueError where it is no number; whatever torch raises."""
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"a tensor of shape {tuple(value.shape)} and type {value.dtype} is no number")
        one = self._ones.get((value.device, stream))
        if one is None:
            one = self._ones[value.device, stream] = self._torch.ones_like(value.detach(), dtype=self._torch.uint8).reshape(())
        try:
            place = self._free.pop()
        except IndexError:
            place = self._more()
        double, single, integer, flag = place
        floating = double if value.dtype == self._torch.float64 else single
        number = floating if value.is_floating_point() else integer
        number.copy_(value.detach().reshape(()), non_blocking=True)
        flag.copy_(one, non_blocking=True)
        return Landing(place, number, flag, self._free)

    def _more(self) -> Any:
        """One new place; others with it lie ready for the next values."""
        torch = self._torch
        # Memory that is made in inference mode could not be written outside of it, and a default device may be set.
        with torch.inference_mode(False):
            types = torch.float64, torch.float32, torch.int64, torch.uint8
            rows = [torch.zeros(PLACES, dtype=of_type, device="cpu", pin_memory=self._pinned).unbind() for of_type in types]
        place, *others = zip(*rows, strict=True)
        self._free += others
        return place


class Landing:
    """One value on its way."""

    __slots__ = ("_flag", "_free", "_number", "_place")

    def __init__(self, place: Any, number: Any, flag: Any, free: list[Any]) -> None:
        self._place = place
        self._number = number
        self._flag = flag
        self._free = free

    def ready(self) -> bool:
        """Whether the value has landed."""
        return bool(self._flag.item())

    def number(self) -> Any:
        """The value; its place is free again, so it is read once."""
        number = self._number.item()
        self._flag.zero_()
        self._free.append(self._place)
        return number


LANDINGS: dict[str, Landings] = {}
"""By the kind of device."""


def landing(value: Any) -> Landing | None:
    """The value of a tensor on its way; None where its device has no queue that copies to pinned memory.

    Raises: RuntimeError while a graph is captured, which would repeat the copy and not this call; whatever torch raises.
    """
    torch = sys.modules.get("torch")
    kind = getattr(value.device, "type", "")
    device: Any = getattr(torch, kind, None)
    if not hasattr(device, "current_stream"):
        return None
    begun = kind != "cpu" and bool(device.is_initialized())
    if begun and getattr(device, "is_current_stream_capturing", bool)():
        raise RuntimeError("a value cannot be recorded while a graph is captured")
    landings = LANDINGS.get(kind)
    if landings is None:
        landings = LANDINGS[kind] = Landings(torch, begun)
    return landings.queued(value, device.current_stream(value.device) if begun else None)
