"""What scorers may look at."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of N images, row by row. Scorers use what they need of it.

    Attributes:
        coordinates: (N, d) float64, finite: the places on the map that all classes share.
        labels: (N,) the class that each image is said to have.
    """

    coordinates: NDArray[np.float64]
    labels: NDArray[np.int64]


class Scorer(Protocol):
    """How suspect each image is, in the scorer's own unit.

    Returns (N,) float64, each at least 0 and possibly infinite: higher = more suspect. It depends
    on nothing but its arguments, and not on the order of the rows. Choosing is not its business:
    any rule of `budgets` can follow.
    """

    def __call__(self, evidence: Evidence, *, min_samples: int) -> NDArray[np.float64]: ...
