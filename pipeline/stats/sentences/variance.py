"""The variance of accuracy between runs grows with the batch size."""

from collections.abc import Sequence

import numpy as np
from scipy import special

from pipeline.stats.sentences.evidence import Evidence, Rule, normal_evidence, slope
from pipeline.stats.sentences.trials import Trial, by, grid_of

QUANTITY = "for each doubling of the batch size the logarithm of the variance between seeds grows by"


def variance(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The logarithm of the variance between seeds, fitted by a line against that of the batch size.

    Of n normal values it has the variance trigamma((n - 1) / 2), whatever the variance itself (Bartlett and Kendall
    1946, doi:10.2307/2983618), so that the slope has a known standard error: a z test, over all curves weighted by
    their precision. Those of one network, learning rate and weight decay share their seeds, and runs between studies:
    they count as if they were one curve. Supported where the slope is above 0, contradicted below. Values that are
    not normal make it err more often. A study needs two batch sizes and three seeds; a curve of which all seeds agree
    somewhere is left out.
    """
    families: dict[object, list[tuple[float, float]]] = {}
    seeds = []
    for key, found in by(
        trials, "model", "learning_rate", "weight_decay", "study", "arm", "extractor", "draw"
    ).items():  # fmt: skip
        grid = grid_of(found, "batch_size")
        n, doublings = len(grid.seeds), np.log2(grid.levels[0])
        if n < 3 or len(doublings) < 2 or (spread := grid.top1.var(axis=0, ddof=1)).min() <= 0:
            continue
        centred = doublings - doublings.mean()
        precision = centred @ centred / special.polygamma(1, (n - 1) / 2)
        families.setdefault(key[:3], []).append((slope(doublings, np.log(spread)).item(), float(precision)))
        seeds.append(n)
    if not seeds:
        return None
    curves = [curve for family in families.values() for curve in family]
    total = sum(precision for _, precision in curves)
    mean = sum(found * precision for found, precision in curves) / total
    # The weight of a curve times its standard error is the root of its precision.
    error = sum(sum(precision**0.5 for _, precision in family) ** 2 for family in families.values()) ** 0.5 / total
    return normal_evidence(mean, error, rule, QUANTITY, n=min(seeds), unit="seed", settings=len(curves))
