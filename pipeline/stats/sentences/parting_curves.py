"""Accuracy curves of different networks lie and peak together at low learning rates and part at high ones."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.stats.sentences.best_sizes import best_sizes
from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of, slope
from pipeline.stats.sentences.trials import Replicate, Trial, by, distinct, grid_of, replicates_of

HEIGHTS = "the spread of the networks' accuracies (sd, points) grows from the lowest learning rate to the highest by"
PEAKS = (
    "the spread of the networks' best batch sizes (sd, doublings) grows from the lowest learning rate to the highest by"
)


def parting_curves(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Two standard deviations between networks, each fitted by a line against log(rate).

    One is of their accuracies, averaged over batch sizes, the other of their best batch sizes. Supported where both
    grow with the rate (the larger p counts, and its quantity is the estimate), contradicted where one of them falls
    (Bonferroni); t tests over seeds. Noise that grows with the rate makes both grow too. Of the full arm, where a study
    has two networks or more, and two rates or more at which no best size lies at an end (`BestSizes`).
    """
    heights: dict[object, dict[Replicate, float]] = {}
    peaks: dict[object, dict[Replicate, float]] = {}
    rounding = 0.0
    groups = by([trial for trial in trials if trial.arm == "full"], "study", "weight_decay")
    for key, found in distinct(groups).items():
        grid = grid_of(found, "learning_rate", "batch_size", "model")
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
    lie, peak = replicates_of(heights), replicates_of(peaks)
    if lie is None or peak is None:
        return None
    both = (
        evidence_of(lie, rule, HEIGHTS, scale=100, rounding=accuracy_rounding(trials)),
        evidence_of(peak, rule, PEAKS, rounding=rounding),
    )
    if both[0] is None or both[1] is None:
        return None
    weaker = max(both[0], both[1], key=lambda evidence: evidence.p_for)
    return replace(weaker, p_against=min(1.0, 2 * min(both[0].p_against, both[1].p_against)))


def _by_seed(seeds: Sequence[int], values: np.ndarray) -> dict[Replicate, float]:
    return {(0, seed): float(value) for seed, value in zip(seeds, values, strict=True)}
