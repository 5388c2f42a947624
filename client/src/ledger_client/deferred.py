"""Numbers that the trainer hands over: integers at once, values on a device later, off the training thread.

Reading a value from a device makes the host wait for all work queued before it. So a copy is queued behind that work, into host
memory where the library can do that, and the sender's thread reads it when the copy has been made. No library is imported for it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from .landing import landing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .notices import Notices
    from .shapes import Arrival

LARGEST_COUNT = 2**53


class Held:
    """A value on a device that is waited for elsewhere."""

    __slots__ = ("_arrival", "_number", "name")

    def __init__(self, value: Any, name: str) -> None:
        self.name = name
        # A tensor may be changed in place by the next step; arrays that cannot be changed have no `detach`.
        arrival = landing(value) if hasattr(value, "detach") else None
        self._arrival: Arrival | None = arrival if arrival is not None else Unmoved(value)
        self._number: Any = None

    def ready(self) -> bool:
        """Whether reading would not wait for the device."""
        try:
            return self._arrival is None or self._arrival.ready()
        except Exception:  # whatever the device's library raises: reading the value will fail too, and then it is unknown
            return True

    def number(self) -> Any:
        """The value as a Python number. Raises: whatever the device's library raises."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self._number = arrival.number()
        return self._number


class Unmoved:
    """A value that is read where it is, by the sender's thread: its library brings it to the host, or makes only that thread wait."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        detach = getattr(value, "detach", None)
        self._value = value if detach is None else detach().clone()
        bring = getattr(value, "copy_to_host_async", None)
        if bring is not None:
            bring()

    def ready(self) -> bool:
        """Whether the value has been computed; it is taken to be where its library does not say."""
        is_ready = getattr(self._value, "is_ready", None)
        return is_ready is None or bool(is_ready())

    def number(self) -> Any:
        """The value."""
        return self._value.item()


def on_device(value: object) -> bool:
    """Whether reading the value would make the host wait: it lies on a device, or is still being computed on the host."""
    if not hasattr(value, "item"):
        return False
    is_ready = getattr(value, "is_ready", None)
    if callable(is_ready):
        devices = getattr(value, "devices", None)
        return not is_ready() or (callable(devices) and any(device.platform != "cpu" for device in devices()))
    device = getattr(value, "device", None)
    if device is None or callable(device):
        return False
    place = getattr(device, "type", None) or getattr(device, "platform", None) or str(device)
    return place != "cpu"


def count(value: Any, name: str) -> int | Held | None:
    """A count as it was handed over: an integer, one to come, or None for unknown.

    Raises: TypeError, ValueError where it is no count, as its type says even on a device; whatever its library raises.
    """
    if value is None:
        return None
    if on_device(value):
        kind = str(getattr(value, "dtype", "int64")).removeprefix("torch.")
        if not kind.startswith(("int", "uint")):
            raise TypeError(f"a count is an integer, not of the type {kind}")
        return Held(value, name)
    return checked_count(value)


def checked_count(value: Any) -> int:
    """The value as an exact count. Raises: TypeError, ValueError."""
    if isinstance(value, bool):
        raise TypeError("a count is an integer, not a truth value")
    number = operator.index(value)
    if not 0 <= number <= LARGEST_COUNT:
        raise ValueError(f"a count lies between 0 and 2^53: {number}")
    return number


def real(value: Any, name: str) -> float | Held | None:
    """A float as it was handed over; it may be NaN or infinite. Raises: TypeError, ValueError where it is none."""
    if value is None:
        return None
    if on_device(value):
        return Held(value, name)
    # A tensor that requires a gradient warns when it is converted; its element does not.
    return float(value.item() if hasattr(value, "item") else value)


def arrived_count(value: Held, notices: Notices) -> int | None:
    """The count behind a value that was held; None, and said, where there is none."""
    try:
        return checked_count(value.number())
    except Exception as error:  # TypeError, ValueError, and whatever the device's library raises
        notices.say(f"count {value.name}", "%s is recorded as unknown: %s", value.name, error)
        return None


def arrived_real(value: Held, notices: Notices) -> float | None:
    """The float behind a value that was held; None, and said, where there is none."""
    try:
        return float(value.number())
    except Exception as error:  # TypeError, ValueError, and whatever the device's library raises
        notices.say(value.name, "%s is recorded as unknown: %s", value.name, error)
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
