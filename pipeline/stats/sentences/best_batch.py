"""The best batch size depends on the learning rate."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.stats.levels import level_mean
from pipeline.stats.sentences.best_sizes import best_sizes
from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of
from pipeline.stats.sentences.trials import Trial, by, distinct, grid_of, replicates_of

QUANTITY = "the best batch size changes from the lowest learning rate to the highest, in doublings, by"

BOUND = 1.0
"""Doublings: a change that is sure to be smaller contradicts the sentence."""


def best_batch(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Each seed's best batch size at each rate, its logarithm fitted by a line against that of the rate.

    Supported where the mean change over the range of rates is not 0 (two-sided t test over seeds), contradicted where
    it is sure to be less than one doubling either way (two one-sided t tests). A best batch size that goes up and
    down again is not found. Of the full arm, where a study has two rates and three batch sizes or more.

    A study with a rate at which some best one is at either end of the sizes (`BestSizes`) contradicts nothing, nor
    does one whose sizes lie further apart than a doubling. To the spread between seeds comes that of rounding to the
    sizes tried.
    """
    groups = by([trial for trial in trials if trial.arm == "full"], "study", "model", "weight_decay")
    seeds, bests = {}, {}
    for key, found in distinct(groups).items():
        grid = grid_of(found, "learning_rate", "batch_size")
        if (best := best_sizes(grid)) is not None:
            seeds[key], bests[key] = grid.seeds, best
    values = {
        key: {(0, seed): float(value) for seed, value in zip(seeds[key], best.change(best.sizes), strict=True)}
        for key, best in bests.items()
        if len(best.rates) > 1
    }
    found_replicates = replicates_of(values)
    if found_replicates is None:
        return None
    rounding = max(bests[key].rounding for key in values)
    evidence = evidence_of(found_replicates, rule, QUANTITY, rounding=rounding)
    if evidence is None:
        return None
    blur = rounding / found_replicates.settings**0.5
    mean = level_mean(found_replicates.table, rounding=blur)
    studies = {study for study, *_ in values}
    bounded = all(best.all_rates and best.step <= BOUND for (study, *_), best in bests.items() if study in studies)
    against = float(mean.p_equivalence(BOUND)) if bounded else 1.0
    return replace(evidence, p_for=float(mean.p_difference()), p_against=against)
