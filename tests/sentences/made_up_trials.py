"""Made-up runs for the paper's sentences: grids with accuracies by rule and normal noise."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.stats.sentences.trials import Trial

RUN = Trial(
    study="study", arm="full", extractor="resnet18", draw=0, model="resnet18", batch_size=64, learning_rate=0.1,
    weight_decay=5e-4, bn_group=64, augmented=True, seed=0, steps=100, matched="steps", recipe="", top1=0.0,
)  # fmt: skip

Level = Callable[[Trial], float]
"""A trial's expected accuracy, 0 to 1."""


def made_trials(
    rng: np.random.Generator, level: Level, *, seeds: int = 5, noise: float | Level = 0.004, **axes: Any
) -> list[Trial]:
    """All combinations of `axes` (attribute -> values) and seeds; BatchNorm has one group unless it is an axis.

    Args:
        noise: standard deviation of the accuracies; half its variance is common to the runs of a seed.
    """
    found = []
    for seed in range(seeds):
        common = rng.normal()
        for values in itertools.product(*axes.values()):
            named: Mapping[str, Any] = dict(zip(axes, values, strict=True))
            trial = replace(RUN, seed=seed, **{"bn_group": named.get("batch_size", RUN.batch_size), **named})
            sd = noise(trial) if callable(noise) else noise
            found.append(replace(trial, top1=level(trial) + sd * (common + rng.normal()) / 2**0.5))
    return found
