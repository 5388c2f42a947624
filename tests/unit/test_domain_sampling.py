"""Binomial masses against SciPy and against whole-number arithmetic, at every corner."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from ledger.domain.sampling import MOST_DRAWS, binomial_masses, sample_mean_variance

PROBABILITIES = (0.0, 5e-324, 1e-300, 1e-9, 0.02, 0.3, 0.5, 0.999, 1 - 2**-53, 1.0)


@pytest.mark.parametrize("n", [1, 2, 20, 100, MOST_DRAWS])
@pytest.mark.parametrize("p", PROBABILITIES)
def test_masses_are_those_of_scipy(p: float, n: int) -> None:
    found, right = np.array(binomial_masses(p, n)), binom.pmf(np.arange(n + 1), n, p)
    assert found.shape == right.shape
    # SciPy's own masses are good to some thirteen digits.
    assert np.allclose(found, right, rtol=1e-12, atol=1e-300)
    assert math.isclose(math.fsum(found.tolist()), 1.0, rel_tol=1e-15)


@pytest.mark.parametrize(("p", "n"), [(0.3, 200), (0.5, MOST_DRAWS), (1e-9, 60), (1 - 2**-53, 60)])
def test_masses_are_the_nearest_doubles(p: float, n: int) -> None:
    exact = Fraction(p)
    assert binomial_masses(p, n) == [float(math.comb(n, k) * exact**k * (1 - exact) ** (n - k)) for k in range(n + 1)]


def test_nothing_underflows_that_a_double_can_hold() -> None:
    masses = binomial_masses(0.5, MOST_DRAWS)
    assert masses[0] == masses[-1] == 0.5**1000 > 0
    assert binomial_masses(1e-9, MOST_DRAWS)[30] == pytest.approx(binom.pmf(30, MOST_DRAWS, 1e-9), rel=1e-12)


def test_certain_outcomes_are_certain() -> None:
    assert binomial_masses(0.0, 3) == [1.0, 0.0, 0.0, 0.0]
    assert binomial_masses(1.0, 3) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("p", "n"), [(0.5, 20), (0.5, 100), (0.02, 1000), (1e-9, 1), (0.0, 7), (1.0, 7)])
def test_the_predicted_variance_is_that_of_the_masses(p: float, n: int) -> None:
    spread = math.fsum(mass * (k / n - p) ** 2 for k, mass in enumerate(binomial_masses(p, n)))
    assert sample_mean_variance(p, n) == pytest.approx(spread, rel=1e-12)


def test_the_presets() -> None:
    assert [sample_mean_variance(0.5, 20), sample_mean_variance(0.5, 100)] == [0.0125, 0.0025]
