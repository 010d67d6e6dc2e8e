"""Group-sequential tests: a comparison is tested at interim looks, stated in advance, until the first that decides.

A t test after every seed claims a false difference in about a quarter of all studies. Here each look has a smaller
level, so that the chance of a false claim at any look is alpha (Pocock 1977, doi:10.1093/biomet/64.2.191). One test
decides, Student's t: two-sided against 0 for a difference, two one-sided tests at the margin for equivalence. A study
of a fixed number of seeds is one look with the full level.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import StudentMean, rounding_sd, student_mean

Outcome = Literal["helps", "hurts", "equivalent", "undecided"]

RESERVE = 0.1
"""Share of alpha that several looks leave unspent: tests of skewed differences err more often than of normal ones."""

_SIMULATIONS = 1_000_000
_CHUNK = 100_000


class Levels(NamedTuple):
    """Levels of the tests at one look: two-sided of a difference, and of each side of equivalence; in (0, 1/2)."""

    difference: float
    equivalence: float


@cache
def look_levels(looks: tuple[int, ...], alpha: float) -> Levels:
    """Return the levels, equal at every look, that make the chance of a false claim at any look (1 - RESERVE) alpha.

    By a simulation of one million studies of independent normal differences. t does not depend on the spread, so that
    a quantile of the smallest p-value over the looks is the level for any spread. Its standard error is 0.5 % of the
    level for an alpha of 0.05, and 10 % for 0.0001. It is rounded down. Equivalence is false at the margin, where one
    of its two sides has the full chance of error. A single look has alpha itself.

    Args:
        looks: numbers of replicates, ascending, 2 or more each.
        alpha: in (0, 1/2).
    """
    if len(looks) == 1:
        return Levels(alpha, alpha)
    rng = np.random.default_rng(0)
    both, upper = [], []
    for _ in range(_SIMULATIONS // _CHUNK):
        samples = rng.standard_normal((_CHUNK, looks[-1]))
        p = np.stack([_signed_p(student_mean(samples[:, :n]), alpha) for n in looks])
        both.append(2 * np.abs(p).min(axis=0))
        upper.append(np.where(p > 0, p, 1.0).min(axis=0))
    spent = (1 - RESERVE) * alpha
    return Levels(*(_rounded_down(float(np.quantile(np.concatenate(minima), spent))) for minima in (both, upper)))


def _rounded_down(level: float) -> float:
    """Return a level, above 0, rounded down to four decimals, or to two digits where these are further right."""
    scale = 10.0 ** max(4, 1 - math.floor(math.log10(level)))
    return int(scale * level) / scale


def _signed_p(mean: StudentMean, alpha: float) -> NDArray[np.float64]:
    """Return the one-sided p-values P(T > |t|) with the sign of t; 1/2 where it is above alpha and cannot matter."""
    t = mean.mean / mean.error
    p = np.full(t.shape, 0.5)
    # The distribution function is slow, and few of the simulated t are this far out.
    rare = np.abs(t) > scipy.stats.t.isf(alpha, mean.dof[0])
    p[rare] = scipy.stats.t.sf(np.abs(t[rare]), mean.dof[0])
    return np.asarray(np.copysign(p, t))


@dataclass(frozen=True, kw_only=True)
class SequentialDesign:
    """A sequential design, stated before the runs are seen.

    Attributes:
        looks: numbers of seeds at which the comparison is tested, ascending, 2 or more each.
        margin: differences of accuracy (0 to 1) closer to 0 than this do not matter.
        alpha: chance of a false claim at any look, in (0, 1/2): one for difference, one for equivalence.

    Raises:
        ValueError: looks that do not ascend.
    """

    looks: tuple[int, ...]
    margin: float
    alpha: float

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 2 or any(b <= a for a, b in itertools.pairwise(self.looks)):
            raise ValueError(f"expected ascending looks of 2 seeds or more, got {self.looks}")

    @property
    def levels(self) -> Levels:
        """Levels of each look."""
        return look_levels(self.looks, self.alpha)


@dataclass(frozen=True, kw_only=True)
class SequentialDecision:
    """A study's outcome, and the number of seeds used.

    Attributes:
        seeds: the first seeds are used, up to the look that decided, or to the last look taken; 0 before any.
    """

    outcome: Outcome
    seeds: int


def outcomes(mean: ArrayLike, p_difference: ArrayLike, p_equivalence: ArrayLike, levels: Levels) -> NDArray[np.str_]:
    """Return outcomes (...) from means and p-values (...), adjusted if there are several.

    Equivalence takes precedence: a difference that is significant but smaller than the margin does not matter.
    """
    means, different = np.asarray(mean), np.asarray(p_difference) <= levels.difference
    conditions = [np.asarray(p_equivalence) <= levels.equivalence, different & (means > 0), different & (means < 0)]
    return np.select(conditions, ["equivalent", "helps", "hurts"], "undecided")


def first_outcomes(design: SequentialDesign, differences: ArrayLike) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the outcome and the number of seeds used of many studies at once, for simulations.

    Args:
        differences: (..., n) by seed in the order of training, n at least the last look; accuracies not rounded.

    Returns:
        Outcomes (...) and seeds (...).
    """
    values = np.asarray(differences, dtype=np.float64)
    decided = np.full(values.shape[:-1], "undecided", dtype="<U10")
    used = np.full(values.shape[:-1], design.looks[-1])
    for n in design.looks:
        current = _look_outcomes(design, student_mean(values[..., :n]))
        stops = (decided == "undecided") & (current != "undecided")
        decided, used = np.where(stops, current, decided), np.where(stops, n, used)
    return decided, used


def decide(design: SequentialDesign, differences: ArrayLike, *, step: float = 0.0) -> SequentialDecision:
    """Decide one study, from its first look to the one that decides.

    A look uses the settings in which every seed so far has both arms; a seed is the mean over them.

    Args:
        differences: (n, settings) by seed in the order of training, treated - control in accuracy (-1 to 1); NaN if
            a run is missing.
        step: both accuracies are multiples of it, 1 / test images; 0 for accuracies that are not rounded.
    """
    values = np.asarray(differences, dtype=np.float64)
    assert values.ndim == 2, values.shape
    used = 0
    for n in (look for look in design.looks if look <= len(values)):
        used, table = n, values[:n]
        table = table[:, np.isfinite(table).all(axis=0)]
        if table.shape[1] == 0:
            continue
        rounding = rounding_sd(step) * (2 / table.size) ** 0.5
        outcome = _look_outcomes(design, student_mean(table.mean(axis=1)).with_rounding_error(rounding)).item()
        if outcome != "undecided":
            return SequentialDecision(outcome=cast("Outcome", outcome), seeds=n)
    return SequentialDecision(outcome="undecided", seeds=used)


def seeds_needed(design: SequentialDesign, differences: ArrayLike, *, step: float = 0.0) -> int:
    """Return how many seeds a study needs, given those trained so far.

    Train this many and call again; the study is complete when the result is the number it has. All arms of a seed are
    trained together, so that they stop together.

    Args:
        differences, step: as in `decide`, of the seeds trained so far.
    """
    decision = decide(design, differences, step=step)
    if decision.outcome != "undecided":
        return decision.seeds
    return _next_look(design.looks, decision.seeds)


def _next_look(looks: Sequence[int], taken: int) -> int:
    return next((look for look in looks if look > taken), looks[-1])


def _look_outcomes(design: SequentialDesign, mean: StudentMean) -> NDArray[np.str_]:
    return outcomes(mean.mean, mean.p_difference(), mean.p_equivalence(design.margin), design.levels)
