"""Critical batch sizes, the best batch size of each learning rate, the effective batch, and warm-up by batch size.

The test of the effective batch has its sentences too, for the report and the visualizer.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.comparisons import AnalysisPlan, Comparison, compare_arms, pooled_values, seeds_used, setting_values
from pipeline.stats.estimates import Estimate, mean_estimate
from pipeline.stats.formatting import MISSING, count, finding, p_value, points, points_interval, spread
from pipeline.stats.replicates import SHARED
from pipeline.stats.runs import Run, Setting, sorted_settings
from pipeline.stats.tables import Table, make_table

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """The measured critical batch size of one arm at one setting, in images.

    Attributes:
        median: over the runs; None if it has no upper bound. A run whose gradient is not larger than
            its noise has only a lower bound and counts as larger than any other.
        low, high: from the lowest to the highest end of the runs' 95 % intervals; `high` is None
            if one has no upper end.
        n: number of finished runs with an interval.
        planned: number of runs, whether they finished or not.
    """

    setting: Setting
    arm: str
    median: float | None
    low: float
    high: float | None
    n: int
    planned: int


def critical_batches(runs: Sequence[Run]) -> list[CriticalBatch]:
    """Return one entry for each setting and arm with a measurement, in the order of the settings and arms."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups = {
        (setting, arm): [run for run in runs if (run.setting, run.arm) == (setting, arm)]
        for setting in sorted_settings(runs)
        for arm in arms
    }
    rows = []
    for (setting, arm), group in groups.items():
        measured = [run for run in group if run.finished and run.critical_batch_low is not None]
        if measured:
            rows.append(
                CriticalBatch(
                    setting=setting,
                    arm=arm,
                    median=_finite(float(np.median([_or_infinite(run.critical_batch) for run in measured]))),
                    low=min(run.critical_batch_low for run in measured if run.critical_batch_low is not None),
                    high=_finite(max(_or_infinite(run.critical_batch_high) for run in measured)),
                    n=len(measured),
                    planned=len(group),
                )
            )
    return rows


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class BestOnGrid:
    """The best of the values tried, in their unit.

    Attributes:
        of_means: the value with the highest mean accuracy over the seeds.
        of_seeds: each seed's best value, by ascending seeds.
        by_seed: mean of these with its interval; no interval if all seeds agree, since they agree on the grid value,
            not on the true best one.
        at_end: whether `of_means` is an end of the grid, so that a value beyond it may be better.
        seeds_at_end: number of seeds whose best value is an end.
    """

    of_means: float
    of_seeds: list[float]
    by_seed: Estimate
    at_end: bool
    seeds_at_end: int


def best_on_grid(
    top1: NDArray[np.float64],
    tried: Sequence[float],
    confidence: float,
    *,
    ends: Sequence[float],
    geometric: bool = False,
) -> BestOnGrid:
    """Return the best of the values tried; of two equal ones the smaller. No interval is finer than the grid.

    Args:
        top1: (values tried, seeds), 0 to 1; NaN if a run did not finish, which then is never the best. At least one
            run of each seed finished.
        tried: ascending.
        confidence: coverage of the interval, in (0, 1).
        ends: those of `tried` beyond which a better one may lie.
        geometric: whether to average logarithms; the values are then above 0, and there is no standard deviation in
            their unit.
    """
    assert top1.shape[0] == len(tried), top1.shape
    # An unfinished run is worse than all finished ones.
    accuracies = np.nan_to_num(top1, nan=-1.0)
    assert (accuracies.max(axis=0) >= 0).all(), "a seed without a finished run"
    values = np.asarray(tried, dtype=np.float64)
    of_means = float(values[accuracies.mean(axis=1).argmax()])
    of_seeds = values[accuracies.argmax(axis=0)]
    return BestOnGrid(
        of_means=of_means,
        of_seeds=of_seeds.tolist(),
        by_seed=_geometric_mean(of_seeds, confidence) if geometric else grid_estimate(of_seeds, confidence),
        at_end=of_means in ends,
        seeds_at_end=int(np.isin(of_seeds, ends).sum()),
    )


def grid_estimate(values: NDArray[np.float64], confidence: float) -> Estimate:
    """Return the mean of `values` (n,), with Student's t interval unless all are equal."""
    estimate = mean_estimate(values, confidence)
    return replace(estimate, low=None, high=None) if np.ptp(values) == 0 else estimate


def _geometric_mean(values: NDArray[np.float64], confidence: float) -> Estimate:
    logs = grid_estimate(np.log2(values), confidence)
    low, high = (None if end is None else float(2.0**end) for end in (logs.low, logs.high))
    return Estimate(n=logs.n, mean=float(2.0**logs.mean), sd=None, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class BestBatch(BestOnGrid):
    """The best batch size of one arm at one learning rate, in images; its mean over the seeds is geometric.

    Attributes:
        setting: with the batch size `of_means`.
        batch_sizes: the sizes tried, ascending.
    """

    setting: Setting
    arm: str
    batch_sizes: list[int]


def best_by_rate(runs: Sequence[Run], confidence: float) -> list[BestBatch]:
    """Return the best batch size of each learning rate (Gahlot, Yin and Shankar 2020, fig. 4).

    One entry for each model, weight decay, arm and learning rate, by ascending rates; none without two rates and two
    sizes. A diverged run is never the best. A size that was skipped for some seed does not count as tried. Left out
    are rates with fewer than two sizes tried, or with a seed without a finished run, and arms with several draws of
    the filter, which have several runs per seed.

    Args:
        runs: of one study.
        confidence: of each interval, in (0, 1).
    """
    settings = sorted_settings(runs)
    if min(len({setting.learning_rate for setting in settings}), len({setting.batch_size for setting in settings})) < 2:
        return []
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups: dict[tuple[str, float, int, float], list[Run]] = defaultdict(list)
    for run in runs:
        setting = run.setting
        groups[setting.model, setting.weight_decay, arms.index(run.arm), setting.learning_rate].append(run)
    results = (_best_batch(groups[key], confidence) for key in sorted(groups))
    return [best for best in results if best]


def _best_batch(runs: Sequence[Run], confidence: float) -> BestBatch | None:
    """Return the best batch size of runs that differ only in batch size and seed."""
    skipped = {run.setting.batch_size for run in runs if run.status == "skipped"}
    sizes, seeds = sorted({run.setting.batch_size for run in runs} - skipped), sorted({run.seed for run in runs})
    if len(sizes) < 2 or len({run.filter_network for run in runs}) > 1:
        return None
    top1 = np.full((len(sizes), len(seeds)), np.nan)
    for run in runs:
        if run.top1 is not None and run.setting.batch_size in sizes:
            top1[sizes.index(run.setting.batch_size), seeds.index(run.seed)] = run.top1
    if not np.isfinite(top1).any(axis=0).all():
        return None
    best = best_on_grid(top1, sizes, confidence, ends=(sizes[0], sizes[-1]), geometric=True)
    setting = runs[0].setting._replace(batch_size=int(best.of_means))
    return BestBatch(**vars(best), setting=setting, arm=runs[0].arm, batch_sizes=sizes)


@dataclass(frozen=True, kw_only=True)
class BestWarmup(BestOnGrid):
    """The best warm-up of one batch size, in epochs. A warm-up of 0 is not an end: no value lies beyond it."""

    batch_size: int


@dataclass(frozen=True, kw_only=True)
class WarmupLaw:
    """How the best warm-up grows with the batch size.

    Attributes:
        best: by batch size.
        slope: p of best warm-up ~ batch size ** p, over the seeds: 1 if it grows as the batch does, 0 if it
            does not grow. None with one batch size, or if a warm-up of 0 is the best of some seed; without an
            interval if the seeds' slopes agree.
        per_doubling: epochs by which the best warm-up grows as the batch doubles, over the seeds; it also covers a
            warm-up of 0. None with one batch size.
    """

    best: list[BestWarmup]
    slope: Estimate | None
    per_doubling: Estimate | None


def warmup_law(
    top1: NDArray[np.float64], warmups: Sequence[float], batch_sizes: Sequence[int], confidence: float
) -> WarmupLaw:
    """Fit how the best warm-up grows with the batch size (McCord and Dash 2021, Gradual warmup experiments).

    Each seed has its lines, by least squares; a slope is their mean with Student's t interval. `best_on_grid`
    decides which warm-up is best.

    Args:
        top1: (warm-ups, batch sizes, seeds), 0 to 1; NaN if a run did not finish, which then is never the best.
            At least one run of each batch size and seed finished.
        warmups: in epochs, ascending.
        batch_sizes: in images, ascending.
        confidence: coverage of the intervals, in (0, 1).
    """
    assert top1.shape[:2] == (len(warmups), len(batch_sizes)), top1.shape
    best = [
        BestWarmup(
            batch_size=int(batch_size),
            **vars(best_on_grid(top1[:, index], warmups, confidence, ends=warmups[-1:])),
        )
        for index, batch_size in enumerate(batch_sizes)
    ]
    of_seeds = np.array([row.of_seeds for row in best])
    doublings = np.log2(np.asarray(batch_sizes, dtype=np.float64))
    power = None if (of_seeds == 0).any() else _slope(np.log2(of_seeds), doublings, confidence)
    return WarmupLaw(best=best, slope=power, per_doubling=_slope(of_seeds, doublings, confidence))


def _slope(best: NDArray[np.float64], doublings: NDArray[np.float64], confidence: float) -> Estimate | None:
    """Return the slope of best (batch sizes, seeds) over the batch sizes' logarithms."""
    if len(doublings) < 2:
        return None
    slopes = np.polyfit(doublings, best, 1)[0]
    # Digits beyond the twelfth are rounding.
    return grid_estimate(slopes.round(12) + 0.0, confidence)


def equivalent_comparison(runs: Sequence[Run], plan: AnalysisPlan) -> Comparison | None:
    """Compare the filtered arm at smaller batches with the full arm, at equal steps; None unless the plan states it.

    It is never primary. Its settings are those of the full arm.
    """
    if not plan.equivalent_sizes:
        return None
    return compare_arms(runs, SHARED, plan, seeds_used(runs, plan), treated_sizes=plan.equivalent_sizes)


def equivalent_batch_values(runs: Sequence[Run], plan: AnalysisPlan) -> Values | None:
    """Return the verdict over all settings and at each, Holm-adjusted, in percentage points; None if not stated."""
    comparison = equivalent_comparison(runs, plan)
    if comparison is None:
        return None
    rows = setting_values(comparison, lambda setting: {"treated_size": plan.equivalent_sizes[setting.batch_size]})
    return {**pooled_values(comparison, plan), **_sentences(comparison, plan), "settings_by_size": rows}


def _sentences(comparison: Comparison, plan: AnalysisPlan) -> Values:
    """Return the sentences with the sizes of both arms; `primary` and `headline` are those of no other comparison."""
    sizes = ", ".join(f"{count(small)} for {count(large)}" for large, small in sorted(plan.equivalent_sizes.items()))
    title = f"{comparison.treated} against {comparison.control} at a smaller batch ({sizes}) and equal steps"
    if comparison.pooled is None:
        return {
            "headline": f"{title}: nothing to compare",
            "sentence": f"{title}: nothing to compare, since in no setting all seeds of both arms finished.",
        }
    return {
        "headline": f"{title}: {comparison.pooled.outcome}",
        "sentence": f"{title}: {finding(comparison.pooled, left_out=comparison.left_out)}.",
    }


def equivalent_batch_table(values: Values, confidence: float, margin: float) -> Table:
    """Build the table of the test at each setting.

    Args:
        values: of `equivalent_batch_values`.
        confidence: of the intervals, in (0, 1).
        margin: of equivalence, in percentage points.
    """
    rows = []
    for row in values["settings_by_size"]:
        estimate = Estimate(**row["estimate"]) if row["estimate"] else None
        tests = row["verdict"]["p"] if row["verdict"] else None
        names = ("t", "sign_flip", "equivalence", "adjusted_difference", "adjusted_equivalence")
        rows.append(
            (
                count(row["setting"]["batch_size"]),
                count(row["treated_size"]),
                row["verdict"]["outcome"] if row["verdict"] else MISSING,
                points(estimate.mean) if estimate else MISSING,
                spread(estimate.sd) if estimate else MISSING,
                points_interval(estimate) if estimate else MISSING,
                str(estimate.n) if estimate else "0",
                *(p_value(tests[name] if tests else None) for name in names),
            )
        )
    return make_table(
        "batch size of full; of filtered; verdict; filtered − full, mean (points); sd (points); "
        f"{100 * confidence:g} % interval (points); n (paired seeds, or replicates); p, t test; p, sign flips; "
        f"p, equivalence within ±{margin:.2f}; after Holm: p, difference; after Holm: p, equivalence",
        rows,
        text="verdict",
    )
