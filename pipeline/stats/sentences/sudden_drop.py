"""Beyond its best batch size the accuracy of a large network drops suddenly, that of a small one gradually."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of
from pipeline.stats.sentences.trials import Trial, by, grid_of, replicates_of

SMALL = ("resnet18", "resnet34")
LARGE = ("resnet50", "resnet101", "resnet152")

QUANTITY = "of the whole drop, the part (%) between two neighbouring batch sizes is larger in large networks by"


def sudden_drop(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The share of the drop that falls between two neighbouring batch sizes, ResNet-50 and up minus ResNet-18 and 34.

    Supported where it is larger in large networks, contradicted where it is smaller (t test over seeds). A seed of
    which some network's accuracy does not drop is left out. Noisier curves have larger shares, so that it holds for
    networks of like noise. Of the full arm, where a study has networks of both kinds and three batch sizes or more.
    """
    values = {}
    for key, found in by(
        [trial for trial in trials if trial.arm == "full" and trial.model in SMALL + LARGE],
        "study", "learning_rate", "weight_decay",
    ).items():  # fmt: skip
        grid = grid_of(found, "model", "batch_size")
        large = np.isin(grid.levels[0], LARGE)
        if len(grid.levels[1]) < 3 or large.all() or not large.any():
            continue
        shares = steepest_shares(grid.top1)
        difference = shares[:, large].mean(axis=1) - shares[:, ~large].mean(axis=1)
        known = {(0, seed): float(value) for seed, value in zip(grid.seeds, difference, strict=True) if value == value}
        if known:
            values[key] = known
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100)


def steepest_shares(top1: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., n) accuracies at ascending batch sizes -> (...): steepest fall between neighbours over the whole drop.

    The drop is from the maximum to the lowest value after it; NaN where there is none. 1 where all of it happens at
    once; a curve that also rises on the way may exceed it.
    """
    after = np.arange(top1.shape[-1]) >= top1.argmax(axis=-1)[..., None]
    drop = top1.max(axis=-1) - np.where(after, top1, np.inf).min(axis=-1)
    falls = np.where(after[..., :-1], -np.diff(top1, axis=-1), 0.0).max(axis=-1)
    shares: NDArray[np.float64] = np.divide(falls, drop, out=np.full_like(drop, np.nan), where=drop > 0)
    return shares
