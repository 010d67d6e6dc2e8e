"""Several tests at once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values (..., m) of families of m tests, adjusted so that each may be compared with alpha itself.

    The chance of any false rejection in a family is then at most alpha, however the tests depend on each other
    (Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70). In ascending
    order the k-th p is multiplied by m - k + 1, and none is below one before it.

    Args:
        p_values: (..., m), 0 to 1.
    """
    given = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(given, axis=-1)
    ascending = np.take_along_axis(given, order, axis=-1) * np.arange(given.shape[-1], 0, -1)
    adjusted = np.empty_like(given)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(ascending, axis=-1), 1), axis=-1)
    return adjusted
