"""The variance of accuracy between runs grows with the batch size."""

from collections.abc import Sequence

import numpy as np
from scipy import special

from pipeline.stats.sentences.evidence import Evidence, Rule, normal_evidence
from pipeline.stats.sentences.trials import Trial, by, grid_of

QUANTITY = "for each doubling of the batch size the logarithm of the variance between seeds grows by"


def variance(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The logarithm of the variance between seeds, fitted by a line against that of the batch size.

    Of n normal values it has the variance trigamma((n - 1) / 2), whatever the variance itself (Bartlett and Kendall
    1946, doi:10.2307/2983618), so that the slope has a known standard error: a z test, over all arms and settings
    weighted by their precision. Supported where it is above 0, contradicted below. Values that are not normal make it
    err more often. A study needs two batch sizes and three seeds; a curve of which all seeds agree somewhere is left
    out.
    """
    slopes, precisions, seeds = [], [], []
    for found in by(trials, "study", "arm", "extractor", "draw", "model", "learning_rate", "weight_decay").values():
        grid = grid_of(found, "batch_size")
        n, doublings = len(grid.seeds), np.log2(grid.levels[0])
        if n < 3 or len(doublings) < 2 or (spread := grid.top1.var(axis=0, ddof=1)).min() <= 0:
            continue
        centred = doublings - doublings.mean()
        slopes.append(float(np.log(spread) @ centred / (centred @ centred)))
        precisions.append(float(centred @ centred / special.polygamma(1, (n - 1) / 2)))
        seeds.append(n)
    if not slopes:
        return None
    mean, error = float(np.average(slopes, weights=precisions)), float(sum(precisions) ** -0.5)
    return normal_evidence(mean, error, rule, QUANTITY, n=min(seeds), unit="seed", settings=len(slopes))
