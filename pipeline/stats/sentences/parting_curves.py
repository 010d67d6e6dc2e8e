"""Accuracy curves of different networks lie together at low learning rates and part at high ones."""

from collections.abc import Sequence

import numpy as np

from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of, slope
from pipeline.stats.sentences.trials import Trial, by, grid_of, replicates_of

QUANTITY = "the spread of the networks' accuracies (sd, points) grows from the lowest learning rate to the highest by"


def parting_curves(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The standard deviation between networks, averaged over batch sizes, fitted by a line against log(rate).

    Supported where it grows with the rate, contradicted where it falls (t test over seeds). Noise that grows with the
    rate makes it grow too. Of the full arm, where a study has two networks, rates and batch sizes or more.
    """
    values = {}
    for key, found in by([trial for trial in trials if trial.arm == "full"], "study", "weight_decay").items():
        grid = grid_of(found, "learning_rate", "batch_size", "model")
        rates = np.log2(grid.levels[0])
        if min(map(len, grid.levels)) > 1 and grid.seeds:
            spread = grid.top1.std(axis=-1, ddof=1).mean(axis=-1)
            growth = slope(rates, spread) * np.ptp(rates)
            values[key] = {(0, seed): float(value) for seed, value in zip(grid.seeds, growth, strict=True)}
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100)
