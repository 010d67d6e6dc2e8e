"""What paired differences of accuracy say of the treated arm: helps, hurts, equivalent or undecided.

Margin and alpha are stated before the runs are seen. A study has one primary test, `pooled_verdict`, over all its
batch sizes. Claims on single sizes come from `verdicts_by_setting`, with Holm's adjustment. Comparisons at equal
steps and at equal epochs answer two questions and are never put into one.

A study with looks stops at the first one that decides its primary comparison (`pipeline.stats.sequential`). Here its
verdict is that of the seeds used, at the levels of a look. Its intervals are repeated ones (Jennison and Turnbull 1989,
doi:10.1111/j.2517-6161.1989.tb01433.x): of confidence 1 - level at every look, which makes 1 - alpha for all together,
so that they hold wherever the study stopped. Its mean is a little too far from 0 where it stopped early.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import Estimate, rounding_sd
from pipeline.stats.hypothesis_tests import holm, pairs_needed, smallest_p
from pipeline.stats.replicates import level_estimate, level_mean, level_sign_flip, n_pairs
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
    """What decides, stated before the runs are seen.

    Attributes:
        margin: differences of accuracy (0 to 1) nearer to 0 than this do not matter.
        alpha: chance of a false claim, in (0, 1/2): one for difference, one for equivalence.
        looks: numbers of seeds at which the study may stop, ascending; empty for a fixed number of seeds.
    """

    margin: float
    alpha: float
    looks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.alpha < 0.5:
            raise ValueError(f"expected a margin in (0, 1) and alpha in (0, 0.5), got {self.margin} and {self.alpha}")

    @property
    def design(self) -> SequentialDesign | None:
        """That of the looks; None for a fixed number of seeds."""
        return SequentialDesign(looks=self.looks, margin=self.margin, alpha=self.alpha) if self.looks else None

    def levels(self, comparisons: int) -> Levels:
        """Of the tests at one look.

        Several comparisons are adjusted after Holm at each look, which takes Bonferroni's share of alpha a look.
        """
        if self.design and comparisons == 1:
            return self.design.levels
        level = self.alpha / max(1, len(self.looks))
        return Levels(level, level)


@dataclass(frozen=True, kw_only=True)
class PairedTests:
    """The tests of one comparison: two-sided of no difference, and of equivalence.

    Attributes:
        t: p of the paired t test, right for normal differences.
        sign_flip: p of the sign-flip test, right for differences of any symmetric form.
        equivalence: p of the two one-sided t tests (TOST) of a difference of the margin or more.
        equivalence_low, equivalence_high: interval of confidence 1 - 2 levels, which lies inside the margins
            where TOST rejects at its level (alpha, without looks).
        pairs: that the sign-flip test had: the seeds of one draw, or the fewer of draws and seeds.
        adjusted_difference: the larger of `t` and `sign_flip`, since a difference is claimed only where both
            find it; with looks `t`, which alone decides there. After Holm where there are several comparisons, as the
            next two.
        adjusted_equivalence: `equivalence`.
        smallest_difference: what `adjusted_difference` would be if the sign-flip test gave its least everywhere; 0
            with looks.
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
    """The outcome of one comparison, and what it rests on. Differences are of accuracies from 0 to 1.

    Attributes:
        outcome: `equivalent` goes before `helps` and `hurts`: a difference that is certain but smaller than the
            margin does not matter.
        estimate: mean difference with its interval of confidence 1 - alpha, not adjusted for other comparisons; with
            looks it holds at all of them at once. n counts `unit`s.
        tests: None with a single seed, where it leaves the spread unknown.
        comparisons: how many Holm's adjustment covers, 1 for none.
        pairs_needed: with how many pairs in every comparison the sign-flip test can reach alpha.
        unit: what n counts: seeds of one draw of the filter (the verdict is conditional on that draw), or draws.
        draws, seeds, settings: that the values are of; seeds of each draw.
        levels: with which p-values are compared: alpha, and with looks less.
        unused: seeds that were trained after those of the look that this is of. They are shown and not used.
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
    unused: int = 0

    @property
    def too_few_pairs(self) -> bool:
        """Whether the sign-flip test could not have reached alpha, so that no difference could be claimed."""
        return self.tests is not None and self.tests.smallest_difference > self.levels.difference

    @property
    def certain_but_small(self) -> bool:
        """Whether an equivalent arm still differs from its control beyond doubt."""
        certain = self.tests is not None and self.tests.adjusted_difference <= self.levels.difference
        return certain and self.outcome == "equivalent"


def pooled_verdict(differences: ArrayLike, rule: DecisionRule, *, step: float = 0.0) -> Verdict:
    """The study's primary test: one verdict over all its settings.

    The settings of one seed are correlated, through the seed and through the filter's draw. They are averaged per
    seed first; the tests are over seeds, or over draws where there are several.

    Args:
        differences: (draws, seeds, settings), treated - control in accuracy (-1 to 1); complete. Of a study with looks
            those of the seeds used.
        step: of which both accuracies are multiples, 1 / test images; 0 for accuracies that are not rounded.

    Raises:
        ValueError: as `verdicts_by_setting`.
    """
    return pooled_verdicts([differences], rule, step=step)[0]


def pooled_verdicts(differences: Sequence[ArrayLike], rule: DecisionRule, *, step: float = 0.0) -> list[Verdict]:
    """`pooled_verdict` of each of several questions, e.g. of each arm, adjusted after Holm for their number.

    Raises:
        ValueError: as `verdicts_by_setting`.
    """
    values = [_checked(of_one, ndim=3) for of_one in differences]
    settings = [of_one.shape[-1] for of_one in values]
    return _verdicts([of_one.mean(axis=-1) for of_one in values], rule, settings=settings, step=step)


def verdicts_by_setting(differences: Sequence[ArrayLike], rule: DecisionRule, *, step: float = 0.0) -> list[Verdict]:
    """A verdict for each setting, e.g. each batch size, adjusted after Holm for their number.

    The chance of any false claim of a difference among all settings is at most alpha, and so is that of any false
    claim of equivalence. Settings of a single replicate have no test, and count in no adjustment.

    Args:
        differences: for each setting its (draws, seeds), treated - control in accuracy (-1 to 1).
        step: as `pooled_verdict`.

    Raises:
        ValueError: a table that is empty, not two-dimensional, not finite or outside -1 to 1.
    """
    tables = [_checked(table, ndim=2) for table in differences]
    return _verdicts(tables, rule, settings=[1] * len(tables), step=step)


def _verdicts(
    tables: Sequence[NDArray[np.float64]], rule: DecisionRule, *, settings: Sequence[int], step: float
) -> list[Verdict]:
    """Of tables (draws, seeds), each the mean over so many settings; together one family of Holm's."""
    # Of two accuracies, at each setting on their own.
    roundings = [rounding_sd(step) * (2 / n) ** 0.5 for n in settings]
    comparisons = max(sum(n_pairs(table.shape) > 1 for table in tables), 1)
    levels = rule.levels(comparisons)
    tested = [_tests(table, rule, levels, blur) for table, blur in zip(tables, roundings, strict=True)]
    family = iter(_adjusted([tests for tests in tested if tests]))
    verdicts = []
    for table, has_tests, rounding, n_settings in zip(tables, tested, roundings, settings, strict=True):
        draws, seeds = table.shape
        estimate = level_estimate(table, 1 - levels.difference, rounding=rounding)
        tests = next(family) if has_tests else None
        verdicts.append(
            Verdict(
                outcome=_outcome(estimate.mean, tests, levels) if _looked(seeds, rule) else "undecided",
                estimate=estimate,
                tests=tests,
                comparisons=comparisons,
                pairs_needed=pairs_needed(levels.difference, comparisons),
                unit="draw" if draws > 1 else "seed",
                draws=draws,
                seeds=seeds,
                settings=n_settings,
                rule=rule,
                levels=levels,
            )
        )
    return verdicts


def _looked(seeds: int, rule: DecisionRule) -> bool:
    """Whether the study may decide with so many seeds: never between two looks."""
    return not rule.looks or seeds in rule.looks


def _tests(table: NDArray[np.float64], rule: DecisionRule, levels: Levels, rounding: float) -> PairedTests | None:
    """Of a table (draws, seeds) on its own; None where a factor has a single value and hence no spread."""
    pairs = n_pairs(table.shape)
    if pairs < 2:
        return None
    found = level_mean(table, rounding=rounding)
    low, high = found.interval(1 - 2 * levels.equivalence)
    t = float(found.p_difference())
    sign_flip = float(level_sign_flip(table))
    equivalence = float(found.p_equivalence(rule.margin))
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


def _adjusted(family: Sequence[PairedTests]) -> list[PairedTests]:
    """The same tests as one family of Holm's."""
    names = ("adjusted_difference", "adjusted_equivalence", "smallest_difference")
    columns = [holm([getattr(tests, name) for tests in family]).tolist() for name in names]
    return [
        replace(tests, **dict(zip(names, values, strict=True))) for tests, *values in zip(family, *columns, strict=True)
    ]


def _outcome(mean: float, tests: PairedTests | None, levels: Levels) -> Outcome:
    if tests is None:
        return "undecided"
    found = outcomes(mean, tests.adjusted_difference, tests.adjusted_equivalence, levels)
    return cast("Outcome", found.item())


def _checked(differences: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    """Axes: draw, seed and, with three, setting."""
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != ndim or values.size == 0:
        raise ValueError(f"expected differences of {ndim} axes, none of them empty, got shape {values.shape}")
    if not (np.abs(values) <= 1).all():
        raise ValueError("a difference of accuracies is NaN or outside -1 to 1; percentage points are for sentences")
    return values
