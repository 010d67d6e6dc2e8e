"""Early elimination of trials that fall behind, after the example of Rand (2021): who stays after an epoch."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Accuracies are decimal fractions: 0.8 is 0.1 below 0.9 and 0.7 is 0.1 below 0.8, whatever the last bit says.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far below the best a trial may lie and stay.

    Attributes:
        amount: in [0, 1): as accuracy if absolute, as a share of the best accuracy if relative.
        kind: at a best accuracy of 0.5, an amount of 0.1 keeps 0.40 and above if absolute, 0.45 if relative.
    """

    amount: float
    kind: Literal["absolute", "relative"]

    def __post_init__(self) -> None:
        assert 0 <= self.amount < 1, self.amount


def remaining(accuracies: ArrayLike, tolerance: Tolerance) -> NDArray[np.bool_]:
    """Which trials stay after an epoch that all of them finished; the best always does.

    Args:
        accuracies: (n_trials,) of those still in the race, each 0 to 1.

    Returns:
        bool (n_trials,).
    """
    values = np.asarray(accuracies, dtype=np.float64)
    assert values.ndim == 1, values.shape
    assert values.size > 0
    assert ((values >= 0) & (values <= 1)).all(), "an accuracy lies outside 0 to 1"
    best = values.max()
    allowed = tolerance.amount * (best if tolerance.kind == "relative" else 1.0)
    stay: NDArray[np.bool_] = best - values <= allowed + _ROUNDING
    return stay
