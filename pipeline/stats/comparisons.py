"""What a study's runs say of the filtered arm against another: the verdict over all settings, and those by setting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pipeline.stats.pairs import (
    SHARED,
    Pairs,
    controls_of,
    differences,
    draws_of,
    find_pairs,
    seed_differences,
    seeds_of,
)
from pipeline.stats.power import seeds_for_both_tests, spread_interval
from pipeline.stats.runs import Run, Setting
from pipeline.stats.sequential import decide
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
        looks: numbers of seeds, ascending, at which the primary comparison may stop the study; empty for none.
    """

    margin: float
    alpha: float
    primary: str
    matched: Matched
    n_images: int
    looks: tuple[int, ...] = ()

    @property
    def rule(self) -> Rule:
        return Rule(margin=self.margin, alpha=self.alpha, looks=self.looks)

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

    With looks all are of the seeds up to the look at which the primary comparison stopped, or the last one taken.
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
    seeds = seeds_used(runs, plan)
    return [_compare(runs, control, plan, seeds) for control in controls]


def seeds_used(runs: Sequence[Run], plan: Plan) -> list[int]:
    """The seeds that the verdicts are of: with looks the first ones, which the primary comparison needed.

    Before the first look they are all seeds, and no verdict is more than undecided. Looks count seeds of one draw of
    the filter; they use all seeds where there are several, or no primary arm.
    """
    seeds, design = seeds_of(runs), plan.rule.design
    if design is None or plan.primary not in controls_of(runs) or len(draws_of(runs)) > 1:
        return seeds
    top1 = {(run.setting, run.arm, run.seed): run.top1 for run in runs}
    decision = decide(design, seed_differences(top1, plan.primary), step=1 / plan.n_images)
    return seeds[: decision.seeds] if decision.seeds else seeds


class Needed(NamedTuple):
    """How many seeds, or draws: at the spread found, and at the ends of its interval."""

    n: int
    low: int
    high: int


def replicates_needed(comparison: Comparison) -> Needed | None:
    """How many seeds (or draws, where `pooled` counts those) find a difference of the margin, at the spread found.

    Both tests, Student's and the sign-flip test, are to find it with a chance of POWER. A spread of few runs is itself
    hardly known; its interval, of confidence 1 - alpha, is that of normal differences. None where there is no spread,
    where draws and seeds both vary, which no single number describes, or where looks say when it is enough.
    """
    verdict = comparison.pooled
    if verdict is None or verdict.draws > 1 or verdict.rule.looks:
        return None
    spread, rule = verdict.estimate.sd, verdict.rule
    if spread is None or spread < _NO_SPREAD:
        return None
    low, high = spread_interval(spread, verdict.estimate.n, 1 - rule.alpha)
    return Needed(*(seeds_for_both_tests(sd, rule.margin, rule.alpha, POWER) for sd in (spread, low, high)))


def _compare(runs: Sequence[Run], control: str, plan: Plan, seeds: Sequence[int]) -> Comparison:
    pairs = find_pairs(runs, control, seeds)
    complete = [differences(runs, found) for found in pairs if found.complete]
    some = [differences(runs, found) for found in pairs if found.treated.size]
    step = 1 / plan.n_images
    verdicts = iter(verdicts_by_setting(some, plan.rule, step=step))
    pooled = None
    if complete:
        pooled = pooled_verdict(np.stack(complete, axis=-1), plan.rule, step=step)
        pooled = replace(pooled, unused=len(seeds_of(runs)) - len(seeds))
    return Comparison(
        control=control,
        primary=control == plan.primary,
        pairs=tuple(pairs),
        pooled=pooled,
        left_out=len(pairs) - len(complete),
        by_setting=tuple(next(verdicts) if found.treated.size else None for found in pairs),
    )
