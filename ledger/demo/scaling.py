"""Dynamic loss scaling: half precision overflows above 65,504, and then the update must be withheld and the scale halved.

Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2.
"""

from dataclasses import dataclass

import numpy as np

from ledger.demo.model import Floats


@dataclass(slots=True)
class LossScale:
    """The factor on the loss: halved by an overflow, doubled after `growth_interval` updates without one."""

    value: float
    growth_interval: int
    finite_count: int = 0

    def after(self, *, finite: bool) -> None:
        """Take note of whether an update's summed gradient was finite."""
        if not finite:
            self.value, self.finite_count = self.value / 2, 0
            return
        self.finite_count += 1
        if self.finite_count == self.growth_interval:
            self.value, self.finite_count = self.value * 2, 0


def through_half_precision(gradient: Floats) -> Floats:
    """The gradient as half precision can hold it: what is too large becomes infinite, what is too small zero."""
    # An overflow is an expected outcome here, which the trainer looks for itself: no warning.
    with np.errstate(over="ignore"):
        return gradient.astype(np.float16).astype(np.float32)
