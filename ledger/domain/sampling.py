"""The binomial law of how many of n independent draws succeed, each with probability p: every mass to double precision.

The masses follow from the first by one ratio each, in decimals of far more digits and a far wider range than doubles have, so nothing
underflows on the way and rounding happens once, at the end. Nothing here says anything about tokens: those of a document are correlated.
"""

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

MOST_DRAWS = 1000
DIGITS = 80
"""Some 60 more than a double holds: 1,000 ratios cannot use them up, and 1 - p is exact wherever a double near 1 can be p."""


def binomial_masses(p: float, n: int) -> list[float]:
    """The probability of each number of successes from 0 to n.

    Law: mass(k) = C(n, k) p^k (1 - p)^(n - k), rounded to a double once.

    >>> binomial_masses(0.5, 2), binomial_masses(1.0, 3)
    ([0.25, 0.5, 0.25], [0.0, 0.0, 0.0, 1.0])
    """
    if p in (0.0, 1.0):
        certain = n if p else 0
        return [float(k == certain) for k in range(n + 1)]
    with localcontext(Context(prec=DIGITS, Emin=MIN_EMIN, Emax=MAX_EMAX)):
        success = Decimal(p)
        failure = 1 - success
        odds = success / failure
        mass = failure**n
        masses = [float(mass)]
        for k in range(n):
            mass = mass * odds * (n - k) / (k + 1)
            masses.append(float(mass))
    return masses


def sample_mean_variance(p: float, n: int) -> float:
    """The variance of the mean of n independent draws.

    Law: p (1 - p) / n.

    >>> sample_mean_variance(0.5, 20), sample_mean_variance(0.5, 100)
    (0.0125, 0.0025)
    """
    return p * (1 - p) / n
