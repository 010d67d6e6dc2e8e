"""What runs say of one sentence: an estimate with its interval, and the chances of errors either way."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.levels import level_mean
from pipeline.stats.sentences.trials import Replicates, Trial
from pipeline.stats.student import rounding_sd


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Of one sentence.

    Attributes:
        p_for: chance of runs that speak for it as much as these if it is false; one-sided, 0 to 1.
        p_against: the same of runs that speak against it if it is true.
        quantity: what was estimated, in words, with its unit.
        mean, low, high: estimate and ends of its interval.
        threshold: above it the sentence is true.
        n: replicates.
        unit: of them: seeds of one draw of the filter, draws, or batch sizes.
        settings: that each replicate is the mean over.
        left_out: settings that lack some of the replicates.
        sign_flip: two-sided p of the sign-flip test over the replicates, shown beside the t test and deciding nothing;
            None where it was not made.
    """

    p_for: float
    p_against: float
    quantity: str
    mean: float
    low: float
    high: float
    threshold: float
    n: int
    unit: str
    settings: int
    left_out: int = 0
    sign_flip: float | None = None

    @property
    def p(self) -> float:
        """Of the test for either side: twice the smaller."""
        return min(1.0, 2 * min(self.p_for, self.p_against))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What decides.

    Attributes:
        margin: differences of accuracy (0 to 1) nearer to 0 than this do not matter.
        alpha: chance that any of all sentences is called supported or contradicted wrongly, in (0, 1/2).
    """

    margin: float
    alpha: float


def evidence_of(
    found: Replicates | None,
    rule: Rule,
    quantity: str,
    *,
    threshold: float = 0.0,
    scale: float = 1.0,
    rounding: float = 0.0,
) -> Evidence | None:
    """Student's t test of the replicates' mean against a threshold; None with fewer than two seeds.

    Args:
        found: values of which the sentence says that they are above the threshold.
        threshold: in their unit.
        scale: of the estimate as it is shown, 100 for percentage points.
        rounding: standard deviation that rounding gives a value of one setting, in its unit.
    """
    if found is None or not enough(found):
        return None
    draws, seeds = found.table.shape
    # Settings are rounded independently, and averaged.
    blur = rounding / found.settings**0.5
    mean = level_mean(found.table - threshold, rounding=blur)
    low, high = mean.interval(1 - rule.alpha)
    half = float(mean.p_difference()) / 2
    above = float(mean.mean) > 0
    return Evidence(
        p_for=half if above else 1 - half,
        p_against=1 - half if above else half,
        quantity=quantity,
        mean=scale * (float(mean.mean) + threshold),
        low=scale * (float(low) + threshold),
        high=scale * (float(high) + threshold),
        threshold=scale * threshold,
        n=draws if draws > 1 else seeds,
        unit="draw of the filter" if draws > 1 else "seed",
        settings=found.settings,
        left_out=found.left_out,
    )


def accuracy_rounding(trials: Sequence[Trial]) -> float:
    """Standard deviation that counting test images gives an accuracy (0 to 1): the largest of the trials'."""
    return max((rounding_sd(1 / trial.n_images) for trial in trials), default=0.0)


def enough(found: Replicates) -> bool:
    """Whether there are two seeds, without which there is no test: all draws share the luck of a single one."""
    return bool(found.table.shape[1] > 1)


def slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least-squares slopes (...) of y (..., n) against x (n,), which is not constant."""
    centred = x - x.mean()
    found: np.ndarray = y @ centred / (centred @ centred)
    return found
