"""The best batch size depends on the learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.stats.levels import level_mean
from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of, slope
from pipeline.stats.sentences.trials import Trial, by, grid_of, replicates_of

QUANTITY = "the best batch size changes from the lowest learning rate to the highest, in doublings, by"

BOUND = 1.0
"""Doublings: a change that is sure to be smaller contradicts the sentence."""


def best_batch(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Each seed's best batch size at each rate, its logarithm fitted by a line against that of the rate.

    Supported where the mean change over the range of rates is not 0 (two-sided t test over seeds), contradicted where
    it is sure to be less than one doubling either way (two one-sided t tests). A best batch size that goes up and
    down again is not found. Of the full arm, where a study has two rates and three batch sizes or more.

    The best of the sizes tried is not the best size. At either end it tells of no more than a bound, so that a rate
    at which some seed's best is there is left out, and a study with such a rate contradicts nothing. Between sizes
    that lie `step` doublings apart it is known but to a rounding error of standard deviation step / sqrt(12), below
    which the spread between seeds is not taken to be; sizes further apart than one doubling contradict nothing.
    """
    groups = by([trial for trial in trials if trial.arm == "full"], "study", "model", "weight_decay")
    found_changes = {key: change for key, found in groups.items() if (change := _change(found))}
    changes = {key: change for key, change in found_changes.items() if change.by_seed}
    found_replicates = replicates_of({key: change.by_seed for key, change in changes.items()})
    if found_replicates is None:
        return None
    # Settings are rounded independently, and averaged.
    least_sd = sum(change.rounding**2 for change in changes.values()) ** 0.5 / len(changes)
    evidence = evidence_of(found_replicates, rule, QUANTITY, least_sd=least_sd)
    if evidence is None:
        return None
    mean = level_mean(found_replicates.table, shared_control=False).no_sharper_than(least_sd / evidence.n**0.5)
    studies = {study for study, *_ in changes}
    bounded = all(change.bounded for (study, *_), change in found_changes.items() if study in studies)
    against = float(mean.p_equivalence(BOUND)) if bounded else 1.0
    return replace(evidence, p_for=float(mean.p_difference()), p_against=against)


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Of one study, network and weight decay.

    Attributes:
        by_seed: (0, seed) -> change of the best batch size over the range of rates, in doublings; empty where fewer
            than two rates tell of it.
        rounding: standard deviation that the distance of the sizes gives it.
        bounded: whether a small change speaks against the sentence.
    """

    by_seed: dict[tuple[int, int], float]
    rounding: float
    bounded: bool


def _change(trials: Sequence[Trial]) -> _Change | None:
    """None without two rates, three sizes and a seed that has them all."""
    grid = grid_of(trials, "learning_rate", "batch_size")
    sizes, best = np.log2(grid.levels[1]), grid.top1.argmax(axis=-1)
    if not grid.seeds or len(grid.levels[0]) < 2 or len(sizes) < 3:
        return None
    inside = ((best > 0) & (best < len(sizes) - 1)).all(axis=0)
    if inside.sum() < 2:
        return _Change(by_seed={}, rounding=0.0, bounded=False)
    rates, step = np.log2(grid.levels[0])[inside], np.diff(sizes).max()
    change = slope(rates, sizes[best[:, inside]]) * np.ptp(rates)
    weights = slope(rates, np.eye(len(rates))) * np.ptp(rates)
    return _Change(
        by_seed={(0, seed): float(value) for seed, value in zip(grid.seeds, change, strict=True)},
        rounding=float(step / 12**0.5 * np.linalg.norm(weights)),
        bounded=bool(inside.all() and step <= BOUND),
    )
