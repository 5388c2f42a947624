"""Numbers that the trainer hands over: integers at once, values on a device later, off the training thread.

Reading a value from a device makes the host wait for all work queued before it. So the value is copied on the device, behind that
work, and read by the sender's thread when the copy has been made.
"""

import operator
import sys
from collections.abc import Callable
from typing import Protocol, cast

from .records import LOSS_KNOWN, MEANS_KNOWN, RANGES_KNOWN, UNKNOWN, Sums

LARGEST_COUNT = 2**53


class OnDevice(Protocol):
    """An array of one element."""

    def item(self) -> object:
        """The element, as a Python number."""


class Event(Protocol):
    """A place in the work queue of a device."""

    def record(self) -> None:
        """Mark the present end of the queue."""

    def query(self) -> bool:
        """Whether the work up to the mark is done."""


class Held:
    """A value on a device that is waited for elsewhere."""

    __slots__ = ("_copied", "_number", "_value")

    def __init__(self, value: object) -> None:
        detach = getattr(value, "detach", None)
        # A tensor may be changed in place by the next step; arrays that cannot be changed have no `detach`.
        self._value: object = detach().clone() if detach is not None else value
        self._copied = copy_event(value)
        self._number: object = self

    def ready(self) -> bool:
        """Whether reading would not wait for the device."""
        return self._copied is None or self._copied.query()

    def number(self) -> object:
        """The value as a Python number; None where the device could not give it."""
        if self._number is self:
            try:
                self._number = cast(OnDevice, self._value).item()
            except Exception:  # whatever the device's library raises: the event stays, this value is unknown
                self._number = None
            self._value = self._copied = None
        return self._number


def copy_event(value: object) -> Event | None:
    """An event behind the copy just queued, where the value's library has such events."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(value, "device", None), "type", None) != "cuda":
        return None
    event = cast(Event, torch.cuda.Event())
    event.record()
    return event


def on_device(value: object) -> bool:
    """Whether reading the value would make the host wait."""
    if not hasattr(value, "item"):
        return False
    device = getattr(value, "device", None)
    if device is None or callable(device):
        return False
    place = getattr(device, "type", None) or getattr(device, "platform", None) or str(device)
    return place != "cpu"


def count(value: object) -> int | Held | None:
    """A count as it was handed over: an integer, one to come, or None for unknown.

    Raises: TypeError, ValueError where it is no count.
    """
    if value is None:
        return None
    if on_device(value):
        return Held(value)
    return checked_count(value)


def checked_count(value: object) -> int:
    """The value as an exact count. Raises: TypeError, ValueError."""
    if isinstance(value, bool):
        raise TypeError("a count is an integer, not a truth value")
    number = operator.index(cast(int, value))
    if not 0 <= number <= LARGEST_COUNT:
        raise ValueError(f"a count lies between 0 and 2^53: {number}")
    return number


def real(value: object) -> float | Held | None:
    """A float as it was handed over; it may be NaN or infinite. Raises: TypeError, ValueError where it is none."""
    if value is None:
        return None
    if on_device(value):
        return Held(value)
    # A tensor that requires a gradient warns when it is converted; its element does not.
    return float(cast(float, cast(OnDevice, value).item() if hasattr(value, "item") else value))


def arrived_count(value: int | Held | None) -> int:
    """The number behind a count; `UNKNOWN` where there is none."""
    number = value.number() if isinstance(value, Held) else value
    try:
        return UNKNOWN if number is None else checked_count(number)
    except (TypeError, ValueError):
        return UNKNOWN


def arrived_real(value: float | Held | None) -> float | None:
    """The number behind a float; None where there is none."""
    number = value.number() if isinstance(value, Held) else value
    try:
        return None if number is None else float(cast(float, number))
    except (TypeError, ValueError):
        return None


def add(sums: Sums, slots: int, tokens: int, targets: int, samples: int, loss: float | None, ranges_known: bool) -> Sums:
    """The sums with one more microbatch. Counts may be `UNKNOWN`, which the sum then is too.

    The mean of a microbatch is its loss over its targets; one without targets has none and is not scored.
    """
    all_slots, all_tokens, all_targets, all_samples, microbatches, scored, all_loss, means, known = sums
    if loss is None:
        known &= ~(LOSS_KNOWN | MEANS_KNOWN)
    else:
        all_loss += loss
        if targets > 0:
            means += loss / targets
            scored += 1
        elif targets < 0:
            known &= ~MEANS_KNOWN
    if not ranges_known:
        known &= ~RANGES_KNOWN
    return (
        UNKNOWN if all_slots < 0 or slots < 0 else all_slots + slots,
        UNKNOWN if all_tokens < 0 or tokens < 0 else all_tokens + tokens,
        UNKNOWN if all_targets < 0 or targets < 0 else all_targets + targets,
        UNKNOWN if all_samples < 0 or samples < 0 else all_samples + samples,
        microbatches + 1,
        scored,
        all_loss,
        means,
        known,
    )


Values = tuple[int | Held | None, int | Held | None, int | Held | None, int | Held | None, float | Held | None, bool]


class Replay:
    """The microbatches of a group from the first one on that had a value on a device."""

    __slots__ = ("_base", "_microbatches", "fresh")

    def __init__(self, base: Sums) -> None:
        self._base = base
        self._microbatches: list[Values] = []
        self.fresh: dict[str, Held] = {}

    def keep(self, slots: int, tokens: int, targets: int, samples: int, loss: float | None, ranges_known: bool) -> None:
        """Keep one microbatch, with the held values in the place of the unknown ones."""
        fresh, self.fresh = self.fresh, {}
        self._microbatches.append(
            (
                fresh.get("input_slots", slots),
                fresh.get("consumed_tokens", tokens),
                fresh.get("valid_targets", targets),
                fresh.get("samples", samples),
                fresh.get("loss_sum", loss),
                ranges_known,
            )
        )

    def ready(self) -> bool:
        """Whether all values have arrived."""
        return all(value.ready() for values in self._microbatches for value in values if isinstance(value, Held))

    def sums(self) -> Sums:
        """The sums with the values that have arrived."""
        sums = self._base
        for slots, tokens, targets, samples, loss, ranges_known in self._microbatches:
            counts = arrived_count(slots), arrived_count(tokens), arrived_count(targets), arrived_count(samples)
            sums = add(sums, *counts, arrived_real(loss), ranges_known)
        return sums


class AwaitedBody:
    """A record that is packed once all its values have arrived."""

    __slots__ = ("_pack", "_ready")

    def __init__(self, ready: Callable[[], bool], pack: Callable[[], bytes]) -> None:
        self._ready = ready
        self._pack = pack

    def ready(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._ready()

    def body(self) -> bytes:
        """The record's body with the values in it."""
        return self._pack()
