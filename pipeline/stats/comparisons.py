"""What a study's runs say of the filtered arm against another: the verdict over all settings, and those by setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.stats.pairs import SHARED, Pairs, controls_of, differences, find_pairs
from pipeline.stats.power import seeds_for_both_tests, spread_interval
from pipeline.stats.runs import Run, Setting
from pipeline.stats.verdict import Rule, Verdict, pooled_verdict, verdicts_by_setting
from pipeline.stats.verdict_wording import Matched

POWER = 0.8
"""Chance to find a difference of the margin that a study should have."""

_NO_SPREAD = 1e-9
"""Accuracies are multiples of 1 / images; what varies less is rounding."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was stated before the runs were seen.

    Attributes:
        margin: differences of accuracy (0 to 1) nearer to 0 than this do not matter.
        alpha: chance of a false claim, in (0, 1/2).
        primary: the arm that the filtered one is compared with in the study's primary test.
        matched: what all arms have the same number of.
        n_images: test images, of which every accuracy is a multiple of one part.
    """

    margin: float
    alpha: float
    primary: str
    matched: Matched
    n_images: int

    @property
    def rule(self) -> Rule:
        return Rule(margin=self.margin, alpha=self.alpha)

    @property
    def confidence(self) -> float:
        """Of the intervals."""
        return 1 - self.alpha


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Filtered against `control`.

    Attributes:
        pairs: of each setting.
        pooled: over the settings in which every seed of every draw has both arms; None if there is none.
        left_out: the other settings, in which some run was skipped or diverged.
        by_setting: a verdict for each of `pairs`, None where no seed has both arms; one family of Holm's.
    """

    control: str
    primary: bool
    pairs: tuple[Pairs, ...]
    pooled: Verdict | None
    left_out: int
    by_setting: tuple[Verdict | None, ...]

    @property
    def complete(self) -> list[Pairs]:
        """What the pooled verdict is over."""
        return [pairs for pairs in self.pairs if pairs.complete]

    @property
    def settings(self) -> list[Setting]:
        return [pairs.setting for pairs in self.pairs]

    @property
    def shared_control(self) -> bool:
        """Whether all draws of the filter are compared with the same runs."""
        return self.control == SHARED


def comparisons(runs: Sequence[Run], plan: Plan) -> list[Comparison]:
    """The filtered arm against each other one, the primary comparison first; none without a filtered arm."""
    controls = sorted(controls_of(runs), key=lambda control: control != plan.primary)
    return [_compare(runs, control, plan) for control in controls]


class Needed(NamedTuple):
    """How many seeds, or draws: at the spread found, and at the ends of its interval."""

    n: int
    low: int
    high: int


def replicates_needed(comparison: Comparison) -> Needed | None:
    """How many seeds (or draws, where `pooled` counts those) find a difference of the margin, at the spread found.

    Both tests, Student's and the sign-flip test, are to find it with a chance of POWER. A spread of few runs is itself
    hardly known; its interval, of confidence 1 - alpha, is that of normal differences. None where there is no spread,
    or where draws and seeds both vary, which no single number describes.
    """
    verdict = comparison.pooled
    if verdict is None or (comparison.shared_control and verdict.draws > 1):
        return None
    spread, rule = verdict.estimate.sd, verdict.rule
    if spread is None or spread < _NO_SPREAD:
        return None
    low, high = spread_interval(spread, verdict.estimate.n, 1 - rule.alpha)
    return Needed(*(seeds_for_both_tests(sd, rule.margin, rule.alpha, POWER) for sd in (spread, low, high)))


def _compare(runs: Sequence[Run], control: str, plan: Plan) -> Comparison:
    pairs, shared = find_pairs(runs, control), control == SHARED
    complete = [differences(runs, found) for found in pairs if found.complete]
    some = [differences(runs, found) for found in pairs if found.treated.size]
    step = 1 / plan.n_images
    verdicts = iter(verdicts_by_setting(some, plan.rule, shared_control=shared, step=step))
    pooled = None
    if complete:
        pooled = pooled_verdict(np.stack(complete, axis=-1), plan.rule, shared_control=shared, step=step)
    return Comparison(
        control=control,
        primary=control == plan.primary,
        pairs=tuple(pairs),
        pooled=pooled,
        left_out=len(pairs) - len(complete),
        by_setting=tuple(next(verdicts) if found.treated.size else None for found in pairs),
    )
