"""The permutation test of a trend."""

import itertools
import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

ENUMERATED = 7
"""Up to so many values all orders are tried."""

RANDOM_ORDERS = math.factorial(ENUMERATED) - 1
"""How many random orders stand for all of them beyond that."""


def trend_test(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """One-sided p-values of the hypotheses that y (n,) does not rise with x (n,), and that it does not fall.

    If x does not matter, the values of y could as well stand in any other order: p is the share of orders in which the
    least-squares slope is as steep as the one found (Pitman 1937, doi:10.2307/2983647). Assumes of the values no more
    than that they are exchangeable. With more than ENUMERATED values, RANDOM_ORDERS random orders and the one found
    are counted instead, which keeps the test valid (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).

    `scipy.stats.permutation_test` gives the same p up to ENUMERATED values (a test compares them). It returns
    one of the two p-values a call, compares slopes to within 100 eps of the observed one, which loses ties of slopes
    near 0, and takes other random orders, which would change published p-values.
    """
    values = np.asarray(y, dtype=np.float64)
    centred = np.asarray(x, dtype=np.float64)
    centred = centred - centred.mean()
    found = values @ centred
    slopes = np.append(values[_orders(len(values))] @ centred, [] if len(values) <= ENUMERATED else found)
    # Equal values tie; rounding must not tell equal sums apart.
    ulp = 1e-12 * float(np.abs(values) @ np.abs(centred))
    return float((slopes >= found - ulp).mean()), float((slopes <= found + ulp).mean())


@cache
def _orders(n: int) -> NDArray[np.int8]:
    """(orders, n)."""
    if n <= ENUMERATED:
        return np.array(list(itertools.permutations(range(n))), dtype=np.int8)
    rows = np.tile(np.arange(n, dtype=np.int8), (RANDOM_ORDERS, 1))
    return np.random.default_rng(0).permuted(rows, axis=1)
