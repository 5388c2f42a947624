"""Numbers that the trainer hands over: integers at once, values on a device later, off the training thread.

Reading a value from a device makes the host wait for all work queued before it. So a copy is queued behind that work, into host
memory where the library can do that, and the sender's thread reads it when the copy has been made.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .shapes import CopyEvent

LARGEST_COUNT = 2**53


class Held:
    """A value on a device that is waited for elsewhere."""

    __slots__ = ("_copied", "_number", "_value")

    def __init__(self, value: object) -> None:
        self._value: Any
        self._value, self._copied = queued_copy(value)
        self._number: Any = self

    def ready(self) -> bool:
        """Whether reading would not wait for the device."""
        try:
            if self._copied is not None:
                return self._copied.query()
            is_ready = getattr(self._value, "is_ready", None)
            return is_ready is None or bool(is_ready())
        except Exception:  # whatever the device's library raises: `number` will find the value unknown
            return True

    def number(self) -> Any:
        """The value as a Python number; None where the device could not give it."""
        if self._number is self:
            try:
                self._number = self._value.item()
            except Exception:  # whatever the device's library raises: the event stays, this value is unknown
                self._number = None
            self._value = self._copied = None
        return self._number


def queued_copy(value: Any) -> tuple[object, CopyEvent | None]:
    """The value as no later step of the trainer changes it, and the event behind which it may be read, where its library has those.

    A tensor may be changed in place by the next step; arrays that cannot be changed have no `detach`.
    """
    detach = getattr(value, "detach", None)
    if detach is None:
        return value, None
    torch = sys.modules.get("torch")
    place = value.device
    if torch is None or place.type != "cuda":
        return detach().clone(), None
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    copy.copy_(detach(), non_blocking=True)
    event: CopyEvent = torch.cuda.Event()
    event.record(torch.cuda.current_stream(place))
    return copy, event


def on_device(value: object) -> bool:
    """Whether reading the value would make the host wait: it lies on a device, or is still being computed on the host."""
    if not hasattr(value, "item"):
        return False
    is_ready = getattr(value, "is_ready", None)
    if callable(is_ready):
        return not is_ready()
    device = getattr(value, "device", None)
    if device is None or callable(device):
        return False
    place = getattr(device, "type", None) or getattr(device, "platform", None) or str(device)
    return place != "cpu"


def count(value: Any) -> int | Held | None:
    """A count as it was handed over: an integer, one to come, or None for unknown.

    Raises: TypeError, ValueError where it is no count.
    """
    if value is None:
        return None
    if on_device(value):
        return Held(value)
    return checked_count(value)


def checked_count(value: Any) -> int:
    """The value as an exact count. Raises: TypeError, ValueError."""
    if isinstance(value, bool):
        raise TypeError("a count is an integer, not a truth value")
    number = operator.index(value)
    if not 0 <= number <= LARGEST_COUNT:
        raise ValueError(f"a count lies between 0 and 2^53: {number}")
    return number


def real(value: Any) -> float | Held | None:
    """A float as it was handed over; it may be NaN or infinite. Raises: TypeError, ValueError where it is none."""
    if value is None:
        return None
    if on_device(value):
        return Held(value)
    # A tensor that requires a gradient warns when it is converted; its element does not.
    return float(value.item() if hasattr(value, "item") else value)


def arrived_count(value: Held) -> int | None:
    """The count behind a value that was held; None where there is none."""
    number = value.number()
    try:
        return None if number is None else checked_count(number)
    except (TypeError, ValueError):
        return None


def arrived_real(value: Held) -> float | None:
    """The float behind a value that was held; None where there is none."""
    number = value.number()
    try:
        return None if number is None else float(number)
    except (TypeError, ValueError):
        return None


class AwaitedPayload:
    """A record that is packed once all its values have arrived; `unfilled` is the same with those values unknown."""

    __slots__ = ("_pack", "_values", "unfilled")

    def __init__(self, values: list[Held], pack: Callable[[], bytes], unfilled: bytes) -> None:
        self._values = values
        self._pack = pack
        self.unfilled = unfilled

    def ready(self) -> bool:
        """Whether the values can be read without waiting."""
        return all(value.ready() for value in self._values)

    def payload(self) -> bytes:
        """The record's payload with the values in it."""
        return self._pack()
