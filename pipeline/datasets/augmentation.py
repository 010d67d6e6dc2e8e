"""Random crops and flips, drawn for the whole data set at once.

What happens to an image depends on (seed, epoch, sample id) alone: not on the batch size, on the
arm, or on how many processes share the work.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_TAG = 2


@dataclass(frozen=True, kw_only=True)
class Draws:
    """One epoch's random choices: `offsets` (N, 2) top and left in pixels, `flips` (N,) bool."""

    offsets: NDArray[np.int64]
    flips: NDArray[np.bool_]


def draw(n: int, *, seed: int, epoch: int, n_offsets: int, flip: bool) -> Draws:
    """Draw for all `n` images of the data set.

    Args:
        n_offsets: possible crop positions on each axis; 1 means no freedom.
        flip: whether an image is mirrored with probability one half.
    """
    rng = np.random.default_rng([seed, _TAG, epoch])
    offsets = rng.integers(0, n_offsets, size=(n, 2))
    flips = rng.random(n) < 0.5
    return Draws(offsets=offsets, flips=flips if flip else np.zeros(n, dtype=np.bool_))
