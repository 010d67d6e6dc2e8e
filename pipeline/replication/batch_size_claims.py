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
    distinct_groups,
    slope,
    t_test_evidence,
    values_by_replicate,
)
from pipeline.stats.estimates import rounding_sd
from pipeline.stats.hypothesis_tests import trend_test
from pipeline.stats.replicates import replicate_mean


@dataclass(frozen=True, kw_only=True)
class BestSizes:
    """The best of the batch sizes tried, at the rates that determine it.

    The best of the sizes tried is not the best size. At either end of the sizes it is only a bound. A rate at which
    some seed's best size lies at an end is left out. Between sizes `step` apart the best size is rounded.

    Attributes:
        rates: (rates,), log2 of the learning rate, ascending.
        sizes: (seeds, rates, ...), log2 of the best batch size.
        step: the largest distance of adjacent sizes, in doublings.
        all_rates: whether no rate was left out.
    """

    rates: NDArray[np.float64]
    sizes: NDArray[np.float64]
    step: float
    all_rates: bool

    def change(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how much the least-squares line of values (seeds, rates) changes over the rates: (seeds,)."""
        return slope(self.rates, values) * np.ptp(self.rates)

    @property
    def rounding(self) -> float:
        """Standard deviation, in doublings, that rounding to the sizes gives the change of the best size."""
        return float(rounding_sd(self.step) * np.linalg.norm(self.change(np.eye(len(self.rates)))))


def best_sizes(grid: AccuracyGrid) -> BestSizes | None:
    """Return the best sizes of a grid whose first axes are learning rate and batch size.

    Returns:
        None without two rates and three sizes.
    """
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


BOUND = 1.0
"""Doublings. A change of the best batch size that is significantly smaller contradicts the claim `best_batch`."""

_BEST_BATCH_QUANTITY = "the best batch size changes from the lowest learning rate to the highest, in doublings, by"


def best_batch(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slope of each seed's best batch size over the learning rate, both as logarithms.

    Supported if the mean change over the range of rates is not 0 (two-sided t test over seeds). Contradicted if the
    change is significantly smaller than one doubling either way (two one-sided t tests). The test does not detect a
    best batch size that rises and falls again.

    Uses the full arm of studies with two rates and three batch sizes or more. A study cannot contradict the claim if
    some best size lies at an end of the sizes (`BestSizes`), or if its sizes are more than a doubling apart. Rounding
    to the sizes tried adds to the spread between seeds.
    """
    seeds, bests = {}, {}
    full = [record for record in records if record.arm == "full"]
    for key, group in distinct_groups(full, "study", "model", "weight_decay").items():
        grid = accuracy_grid(group, "learning_rate", "batch_size")
        if (best := best_sizes(grid)) is not None:
            seeds[key], bests[key] = grid.seeds, best
    values = {
        key: values_by_replicate(best.change(best.sizes), seeds[key])
        for key, best in bests.items()
        if len(best.rates) > 1
    }
    replicates = average_replicates(values)
    if replicates is None:
        return None
    rounding = max(bests[key].rounding for key in values)
    evidence = t_test_evidence(replicates, criteria, _BEST_BATCH_QUANTITY, rounding=rounding)
    if evidence is None:
        return None
    mean = replicate_mean(replicates.table, rounding=rounding / replicates.settings**0.5)
    studies = {study for study, *_ in values}
    bounded = all(best.all_rates and best.step <= BOUND for (study, *_), best in bests.items() if study in studies)
    against = float(mean.p_equivalence(BOUND)) if bounded else 1.0
    return replace(evidence, p_for=float(mean.p_difference()), p_against=against)


SMALL = ("resnet18", "resnet34")
LARGE = ("resnet50", "resnet101", "resnet152")

WINDOW = 2
"""Minimum number of sizes beyond a network's best one: a single fall is neither sudden nor gradual."""

_SUDDEN_DROP_SEEDS = 3
_SUDDEN_DROP_QUANTITY = (
    "the steepest fall beyond the best batch size (points a doubling) is larger in large networks by"
)


def sudden_drop(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the steepest fall per doubling beyond each network's best size: ResNet-50 and up minus ResNet-18 and 34.

    Supported if the fall is larger in large networks, contradicted if it is smaller (t test over seeds). The steepest
    of more falls is steeper. Hence each seed uses the same number of sizes beyond each network's best one, and a seed
    with fewer than two for some network is left out. Noisier curves have steeper falls, so that the test assumes
    networks of similar noise. A maximum is not normal: with two seeds the test would err in 7 %, with three in less
    than 5 %, so it needs three.

    Uses the full arm of studies with networks of both kinds. Of sizes less than a doubling apart the smallest counts.
    """
    values = {}
    full = [record for record in records if record.arm == "full" and record.model in SMALL + LARGE]
    for key, group in distinct_groups(full, "study", "learning_rate", "weight_decay").items():
        grid = accuracy_grid(group, "model", "batch_size")
        large = np.isin(grid.levels[0], LARGE)
        if not grid.seeds or large.all() or not large.any():
            continue
        falls = {
            seed: steepest_falls(top1, np.log2(grid.levels[1]))
            for seed, top1 in zip(grid.seeds, grid.top1, strict=True)
        }
        differences = {
            (0, seed): float(fall[large].mean() - fall[~large].mean())
            for seed, fall in falls.items()
            if fall is not None
        }
        if differences:
            values[key] = differences
    replicates = average_replicates(values)
    if replicates is None or replicates.table.shape[1] < _SUDDEN_DROP_SEEDS:
        return None
    rounding = 2 * accuracy_rounding(records)
    return t_test_evidence(replicates, criteria, _SUDDEN_DROP_QUANTITY, scale=100, rounding=rounding)


def steepest_falls(top1: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return each network's steepest fall beyond its best size: (networks,), accuracy per doubling.

    Uses as many sizes beyond each network's best one as all networks have.

    Args:
        top1: (networks, n) accuracies, 0 to 1.
        sizes: (n,) log2 of the batch sizes, ascending.

    Returns:
        None if some network has fewer than WINDOW sizes beyond its best one.
    """
    chosen = doublings_apart(sizes)
    top1, steps = top1[..., chosen], np.diff(sizes[chosen])
    best = top1.argmax(axis=-1)
    beyond = len(steps) - best.max()
    if beyond < WINDOW:
        return None
    window = best[:, None] + np.arange(beyond)
    falls = np.take_along_axis(-np.diff(top1, axis=-1) / steps, window, axis=-1)
    steepest: NDArray[np.float64] = falls.max(axis=-1)
    return steepest


def doublings_apart(sizes: NDArray[np.float64]) -> list[int]:
    """Return the row of the smallest size, and of each size one doubling or more above the previously chosen one.

    The slope between two closer sizes is noisier. The result would depend on which sizes lie near a network's best.

    Args:
        sizes: (n,) log2 of the batch sizes, ascending.
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


def parting_curves(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slopes of two standard deviations between networks over log(rate).

    The first is that of their accuracies, averaged over batch sizes. The second is that of their best batch sizes.
    Supported if both grow with the rate: the larger p counts, and its quantity is the estimate. Contradicted if one
    of them falls (Bonferroni). Both are t tests over seeds. Noise that grows with the rate makes both grow too.

    Uses the full arm of studies with two networks or more, and two rates or more at which no best size lies at an end
    of the sizes (`BestSizes`).
    """
    heights: dict[object, dict[Replicate, float]] = {}
    peaks: dict[object, dict[Replicate, float]] = {}
    rounding = 0.0
    full = [record for record in records if record.arm == "full"]
    for key, group in distinct_groups(full, "study", "weight_decay").items():
        grid = accuracy_grid(group, "learning_rate", "batch_size", "model")
        best, networks = best_sizes(grid), len(grid.levels[2])
        if best is None or len(best.rates) < 2 or networks < 2:
            continue
        rates = np.log2(grid.levels[0])
        height_spread = grid.top1.std(axis=-1, ddof=1).mean(axis=-1)
        peak_spread = best.sizes.std(axis=-1, ddof=1)
        heights[key] = values_by_replicate(slope(rates, height_spread) * np.ptp(rates), grid.seeds)
        peaks[key] = values_by_replicate(best.change(peak_spread), grid.seeds)
        # A standard deviation of n values moves by 1 / sqrt(n - 1) of what each value moves.
        rounding = max(rounding, best.rounding / (networks - 1) ** 0.5)
    by_height = t_test_evidence(
        average_replicates(heights), criteria, HEIGHTS, scale=100, rounding=accuracy_rounding(records)
    )
    by_peak = t_test_evidence(average_replicates(peaks), criteria, PEAKS, rounding=rounding)
    if by_height is None or by_peak is None:
        return None
    weaker = max(by_height, by_peak, key=lambda evidence: evidence.p_for)
    return replace(weaker, p_against=min(1.0, 2 * min(by_height.p_against, by_peak.p_against)))


SEEDS = 3
SIZES = 5
"""Minimum number of batch sizes. With fewer no order is rare: 4 sizes have 24 orders."""

_VARIANCE_QUANTITY = "for each doubling of the batch size the logarithm of the variance between seeds grows by"


def variance(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slope of the log variance between seeds, as mean over curves, over the log batch size.

    Supported if the slope is above 0, contradicted if it is below. A permutation test of the slope decides: if the
    batch size does not matter, the variances of the sizes can stand in any order. The test makes no assumption about
    the distribution, so that runs may fail. The interval is that of the line, for normal residuals.

    The order changes for all curves at once, since curves share their seeds, and studies share runs. Hence only
    curves with the same sizes count: the largest set of them. The others are left out and counted.

    A curve belongs to one study, arm, filter, network, learning rate and weight decay. It has SIZES batch sizes and
    SEEDS seeds or more. A variance is at least that of rounding to the test images.
    """
    curves: dict[tuple[int, ...], list[NDArray[np.float64]]] = {}
    names = ("model", "learning_rate", "weight_decay", "study", "arm", "extractor", "draw", "n_images")
    for key, group in distinct_groups(records, *names).items():
        grid = accuracy_grid(group, "batch_size")
        if len(grid.seeds) >= SEEDS and len(grid.levels[0]) >= SIZES:
            variances = np.maximum(grid.top1.var(axis=0, ddof=1), rounding_sd(1 / key[-1]) ** 2)
            curves.setdefault(tuple(grid.levels[0]), []).append(np.log(variances))
    if not curves:
        return None
    sizes = max(curves, key=lambda candidate: (len(candidate), len(curves[candidate]), candidate))
    log_variances, doublings = np.mean(curves[sizes], axis=0), np.log2(sizes)
    p_for, p_against = trend_test(doublings, log_variances)
    mean = float(slope(doublings, log_variances))
    centered = doublings - doublings.mean()
    residuals = log_variances - log_variances.mean() - mean * centered
    error = float(np.linalg.norm(residuals) / np.linalg.norm(centered) / (len(sizes) - 2) ** 0.5)
    half = float(stats.t.isf(criteria.alpha / 2, len(sizes) - 2)) * error
    return ClaimEvidence(
        p_for=p_for, p_against=p_against, quantity=_VARIANCE_QUANTITY, mean=mean, low=mean - half, high=mean + half,
        threshold=0.0, n=len(sizes), unit="batch size", settings=len(curves[sizes]),
        left_out=sum(map(len, curves.values())) - len(curves[sizes]),
    )  # fmt: skip
