"""Rates that say what they are: a quantity, whose work, over which time, in which window, per what.

A rate over a resume never divides a whole run's tokens by one attempt's seconds: numerator and denominator cover the same window.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.domain.errors import InvalidRequest
from ledger.domain.quantities import QUANTITIES, UNITS

WORKS = ("attempted", "applied", "trajectory", "preserved")
TIMES = ("update", "checkpoint", "evaluation", "idle", "downtime", "wall")
PER = ("job", "accelerator")
WORK_WORDS = {
    "attempted": "all attempted work",
    "applied": "applied updates",
    "trajectory": "applied updates on the trajectory",
    "preserved": "preserved updates",
}
TIME_WORDS = {
    "update": "update time",
    "checkpoint": "checkpoint time",
    "evaluation": "evaluation time",
    "idle": "idle time",
    "downtime": "restart downtime",
    "wall": "wall-clock time",
}


@dataclass(frozen=True, slots=True)
class Window:
    """What part of a run a rate covers: all of it, one attempt, the last seconds, or a span of update numbers."""

    kind: str
    attempt: str | None = None
    seconds: float = 0.0
    first: int = 0
    last: int = 0

    @property
    def words(self) -> str:
        """The window in words."""
        match self.kind:
            case "attempt":
                return f"attempt {self.attempt}"
            case "last":
                return f"the last {self.seconds:g} s"
            case "updates":
                return f"updates {self.first} to {self.last}"
            case _:
                return "the whole run"


def window_of(text: str) -> Window:
    """The window that a request names.

    >>> window_of("updates:3-9").words
    'updates 3 to 9'

    Raises: InvalidRequest.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "run" and not rest:
            return Window("run")
        if kind == "attempt" and rest:
            return Window("attempt", attempt=rest)
        if kind == "last":
            seconds = float(rest.removesuffix("s"))
            if math.isfinite(seconds) and seconds > 0:
                return Window("last", seconds=seconds)
        if kind == "updates":
            first, last = (int(number) for number in rest.split("-"))
            if 0 <= first <= last:
                return Window("updates", first=first, last=last)
    except ValueError:
        pass
    raise InvalidRequest("window is run, attempt:ID, last:SECONDSs or updates:A-B", pointer="/window")


def checked(quantity: str, work: str, time: Sequence[str], per: str) -> None:
    """Refuses a rate that is not one of those that exist. Raises: InvalidRequest."""
    for name, value, choices in (("quantity", quantity, (*QUANTITIES, "updates")), ("work", work, WORKS), ("per", per, PER)):
        if value not in choices:
            raise InvalidRequest(f"{name} is one of {', '.join(choices)}", pointer=f"/{name}")
    if not time or any(item not in TIMES for item in time) or ("wall" in time and len(time) > 1):
        raise InvalidRequest(f"time is wall, or any of {', '.join(TIMES[:-1])}", pointer="/time")


def _figure(value: float) -> str:
    """A number as a sentence shows it: six digits, all of them where it is larger.

    >>> _figure(28_798_412.4), _figure(16.02341)
    ('28,798,412', '16.0234')
    """
    return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:,.6g}"


def rate(
    quantity: str, work: str, time: Sequence[str], window: Window, per: str, numerator: int | None, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """A rate with its conventions; `seconds` holds the job's and, for a rate per accelerator, the accelerators' seconds.

    Law: value = numerator / seconds; null where there is no time, or where some update lacks the quantity.
    """
    unit, denominator = UNITS[quantity], seconds[per]
    value = numerator / denominator if numerator is not None and denominator > 0 else None
    skipped = work == "attempted"
    again = work in ("attempted", "applied")
    amount = "an unknown number of" if numerator is None else f"{numerator:,}"
    result = "unknown" if value is None else f"{_figure(value)} {unit} per second"
    times = " and ".join(TIME_WORDS[item] for item in time)
    statement = (
        f"{result} per {per}: {amount} {unit} of {WORK_WORDS[work]} ({'with' if skipped else 'without'} skipped work, "
        f"{'with' if again else 'without'} work that was redone or lost) "
        f"over {_figure(denominator)} {'accelerator-' if per == 'accelerator' else ''}seconds of {times}, in {window.words}."
    )
    return {
        "value": value,
        "numerator": numerator,
        "seconds": denominator,
        "unit": f"{unit}/s",
        "quantity": quantity,
        "work": work,
        "time": time,
        "window": window.words,
        "per": per,
        "includes_skipped": skipped,
        "includes_recomputed": again,
        "statement": statement,
    }
