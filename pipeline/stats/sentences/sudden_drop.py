"""Beyond its best batch size the accuracy of a large network drops suddenly, that of a small one gradually."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of
from pipeline.stats.sentences.trials import Trial, by, distinct, grid_of, replicates_of

SMALL = ("resnet18", "resnet34")
LARGE = ("resnet50", "resnet101", "resnet152")

QUANTITY = "the steepest fall beyond the best batch size (points a doubling) is larger in large networks by"

WINDOW = 2
"""Sizes beyond a network's best that must have been tried: one fall is neither sudden nor gradual."""


def sudden_drop(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The steepest fall in a doubling beyond each network's best size, ResNet-50 and up minus ResNet-18 and 34.

    Supported where it is larger in large networks, contradicted where it is smaller (t test over seeds). The steepest
    of more falls is steeper, so that in each seed the same number of sizes beyond each network's own best is looked
    at; a seed that has fewer than two of some network is left out. Noisier curves have steeper falls, so that it holds
    for networks of like noise. Of the full arm, where a study has networks of both kinds; of sizes less than a
    doubling apart the smallest counts.
    """
    values = {}
    chosen = [trial for trial in trials if trial.arm == "full" and trial.model in SMALL + LARGE]
    for key, found in distinct(by(chosen, "study", "learning_rate", "weight_decay")).items():
        grid = grid_of(found, "model", "batch_size")
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
    rounding = 2 * accuracy_rounding(trials)
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100, rounding=rounding)


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
