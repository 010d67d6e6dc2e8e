"""Compare the filtered arm with each other arm of a study: verdicts, and their text and plain values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import (
    UNIT_NAMES,
    Matched,
    comparison_title,
    count,
    margin_text,
    number,
    p_equals,
    plural,
    spread,
    verdict_headline,
    verdict_sentence,
)
from pipeline.stats.hypothesis_tests import (
    SIMULATED_PAIRS,
    both_tests_power,
    paired_t_power,
    seeds_for_both_tests,
    spread_interval,
)
from pipeline.stats.replicates import (
    RELABELED,
    SHARED,
    TREATED,
    Pairs,
    control_arms,
    differences,
    filter_draw_names,
    find_pairs,
    seed_differences,
    sorted_seeds,
)
from pipeline.stats.runs import Run, Setting
from pipeline.stats.sequential import decide
from pipeline.stats.verdict import DecisionRule, Verdict, pooled_verdict, verdicts_by_setting

POWER = 0.8
"""Chance with which a study should detect a difference of the margin."""

# Accuracies are multiples of 1 / images; a smaller spread is rounding.
_NO_SPREAD = 1e-9

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AnalysisPlan:
    """The plan of a study's analysis, stated before the runs are seen.

    Attributes:
        margin: differences of accuracy (0 to 1) closer to 0 than this do not matter.
        alpha: chance of a false claim, in (0, 1/2).
        primary: the control arm of the study's primary test.
        matched: what is equal in all arms: steps or epochs.
        n_images: number of test images; accuracies are multiples of 1 / n_images.
        looks: numbers of seeds, ascending, at which the primary comparison may stop the study; empty for none.
        equivalent_sizes: batch size of the full arm -> that of the filtered arm which is tested against it; empty
            without the study's `equivalent_batch`.
    """

    margin: float
    alpha: float
    primary: str
    matched: Matched
    n_images: int
    looks: tuple[int, ...] = ()
    equivalent_sizes: Mapping[int, int] = field(default_factory=dict)

    @property
    def rule(self) -> DecisionRule:
        return DecisionRule(margin=self.margin, alpha=self.alpha, looks=self.looks)

    @property
    def confidence(self) -> float:
        """Confidence of the intervals."""
        return 1 - self.alpha


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The arm `treated`, which is the filtered one unless said otherwise, against `control`.

    With looks, all fields cover the seeds up to the look at which the primary comparison stopped, or the last one
    taken.

    Attributes:
        pairs: one entry per setting.
        pooled: the verdict over the settings in which every seed of every draw has both arms; None if there is none.
        left_out: number of other settings, in which some run was skipped or diverged.
        by_setting: a verdict for each of `pairs`, None if no seed has both arms; one family of Holm's method.
    """

    treated: str = TREATED
    control: str
    primary: bool
    pairs: tuple[Pairs, ...]
    pooled: Verdict | None
    left_out: int
    by_setting: tuple[Verdict | None, ...]

    @property
    def complete(self) -> list[Pairs]:
        """The pairs that the pooled verdict covers."""
        return [pairs for pairs in self.pairs if pairs.complete]

    @property
    def settings(self) -> list[Setting]:
        return [pairs.setting for pairs in self.pairs]

    @property
    def shared_control(self) -> bool:
        """Whether all draws of the filter have the same control runs."""
        return self.control == SHARED


def comparisons(runs: Sequence[Run], plan: AnalysisPlan) -> list[Comparison]:
    """Compare the filtered arm with each other one, the primary comparison first; none without a filtered arm."""
    controls = sorted(control_arms(runs), key=lambda control: control != plan.primary)
    seeds = seeds_used(runs, plan)
    return [compare_arms(runs, control, plan, seeds) for control in controls]


def relabeled_comparison(runs: Sequence[Run], plan: AnalysisPlan) -> Comparison | None:
    """Compare changed labels with the labels as given, on all images; None without both arms. It is never primary."""
    if not {RELABELED, SHARED} <= {run.arm for run in runs}:
        return None
    return compare_arms(runs, SHARED, plan, seeds_used(runs, plan), treated=RELABELED)


def seeds_used(runs: Sequence[Run], plan: AnalysisPlan) -> list[int]:
    """Return the seeds that the verdicts use: with looks the first ones, which the primary comparison needed.

    Before the first look these are all seeds, and every verdict is undecided. Looks count seeds of one draw of the
    filter; with several draws, or without the primary arm, all seeds are used.
    """
    seeds, design = sorted_seeds(runs), plan.rule.design
    if design is None or plan.primary not in control_arms(runs) or len(filter_draw_names(runs)) > 1:
        return seeds
    top1 = {(run.setting, run.arm, run.seed): run.top1 for run in runs}
    decision = decide(design, seed_differences(top1, plan.primary), step=1 / plan.n_images)
    return seeds[: decision.seeds] if decision.seeds else seeds


class RequiredReplicates(NamedTuple):
    """Number of seeds: at the observed spread, and at the ends of its interval."""

    n: int
    low: int
    high: int


def replicates_needed(verdict: Verdict | None) -> RequiredReplicates | None:
    """Return how many seeds detect a difference of the margin.

    Both tests, Student's and the sign-flip test, must detect it with a chance of POWER, at the observed spread. The
    spread of few runs is uncertain; its interval, of confidence 1 - alpha, assumes normal differences. None if there
    is no spread, if draws and seeds both vary (which no single number describes), or if looks decide the number.
    """
    if verdict is None or verdict.draws > 1 or verdict.rule.looks:
        return None
    spread, rule = verdict.estimate.sd, verdict.rule
    if spread is None or spread < _NO_SPREAD:
        return None
    low, high = spread_interval(spread, verdict.estimate.n, 1 - rule.alpha)
    return RequiredReplicates(*(seeds_for_both_tests(sd, rule.margin, rule.alpha, POWER) for sd in (spread, low, high)))


def power_at_margin(verdict: Verdict) -> float | None:
    """Return the chance with which as many pairs detect a true difference of the margin; None as `replicates_needed`.

    Both tests must detect it. With more than SIMULATED_PAIRS pairs that is the chance of the t test.
    """
    if replicates_needed(verdict) is None:
        return None
    assert verdict.estimate.sd is not None
    power = both_tests_power if verdict.estimate.n <= SIMULATED_PAIRS else paired_t_power
    return power(
        verdict.estimate.n, spread=verdict.estimate.sd, difference=verdict.rule.margin, alpha=verdict.rule.alpha
    )


def compare_arms(
    runs: Sequence[Run],
    control: str,
    plan: AnalysisPlan,
    seeds: Sequence[int],
    *,
    treated: str = TREATED,
    treated_sizes: Mapping[int, int] | None = None,
) -> Comparison:
    """Compare one arm with another over `seeds`; `treated_sizes` as in `find_pairs`."""
    pairs = find_pairs(runs, control, seeds, treated=treated, treated_sizes=treated_sizes)
    complete = [differences(runs, pair) for pair in pairs if pair.complete]
    partial = [differences(runs, pair) for pair in pairs if pair.treated.size]
    step, shared = 1 / plan.n_images, control == SHARED
    verdicts = iter(verdicts_by_setting(partial, plan.rule, step=step, shared_control=shared, seeds=len(seeds)))
    pooled = None
    if complete:
        pooled = pooled_verdict(np.stack(complete, axis=-1), plan.rule, step=step, shared_control=shared)
        pooled = replace(pooled, unused=len(sorted_seeds(runs)) - len(seeds))
    return Comparison(
        treated=treated,
        control=control,
        primary=treated == TREATED and control == plan.primary and treated_sizes is None,
        pairs=tuple(pairs),
        pooled=pooled,
        left_out=len(pairs) - len(complete),
        by_setting=tuple(next(verdicts) if pair.treated.size else None for pair in pairs),
    )


def comparison_headline(comparison: Comparison, matched: Matched) -> str:
    """Return the result of one comparison in a line."""
    if comparison.pooled is None:
        return f"{comparison_title(comparison.treated, comparison.control, matched)}: nothing to compare"
    return verdict_headline(comparison.pooled, treated=comparison.treated, control=comparison.control, matched=matched)


def comparison_sentence(comparison: Comparison, matched: Matched) -> str:
    """Return the result of one comparison with its uncertainty and the settings it leaves out."""
    if comparison.pooled is None:
        head = comparison_headline(comparison, matched)
        return f"{head}, since in no setting all seeds of both arms finished."
    left_out = comparison.left_out
    return verdict_sentence(
        comparison.pooled, treated=comparison.treated, control=comparison.control, matched=matched, left_out=left_out
    )


def needed_sentence(verdict: Verdict | None) -> str:
    """Return how many seeds are enough as a sentence; empty if the spread is unknown."""
    needed = replicates_needed(verdict)
    if verdict is None or needed is None:
        return ""
    unit, sd = UNIT_NAMES[verdict.unit], spread(verdict.estimate.sd, scale=100)
    return (
        f"Detecting a difference of ±{margin_text(100 * verdict.rule.margin)} percentage points with a chance of "
        f"{POWER:g}, at the observed spread (sd {sd} between {unit}s), takes {plural(needed.n, unit)} or more "
        f"({count(needed.low)} to {count(needed.high)} within the uncertainty of that spread); the study has "
        f"{verdict.estimate.n}."
    )


def settings_note(comparison: Comparison) -> str:
    """Return why no single setting can help or hurt; empty if one can."""
    tested = [verdict for verdict in comparison.by_setting if verdict and verdict.tests]
    if not tested:
        return "Single settings have no test: each has one pair of runs at most." if comparison.by_setting else ""
    short = [verdict for verdict in tested if verdict.too_few_pairs]
    if not short:
        return ""
    which = "any setting" if len(short) == len(tested) else f"{len(short)} of {plural(len(tested), 'setting')}"
    return f"Too few to claim a difference at {which}: {_smallest_p_text(short[0])}"


def _smallest_p_text(verdict: Verdict) -> str:
    assert verdict.tests is not None
    pairs, least, alpha = verdict.tests.pairs, verdict.tests.smallest_difference, verdict.levels.difference
    after = f", after Holm for {verdict.comparisons} settings," if verdict.comparisons > 1 else ""
    units = plural(pairs, UNIT_NAMES[verdict.limiting_unit])
    return (
        f"with {units} the sign-flip test gives {p_equals(least)} at best{after} "
        f"and can reach {number(alpha)} from {verdict.pairs_needed} on."
    )


def pooled_values(comparison: Comparison, plan: AnalysisPlan) -> Values:
    """Return one comparison over the settings of a study as plain values, with its sentences.

    Differences are in percentage points of top-1.
    """
    verdict = comparison.pooled
    needed = replicates_needed(verdict)
    return {
        "control": comparison.control,
        "primary": comparison.primary,
        "headline": comparison_headline(comparison, plan.matched),
        "sentence": comparison_sentence(comparison, plan.matched),
        "estimate": in_points(verdict.estimate) if verdict else None,
        "verdict": verdict_values(verdict) if verdict else None,
        "settings": verdict.settings if verdict else 0,
        "left_out": comparison.left_out,
        "needed": {**needed._asdict(), "power": POWER} if needed else None,
        "needed_sentence": needed_sentence(verdict),
        "settings_note": settings_note(comparison),
    }


def setting_values(comparison: Comparison, name_setting: Callable[[Setting], Values]) -> Sequence[Values]:
    """Return one comparison for each setting as plain values; `name_setting` returns the setting's names."""
    return [
        {
            **name_setting(setting),
            "setting": setting._asdict(),
            "control": comparison.control,
            "estimate": in_points(verdict.estimate) if verdict else None,
            "verdict": verdict_values(verdict) if verdict else None,
        }
        for setting, verdict in zip(comparison.settings, comparison.by_setting, strict=True)
    ]


def verdict_values(verdict: Verdict) -> Values:
    """Return the outcome and its tests as plain values; `p` is None with a single replicate."""
    tests = verdict.tests
    return {
        "outcome": verdict.outcome,
        "unit": verdict.unit,
        "draws": verdict.draws,
        "seeds": verdict.seeds,
        "comparisons": verdict.comparisons,
        "pairs_needed": verdict.pairs_needed,
        "too_few_pairs": verdict.too_few_pairs,
        "limiting_unit": verdict.limiting_unit,
        "looks": _looks(verdict),
        "p": tests
        and {
            "t": tests.t,
            "sign_flip": tests.sign_flip,
            "equivalence": tests.equivalence,
            "adjusted_difference": tests.adjusted_difference,
            "adjusted_equivalence": tests.adjusted_equivalence,
        },
        "equivalence_low": tests and 100 * tests.equivalence_low,
        "equivalence_high": tests and 100 * tests.equivalence_high,
    }


def _looks(verdict: Verdict) -> Values | None:
    """Return the stated looks, the one taken (0: none yet), its levels, and the number of later seeds; None without."""
    stated = verdict.rule.looks
    if not stated:
        return None
    return {"stated": list(stated), "taken": verdict.look, **verdict.levels._asdict(), "unused": verdict.unused}


def in_points(estimate: Estimate) -> Values:
    """Return an estimate of accuracies, 0 to 1, in percentage points."""
    scaled = {name: getattr(estimate, name) for name in ("mean", "sd", "low", "high")}
    return {"n": estimate.n, **{name: None if value is None else 100 * value for name, value in scaled.items()}}
