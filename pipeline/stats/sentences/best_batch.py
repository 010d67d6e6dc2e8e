"""The best batch size depends on the learning rate."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.stats.levels import level_mean
from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of, slope
from pipeline.stats.sentences.trials import Trial, by, grid_of, replicates_of

QUANTITY = "the best batch size changes from the lowest learning rate to the highest, in doublings, by"


def best_batch(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Each seed's best batch size at each rate, its logarithm fitted by a line against that of the rate.

    Supported where the mean change over the range of rates is not 0 (two-sided t test over seeds), contradicted where
    it is sure to be less than one doubling either way (two one-sided t tests). A best batch size that goes up and
    down again is not found. Of the full arm, where a study has two rates and three batch sizes or more.
    """
    values = {}
    for key, found in by([trial for trial in trials if trial.arm == "full"], "study", "model", "weight_decay").items():
        grid = grid_of(found, "learning_rate", "batch_size")
        rates, sizes = np.log2(grid.levels[0]), np.log2(grid.levels[1])
        if len(rates) > 1 and len(sizes) > 2 and grid.seeds:
            change = slope(rates, sizes[grid.top1.argmax(axis=-1)]) * np.ptp(rates)
            values[key] = {(0, seed): float(value) for seed, value in zip(grid.seeds, change, strict=True)}
    found_replicates = replicates_of(values)
    evidence = evidence_of(found_replicates, rule, QUANTITY)
    if evidence is None or found_replicates is None:
        return None
    mean = level_mean(found_replicates.table, shared_control=False)
    return replace(evidence, p_for=float(mean.p_difference()), p_against=float(mean.p_equivalence(1.0)))
