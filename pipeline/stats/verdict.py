"""What paired differences of accuracy say of the treated arm: helps, hurts, equivalent or undecided.

Margin and alpha are stated before the runs are seen. A study has one primary test, `pooled_verdict`, over all its
batch sizes. Claims on single sizes come from `verdicts_by_setting`, with Holm's adjustment. Comparisons at equal
steps and at equal epochs answer two questions and are never put into one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import Estimate
from pipeline.stats.levels import level_estimate, level_mean, level_sign_flip, n_pairs
from pipeline.stats.multiplicity import holm
from pipeline.stats.sign_flip import pairs_needed, smallest_p
from pipeline.stats.student import rounding_sd

Outcome = Literal["helps", "hurts", "equivalent", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What decides, stated before the runs are seen.

    Attributes:
        margin: differences of accuracy (0 to 1) nearer to 0 than this do not matter.
        alpha: chance of a false claim, in (0, 1/2): one for difference, one for equivalence.
    """

    margin: float
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.alpha < 0.5:
            raise ValueError(f"expected a margin in (0, 1) and alpha in (0, 0.5), got {self.margin} and {self.alpha}")


@dataclass(frozen=True, kw_only=True)
class Tests:
    """The tests of one comparison: two-sided of no difference, and of equivalence.

    Attributes:
        t: p of the paired t test, right for normal differences.
        sign_flip: p of the sign-flip test, right for differences of any symmetric form.
        equivalence: p of the two one-sided t tests (TOST) of a difference of the margin or more.
        equivalence_low, equivalence_high: interval of confidence 1 - 2 alpha, which lies inside the margins
            where TOST rejects at alpha.
        pairs: that the sign-flip test had: the replicates, but with a shared control the fewer of draws and seeds.
        adjusted_difference: the larger of `t` and `sign_flip`, since a difference is claimed only where both
            find it; after Holm where there are several comparisons, as the next two.
        adjusted_equivalence: `equivalence`.
        smallest_difference: what `adjusted_difference` would be if the sign-flip test gave its least everywhere.
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
        estimate: mean difference with its interval of confidence 1 - alpha, not adjusted; n counts `unit`s.
        tests: None with a single seed, where it leaves the spread unknown.
        comparisons: how many Holm's adjustment covers, 1 for none.
        pairs_needed: with how many pairs in every comparison the sign-flip test can reach alpha.
        unit: what n counts: seeds of one draw of the filter (the verdict is conditional on that draw), or draws.
        draws, seeds, settings: that the values are of; seeds of each draw.
    """

    outcome: Outcome
    estimate: Estimate
    tests: Tests | None
    comparisons: int
    pairs_needed: int
    unit: Literal["seed", "draw"]
    draws: int
    seeds: int
    settings: int
    rule: Rule

    @property
    def too_few_pairs(self) -> bool:
        """Whether the sign-flip test could not have reached alpha, so that no difference could be claimed."""
        return self.tests is not None and self.tests.smallest_difference > self.rule.alpha

    @property
    def certain_but_small(self) -> bool:
        """Whether an equivalent arm still differs from its control beyond doubt."""
        certain = self.tests is not None and self.tests.adjusted_difference <= self.rule.alpha
        return certain and self.outcome == "equivalent"


def outcomes(mean: ArrayLike, p_difference: ArrayLike, p_equivalence: ArrayLike, alpha: float) -> NDArray[np.str_]:
    """Outcomes (...) from means and p-values (...), adjusted where there are several."""
    means, different = np.asarray(mean), np.asarray(p_difference) <= alpha
    conditions = [np.asarray(p_equivalence) <= alpha, different & (means > 0), different & (means < 0)]
    return np.select(conditions, ["equivalent", "helps", "hurts"], "undecided")


def pooled_verdict(differences: ArrayLike, rule: Rule, *, shared_control: bool, step: float = 0.0) -> Verdict:
    """The study's primary test: one verdict over all its settings.

    The settings of one seed are correlated, through the seed and through the filter's draw. They are averaged per
    seed first; the tests are over seeds, or over draws where there are several.

    Args:
        differences: (draws, seeds, settings), treated - control in accuracy (-1 to 1); complete.
        shared_control: whether all draws are compared with the same runs, as with `full`.
        step: of which both accuracies are multiples, 1 / test images; 0 for accuracies that are not rounded.

    Raises:
        ValueError: as `verdicts_by_setting`.
    """
    return pooled_verdicts([differences], rule, shared_control=shared_control, step=step)[0]


def pooled_verdicts(
    differences: Sequence[ArrayLike], rule: Rule, *, shared_control: bool, step: float = 0.0
) -> list[Verdict]:
    """`pooled_verdict` of each of several questions, e.g. of each arm, adjusted after Holm for their number.

    Raises:
        ValueError: as `verdicts_by_setting`.
    """
    values = [_checked(of_one, ndim=3) for of_one in differences]
    settings = [of_one.shape[-1] for of_one in values]
    return _judged([of_one.mean(axis=-1) for of_one in values], rule, shared_control, settings=settings, step=step)


def verdicts_by_setting(
    differences: Sequence[ArrayLike], rule: Rule, *, shared_control: bool, step: float = 0.0
) -> list[Verdict]:
    """A verdict for each setting, e.g. each batch size, adjusted after Holm for their number.

    The chance of any false claim of a difference among all settings is at most alpha, and so is that of any false
    claim of equivalence. Settings of a single replicate have no test, and count in no adjustment.

    Args:
        differences: for each setting its (draws, seeds), treated - control in accuracy (-1 to 1).
        shared_control, step: as `pooled_verdict`.

    Raises:
        ValueError: a table that is empty, not two-dimensional, not finite or outside -1 to 1.
    """
    tables = [_checked(table, ndim=2) for table in differences]
    return _judged(tables, rule, shared_control, settings=[1] * len(tables), step=step)


def _judged(
    tables: Sequence[NDArray[np.float64]], rule: Rule, shared_control: bool, *, settings: Sequence[int], step: float
) -> list[Verdict]:
    """Of tables (draws, seeds), each the mean over so many settings; together one family of Holm's."""
    # Of two accuracies, at each setting on their own.
    roundings = [rounding_sd(step) * (2 / n) ** 0.5 for n in settings]
    tested = [_tests(table, rule, shared_control, blur) for table, blur in zip(tables, roundings, strict=True)]
    family = iter(_adjusted([tests for tests in tested if tests]))
    comparisons = max(sum(tests is not None for tests in tested), 1)
    verdicts = []
    for table, has_tests, rounding, n_settings in zip(tables, tested, roundings, settings, strict=True):
        draws, seeds = table.shape
        estimate = level_estimate(table, 1 - rule.alpha, shared_control=shared_control, rounding=rounding)
        tests = next(family) if has_tests else None
        verdicts.append(
            Verdict(
                outcome=_outcome(estimate.mean, tests, rule.alpha),
                estimate=estimate,
                tests=tests,
                comparisons=comparisons,
                pairs_needed=pairs_needed(rule.alpha, comparisons),
                unit="draw" if draws > 1 else "seed",
                draws=draws,
                seeds=seeds,
                settings=n_settings,
                rule=rule,
            )
        )
    return verdicts


def _tests(table: NDArray[np.float64], rule: Rule, shared_control: bool, rounding: float) -> Tests | None:
    """Of a table (draws, seeds) on its own; None where a factor has a single value and hence no spread."""
    pairs = n_pairs(table.shape, shared_control=shared_control)
    if pairs < 2:
        return None
    found = level_mean(table, shared_control=shared_control, rounding=rounding)
    low, high = found.interval(1 - 2 * rule.alpha)
    t = float(found.p_difference())
    sign_flip = float(level_sign_flip(table, shared_control=shared_control))
    equivalence = float(found.p_equivalence(rule.margin))
    return Tests(
        t=t,
        sign_flip=sign_flip,
        equivalence=equivalence,
        equivalence_low=float(low),
        equivalence_high=float(high),
        pairs=pairs,
        adjusted_difference=max(t, sign_flip),
        adjusted_equivalence=equivalence,
        smallest_difference=smallest_p(pairs),
    )


def _adjusted(family: Sequence[Tests]) -> list[Tests]:
    """The same tests as one family of Holm's."""
    names = ("adjusted_difference", "adjusted_equivalence", "smallest_difference")
    columns = [holm([getattr(tests, name) for tests in family]).tolist() for name in names]
    return [
        replace(tests, **dict(zip(names, values, strict=True))) for tests, *values in zip(family, *columns, strict=True)
    ]


def _outcome(mean: float, tests: Tests | None, alpha: float) -> Outcome:
    if tests is None:
        return "undecided"
    found = outcomes(mean, tests.adjusted_difference, tests.adjusted_equivalence, alpha)
    return cast("Outcome", found.item())


def _checked(differences: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    """Axes: draw, seed and, with three, setting."""
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != ndim or values.size == 0:
        raise ValueError(f"expected differences of {ndim} axes, none of them empty, got shape {values.shape}")
    if not (np.abs(values) <= 1).all():
        raise ValueError("a difference of accuracies is NaN or outside -1 to 1; percentage points are for sentences")
    return values
