"""The verdict on paired differences of accuracy: the treated arm helps, hurts, is equivalent, or undecided.

State margin and alpha before the runs are seen. A study has one primary test, `pooled_verdict`, over all its
batch sizes. Claims on single sizes come from `verdicts_by_setting`, with Holm's adjustment. Comparisons at equal
steps and at equal epochs answer two questions and are never combined.

A study with looks stops at the first look that decides its primary comparison (`pipeline.stats.sequential`). Its
verdict uses the seeds up to that look, at the levels of a look. Its intervals are repeated confidence intervals
(Jennison and Turnbull 1989, doi:10.1111/j.2517-6161.1989.tb01433.x): each has confidence 1 - level, and together
they have 1 - alpha, so that they hold wherever the study stopped. The mean of a study that stopped early is
slightly too far from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import Estimate, rounding_sd
from pipeline.stats.hypothesis_tests import holm, pairs_needed, smallest_p
from pipeline.stats.replicates import (
    n_pairs,
    replicate_estimate,
    replicate_mean,
    replicate_sign_flip,
    shared_rounding,
)
from pipeline.stats.sequential import Levels, Outcome, SequentialDesign, outcomes

__all__ = [
    "DecisionRule",
    "Outcome",
    "PairedTests",
    "Verdict",
    "pooled_verdict",
    "pooled_verdicts",
    "verdicts_by_setting",
]


@dataclass(frozen=True, kw_only=True)
class DecisionRule:
    """The decision rule of a study, stated before the runs are seen.

    Attributes:
        margin: differences of accuracy (0 to 1) closer to 0 than this do not matter.
        alpha: chance of a false claim, in (0, 1/2): one for difference, one for equivalence.
        looks: numbers of seeds at which the study may stop, ascending; empty for a fixed number of seeds.

    Raises:
        ValueError: margin or alpha out of range.
    """

    margin: float
    alpha: float
    looks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.alpha < 0.5:
            raise ValueError(f"expected a margin in (0, 1) and alpha in (0, 0.5), got {self.margin} and {self.alpha}")

    @property
    def design(self) -> SequentialDesign | None:
        """The sequential design of the looks; None for a fixed number of seeds."""
        return SequentialDesign(looks=self.looks, margin=self.margin, alpha=self.alpha) if self.looks else None

    def levels(self, comparisons: int) -> Levels:
        """Return the levels of the tests at one look.

        Holm's method adjusts several comparisons at each look, which then has Bonferroni's share of alpha.
        """
        if self.design and comparisons == 1:
            return self.design.levels
        level = self.alpha / max(1, len(self.looks))
        return Levels(level, level)


@dataclass(frozen=True, kw_only=True)
class PairedTests:
    """The tests of one comparison: two-sided of no difference, and of equivalence.

    Attributes:
        t: p of the paired t test, exact for normal differences.
        sign_flip: p of the sign-flip test, exact for symmetric differences.
        equivalence: p of the two one-sided t tests (TOST) of a difference of the margin or more.
        equivalence_low, equivalence_high: interval of confidence 1 - 2 levels, which lies inside the margins
            where TOST rejects at its level (alpha, without looks).
        pairs: number of pairs of the sign-flip test: the seeds of one draw, or the smaller of draws and seeds.
        adjusted_difference: the larger of `t` and `sign_flip`, since a claim of a difference needs both; with
            looks `t`, which alone decides there. Holm-adjusted for several comparisons, as are the next two.
        adjusted_equivalence: `equivalence`.
        smallest_difference: the value of `adjusted_difference` if the sign-flip test gave its minimum everywhere;
            0 with looks.
    """

    t: float
    sign_flip: float
    equivalence: float
    equivalence_low: float
    equivalence_high: float
    pairs: int
    adjusted_difference: float
    adjusted_equivalence: float
    smallest_difference: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one comparison, and its basis. Differences are of accuracies from 0 to 1.

    Attributes:
        outcome: `equivalent` takes precedence over `helps` and `hurts`: a difference that is significant but smaller
            than the margin does not matter.
        estimate: mean difference with its interval of confidence 1 - alpha, not adjusted for other comparisons; with
            looks it holds at all of them together. n counts `unit`s.
        tests: None with a single seed, whose spread is unknown.
        comparisons: number of comparisons in Holm's adjustment, 1 for none.
        pairs_needed: number of pairs per comparison with which the sign-flip test can reach alpha.
        unit: what n counts: seeds of one draw of the filter (the verdict is conditional on that draw), or draws.
        draws, seeds, settings: numbers of each in the data; seeds per draw.
        levels: thresholds of the p-values: alpha, and with looks less.
        look: number of seeds of the study at this look; 0 before the first one, and without looks.
        unused: seeds that were trained after the look of this verdict. They are shown and not used.
    """

    outcome: Outcome
    estimate: Estimate
    tests: PairedTests | None
    comparisons: int
    pairs_needed: int
    unit: Literal["seed", "draw"]
    draws: int
    seeds: int
    settings: int
    rule: DecisionRule
    levels: Levels
    look: int = 0
    unused: int = 0

    @property
    def too_few_pairs(self) -> bool:
        """Whether the sign-flip test cannot reach alpha, so that no difference can be claimed."""
        return self.tests is not None and self.tests.smallest_difference > self.levels.difference

    @property
    def limiting_unit(self) -> Literal["seed", "draw"]:
        """What limits the sign-flip test: draws only if they are fewer than the seeds."""
        return "draw" if 1 < self.draws < self.seeds else "seed"

    @property
    def significant_but_small(self) -> bool:
        """Whether an equivalent arm still differs significantly from its control."""
        significant = self.tests is not None and self.tests.adjusted_difference <= self.levels.difference
        return significant and self.outcome == "equivalent"


def pooled_verdict(
    differences: ArrayLike, rule: DecisionRule, *, step: float = 0.0, shared_control: bool = False
) -> Verdict:
    """Return the study's primary test: one verdict over all its settings.

    The settings of one seed are correlated, through the seed and through the filter's draw. They are averaged per
    seed first; the tests are over seeds, or over draws if there are several.

    Args:
        differences: (draws, seeds, settings), treated - control in accuracy (-1 to 1); complete. A study with looks
            gives the seeds used.
        step: both accuracies are multiples of it, 1 / test images; 0 for accuracies that are not rounded.
        shared_control: whether all draws have the same control runs.

    Raises:
        ValueError: as `verdicts_by_setting`.
    """
    return pooled_verdicts([differences], rule, step=step, shared_control=shared_control)[0]


def pooled_verdicts(
    differences: Sequence[ArrayLike], rule: DecisionRule, *, step: float = 0.0, shared_control: bool = False
) -> list[Verdict]:
    """Return `pooled_verdict` for each of several questions, e.g. each arm, Holm-adjusted for their number.

    Raises:
        ValueError: as `verdicts_by_setting`.
    """
    tables = [_check_differences(table, ndim=3) for table in differences]
    settings = [table.shape[-1] for table in tables]
    means = [table.mean(axis=-1) for table in tables]
    return _verdicts(means, rule, settings=settings, step=step, shared_control=shared_control)


def verdicts_by_setting(
    differences: Sequence[ArrayLike],
    rule: DecisionRule,
    *,
    step: float = 0.0,
    shared_control: bool = False,
    seeds: int | None = None,
) -> list[Verdict]:
    """Return a verdict for each setting, e.g. each batch size, Holm-adjusted for their number.

    The chance of any false claim of a difference among all settings is at most alpha, and so is that of any false
    claim of equivalence. A setting with a single replicate has no test, and does not count in the adjustment.

    Args:
        differences: for each setting a table (draws, seeds), treated - control in accuracy (-1 to 1).
        step, shared_control: as `pooled_verdict`.
        seeds: of the study, which tell whether it is at a look; None: each table has all of them. A setting may lack
            some.

    Raises:
        ValueError: a table that is empty, not two-dimensional, not finite or outside -1 to 1.
    """
    tables = [_check_differences(table, ndim=2) for table in differences]
    settings = [1] * len(tables)
    return _verdicts(tables, rule, settings=settings, step=step, shared_control=shared_control, seeds=seeds)


def _verdicts(
    tables: Sequence[NDArray[np.float64]],
    rule: DecisionRule,
    *,
    settings: Sequence[int],
    step: float,
    shared_control: bool,
    seeds: int | None = None,
) -> list[Verdict]:
    """Test tables (draws, seeds), each the mean over a number of settings, as one family of Holm's method."""
    # Two accuracies are rounded, independently at each setting.
    roundings = [
        rounding_sd(step) * (2 / n) ** 0.5 * (shared_rounding(len(table)) if shared_control else 1.0)
        for table, n in zip(tables, settings, strict=True)
    ]
    comparisons = max(sum(n_pairs(table.shape) > 1 for table in tables), 1)
    levels = rule.levels(comparisons)
    unadjusted = [_tests(table, rule, levels, rounding) for table, rounding in zip(tables, roundings, strict=True)]
    family = iter(_holm_adjusted([tests for tests in unadjusted if tests]))
    verdicts = []
    for table, has_tests, rounding, n_settings in zip(tables, unadjusted, roundings, settings, strict=True):
        draws, n_seeds = table.shape
        look = _look(n_seeds if seeds is None else seeds, rule)
        estimate = replicate_estimate(table, 1 - levels.difference, rounding=rounding)
        tests = next(family) if has_tests else None
        verdicts.append(
            Verdict(
                outcome=_outcome(estimate.mean, tests, levels) if look or not rule.looks else "undecided",
                estimate=estimate,
                tests=tests,
                comparisons=comparisons,
                pairs_needed=pairs_needed(levels.difference, comparisons),
                unit="draw" if draws > 1 else "seed",
                draws=draws,
                seeds=n_seeds,
                settings=n_settings,
                rule=rule,
                levels=levels,
                look=look,
            )
        )
    return verdicts


def _look(seeds: int, rule: DecisionRule) -> int:
    """Return the number of seeds if it is a look; 0 between two looks, where a study never decides."""
    return seeds if seeds in rule.looks else 0


def _tests(table: NDArray[np.float64], rule: DecisionRule, levels: Levels, rounding: float) -> PairedTests | None:
    """Test one table (draws, seeds), not adjusted; None if a factor has a single value and hence no spread."""
    pairs = n_pairs(table.shape)
    if pairs < 2:
        return None
    mean = replicate_mean(table, rounding=rounding)
    low, high = mean.interval(1 - 2 * levels.equivalence)
    t = float(mean.p_difference())
    sign_flip = float(replicate_sign_flip(table))
    equivalence = float(mean.p_equivalence(rule.margin))
    return PairedTests(
        t=t,
        sign_flip=sign_flip,
        equivalence=equivalence,
        equivalence_low=float(low),
        equivalence_high=float(high),
        pairs=pairs,
        adjusted_difference=t if rule.looks else max(t, sign_flip),
        adjusted_equivalence=equivalence,
        smallest_difference=0.0 if rule.looks else smallest_p(pairs),
    )


def _holm_adjusted(family: Sequence[PairedTests]) -> list[PairedTests]:
    names = ("adjusted_difference", "adjusted_equivalence", "smallest_difference")
    columns = [holm([getattr(tests, name) for tests in family]).tolist() for name in names]
    return [
        replace(tests, **dict(zip(names, values, strict=True))) for tests, *values in zip(family, *columns, strict=True)
    ]


def _outcome(mean: float, tests: PairedTests | None, levels: Levels) -> Outcome:
    if tests is None:
        return "undecided"
    outcome = outcomes(mean, tests.adjusted_difference, tests.adjusted_equivalence, levels)
    return cast("Outcome", outcome.item())


def _check_differences(differences: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    """Return the differences as an array with the axes draw, seed and, if `ndim` is 3, setting."""
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != ndim or values.size == 0:
        raise ValueError(f"expected differences of {ndim} axes, none of them empty, got shape {values.shape}")
    if not (np.abs(values) <= 1).all():
        raise ValueError("a difference of accuracies is NaN or outside -1 to 1; give shares, not percentage points")
    return values
