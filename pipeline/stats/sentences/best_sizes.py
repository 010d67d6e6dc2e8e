"""The best of the batch sizes tried, and what it tells of the best batch size."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.sentences.evidence import slope
from pipeline.stats.sentences.trials import Grid
from pipeline.stats.student import rounding_sd


@dataclass(frozen=True, kw_only=True)
class BestSizes:
    """At the rates that tell of it.

    The best of the sizes tried is not the best size. At either end it tells of no more than a bound, so that a rate at
    which some seed's best is there is left out. Between sizes that lie `step` apart it is rounded.

    Attributes:
        rates: (rates,), in doublings, ascending.
        sizes: (seeds, rates, ...), in doublings.
        step: the largest distance of neighbouring sizes, in doublings.
        all_rates: whether none was left out.
    """

    rates: NDArray[np.float64]
    sizes: NDArray[np.float64]
    step: float
    all_rates: bool

    def change(self, of_rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """(seeds, rates) -> (seeds,): what the least-squares line changes by from the lowest rate to the highest."""
        return slope(self.rates, of_rates) * np.ptp(self.rates)

    @property
    def rounding(self) -> float:
        """Standard deviation that rounding to the sizes gives the change of the best one, in doublings."""
        return float(rounding_sd(self.step) * np.linalg.norm(self.change(np.eye(len(self.rates)))))


def best_sizes(grid: Grid) -> BestSizes | None:
    """Of accuracies by learning rate, batch size and whatever else; None without two rates and three sizes."""
    rates, sizes = np.log2(grid.levels[0]), np.log2(grid.levels[1])
    if len(rates) < 2 or len(sizes) < 3:
        return None
    best = grid.top1.argmax(axis=2)
    inside = ((best > 0) & (best < len(sizes) - 1)).all(axis=(0, *range(2, best.ndim)))
    return BestSizes(
        rates=rates[inside],
        sizes=sizes[best[:, inside]],
        step=float(np.diff(sizes).max()),
        all_rates=bool(inside.all()),
    )
