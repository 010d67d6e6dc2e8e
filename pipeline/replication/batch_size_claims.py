"""Test the paper's claims about the best batch size, falls beyond it, and the variance between runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.replication.claim_data import (
    AccuracyGrid,
    ClaimCriteria,
    ClaimEvidence,
    Replicate,
    RunRecord,
    accuracy_grid,
    accuracy_rounding,
    average_replicates,
    drop_subsets,
    group_by,
    slope,
    t_test_evidence,
)
from pipeline.stats.estimates import rounding_sd
from pipeline.stats.hypothesis_tests import trend_test
from pipeline.stats.replicates import level_mean


@dataclass(frozen=True, kw_only=True)
class BestSizes:
    """The best of the batch sizes tried, at the rates that determine it.

    The best of the sizes tried is not the best size. At either end it is only a bound, so that a rate at
    which some seed's best is there is left out. Between sizes that lie `step` apart it is rounded.

    Attributes:
        rates: (rates,), in doublings, ascending.
        sizes: (seeds, rates, ...), in doublings.
        step: the largest distance of adjacent sizes, in doublings.
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


def best_sizes(grid: AccuracyGrid) -> BestSizes | None:
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


_BEST_BATCH_QUANTITY = "the best batch size changes from the lowest learning rate to the highest, in doublings, by"

BOUND = 1.0
"""In doublings: a change that is significantly smaller contradicts the claim."""


def best_batch(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slope of each seed's best batch size over the learning rate, both as logarithms.

    Supported where the mean change over the range of rates is not 0 (two-sided t test over seeds), contradicted where
    it is sure to be less than one doubling either way (two one-sided t tests). A best batch size that goes up and
    down again is not found. Of the full arm, where a study has two rates and three batch sizes or more.

    A study with a rate at which some best one is at either end of the sizes (`BestSizes`) contradicts nothing, nor
    does one whose sizes lie further apart than a doubling. To the spread between seeds comes that of rounding to the
    sizes tried.
    """
    groups = group_by([record for record in records if record.arm == "full"], "study", "model", "weight_decay")
    seeds, bests = {}, {}
    for key, found in drop_subsets(groups).items():
        grid = accuracy_grid(found, "learning_rate", "batch_size")
        if (best := best_sizes(grid)) is not None:
            seeds[key], bests[key] = grid.seeds, best
    values = {
        key: {(0, seed): float(value) for seed, value in zip(seeds[key], best.change(best.sizes), strict=True)}
        for key, best in bests.items()
        if len(best.rates) > 1
    }
    replicates = average_replicates(values)
    if replicates is None:
        return None
    rounding = max(bests[key].rounding for key in values)
    evidence = t_test_evidence(replicates, rule, _BEST_BATCH_QUANTITY, rounding=rounding)
    if evidence is None:
        return None
    blur = rounding / replicates.settings**0.5
    mean = level_mean(replicates.table, rounding=blur)
    studies = {study for study, *_ in values}
    bounded = all(best.all_rates and best.step <= BOUND for (study, *_), best in bests.items() if study in studies)
    against = float(mean.p_equivalence(BOUND)) if bounded else 1.0
    return replace(evidence, p_for=float(mean.p_difference()), p_against=against)


SMALL = ("resnet18", "resnet34")
LARGE = ("resnet50", "resnet101", "resnet152")

_SUDDEN_DROP_QUANTITY = (
    "the steepest fall beyond the best batch size (points a doubling) is larger in large networks by"
)

WINDOW = 2
"""Number of sizes tried beyond a network's best that is required: one fall is neither sudden nor gradual."""


def sudden_drop(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test the steepest fall per doubling beyond each network's best size, ResNet-50 and up minus ResNet-18 and 34.

    Supported where it is larger in large networks, contradicted where it is smaller (t test over seeds). The steepest
    of more falls is steeper, so that in each seed the same number of sizes beyond each network's own best is looked
    at; a seed that has fewer than two of some network is left out. Noisier curves have steeper falls, so that it holds
    for networks of like noise. Of the full arm, where a study has networks of both kinds; of sizes less than a
    doubling apart the smallest counts.
    """
    values = {}
    chosen = [record for record in records if record.arm == "full" and record.model in SMALL + LARGE]
    for key, found in drop_subsets(group_by(chosen, "study", "learning_rate", "weight_decay")).items():
        grid = accuracy_grid(found, "model", "batch_size")
        large = np.isin(grid.levels[0], LARGE)
        if not grid.seeds or large.all() or not large.any():
            continue
        falls = [steepest_falls(top1, np.log2(grid.levels[1])) for top1 in grid.top1]
        known = {
            (0, seed): float(of_seed[large].mean() - of_seed[~large].mean())
            for seed, of_seed in zip(grid.seeds, falls, strict=True)
            if of_seed is not None
        }
        if known:
            values[key] = known
    rounding = 2 * accuracy_rounding(records)
    return t_test_evidence(average_replicates(values), rule, _SUDDEN_DROP_QUANTITY, scale=100, rounding=rounding)


def steepest_falls(top1: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """(networks, n) accuracies at `sizes` (n,), ascending and in doublings -> (networks,) accuracy per doubling.

    Of each network the falls over as many sizes beyond its best as all networks have; None where one has fewer than
    WINDOW.
    """
    apart = doublings_apart(sizes)
    top1, steps = top1[..., apart], np.diff(sizes[apart])
    best = top1.argmax(axis=-1)
    beyond = len(steps) - best.max()
    if beyond < WINDOW:
        return None
    window = best[:, None] + np.arange(beyond)
    falls = np.take_along_axis(-np.diff(top1, axis=-1) / steps, window, axis=-1)
    steepest: NDArray[np.float64] = falls.max(axis=-1)
    return steepest


def doublings_apart(sizes: NDArray[np.float64]) -> list[int]:
    """Rows of the smallest of `sizes`, in doublings, and of each that lies one or more beyond the one before it.

    The slope between two sizes that are closer is noisier, so that where a network's best lies would tell.
    """
    chosen = [0]
    for row, size in enumerate(sizes):
        if size - sizes[chosen[-1]] >= 1 - 1e-9:
            chosen.append(row)
    return chosen


HEIGHTS = "the spread of the networks' accuracies (sd, points) grows from the lowest learning rate to the highest by"
PEAKS = (
    "the spread of the networks' best batch sizes (sd, doublings) grows from the lowest learning rate to the highest by"
)


def parting_curves(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slopes of two standard deviations between networks over log(rate).

    One is of their accuracies, averaged over batch sizes, the other of their best batch sizes. Supported where both
    grow with the rate (the larger p counts, and its quantity is the estimate), contradicted where one of them falls
    (Bonferroni); t tests over seeds. Noise that grows with the rate makes both grow too. Of the full arm, where a study
    has two networks or more, and two rates or more at which no best size lies at an end (`BestSizes`).
    """
    heights: dict[object, dict[Replicate, float]] = {}
    peaks: dict[object, dict[Replicate, float]] = {}
    rounding = 0.0
    groups = group_by([record for record in records if record.arm == "full"], "study", "weight_decay")
    for key, found in drop_subsets(groups).items():
        grid = accuracy_grid(found, "learning_rate", "batch_size", "model")
        best, networks = best_sizes(grid), len(grid.levels[2])
        if best is None or len(best.rates) < 2 or networks < 2:
            continue
        rates = np.log2(grid.levels[0])
        spread = grid.top1.std(axis=-1, ddof=1).mean(axis=-1)
        parted = best.change(best.sizes.std(axis=-1, ddof=1))
        heights[key] = _by_seed(grid.seeds, slope(rates, spread) * np.ptp(rates))
        peaks[key] = _by_seed(grid.seeds, parted)
        # A standard deviation of n values moves by 1 / sqrt(n - 1) of what each of them does.
        rounding = max(rounding, best.rounding / (networks - 1) ** 0.5)
    lie, peak = average_replicates(heights), average_replicates(peaks)
    if lie is None or peak is None:
        return None
    both = (
        t_test_evidence(lie, rule, HEIGHTS, scale=100, rounding=accuracy_rounding(records)),
        t_test_evidence(peak, rule, PEAKS, rounding=rounding),
    )
    if both[0] is None or both[1] is None:
        return None
    weaker = max(both[0], both[1], key=lambda evidence: evidence.p_for)
    return replace(weaker, p_against=min(1.0, 2 * min(both[0].p_against, both[1].p_against)))


def _by_seed(seeds: Sequence[int], values: np.ndarray) -> dict[Replicate, float]:
    return {(0, seed): float(value) for seed, value in zip(seeds, values, strict=True)}


_VARIANCE_QUANTITY = "for each doubling of the batch size the logarithm of the variance between seeds grows by"

SEEDS = 3
SIZES = 5
"""Minimum number of batch sizes: with fewer no order is rare; 4 have 24 orders."""


def variance(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slope of the log variance between seeds, as mean over curves, over the log batch size.

    If the batch size does not matter, the sizes' variances could as well stand in any other order: a permutation test
    of the slope, which takes runs of any distribution, as where some of them fail.
    The order is changed for all curves at once, since these share their seeds, and runs between studies; hence curves
    count that have the same sizes, the largest set of them, and the others are left out and counted. Supported where
    the slope is above 0, contradicted below. The interval is that of the line, for residuals that are normal.

    A curve is of one study, arm, filter, network, learning rate and weight decay, with SIZES and SEEDS or more. A
    variance is no smaller than that of rounding to the test images.
    """
    curves: dict[tuple[int, ...], list[NDArray[np.float64]]] = {}
    names = ("model", "learning_rate", "weight_decay", "study", "arm", "extractor", "draw", "n_images")
    for key, found in drop_subsets(group_by(records, *names)).items():
        grid = accuracy_grid(found, "batch_size")
        if len(grid.seeds) >= SEEDS and len(grid.levels[0]) >= SIZES:
            spread = np.maximum(grid.top1.var(axis=0, ddof=1), rounding_sd(1 / key[-1]) ** 2)
            curves.setdefault(tuple(grid.levels[0]), []).append(np.log(spread))
    if not curves:
        return None
    sizes = max(curves, key=lambda of: (len(of), len(curves[of]), of))
    logs, doublings = np.mean(curves[sizes], axis=0), np.log2(sizes)
    p_for, p_against = trend_test(doublings, logs)
    mean = float(slope(doublings, logs))
    residuals = logs - logs.mean() - mean * (doublings - doublings.mean())
    error = float(np.linalg.norm(residuals) / np.linalg.norm(doublings - doublings.mean()) / (len(sizes) - 2) ** 0.5)
    half = float(stats.t.isf(rule.alpha / 2, len(sizes) - 2)) * error
    return ClaimEvidence(
        p_for=p_for, p_against=p_against, quantity=_VARIANCE_QUANTITY, mean=mean, low=mean - half, high=mean + half,
        threshold=0.0, n=len(sizes), unit="batch size", settings=len(curves[sizes]),
        left_out=sum(map(len, curves.values())) - len(curves[sizes]),
    )  # fmt: skip
