"""The variance of accuracy between runs grows with the batch size."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.stats.permutation import trend_test
from pipeline.stats.sentences.evidence import Evidence, Rule, slope
from pipeline.stats.sentences.trials import Trial, by, distinct, grid_of
from pipeline.stats.student import rounding_sd

QUANTITY = "for each doubling of the batch size the logarithm of the variance between seeds grows by"

SEEDS = 3
SIZES = 5
"""Of fewer batch sizes no order is rare: 4 have 24."""


def variance(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The logarithm of the variance between seeds, mean over curves, fitted by a line against that of the batch size.

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
    for key, found in distinct(by(trials, *names)).items():
        grid = grid_of(found, "batch_size")
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
    return Evidence(
        p_for=p_for, p_against=p_against, quantity=QUANTITY, mean=mean, low=mean - half, high=mean + half,
        threshold=0.0, n=len(sizes), unit="batch size", settings=len(curves[sizes]),
        left_out=sum(map(len, curves.values())) - len(curves[sizes]),
    )  # fmt: skip
