"""Made-up runs for the paper's sentences: grids with accuracies by rule and normal noise."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.stats.sentences import SENTENCES, Evidence, Rule, Trial

RUN = Trial(
    study="study", arm="full", extractor="resnet18", draw=0, model="resnet18", batch_size=64, learning_rate=0.1,
    weight_decay=5e-4, bn_group=64, augmented=True, seed=0, steps=100, epochs=5.0, matched="steps", recipe="",
    n_images=10_000, top1=0.0, fingerprint="",
)  # fmt: skip

_CELLS = itertools.count()

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
            top1 = level(trial) + sd * (common + rng.normal()) / 2**0.5
            found.append(replace(trial, top1=top1, fingerprint=f"{next(_CELLS)}"))
    return found


Make = Callable[[np.random.Generator, int], list[Trial]]
"""Runs of so many seeds."""

RULE = Rule(margin=0.005, alpha=0.05)


def grid(level: Level, *, noise: float | Level = 0.004, **axes: Any) -> Make:
    return lambda rng, seeds: made_trials(rng, level, seeds=seeds, noise=noise, **axes)


def claims(name: str, make: Make, simulations: int, seeds: int = 6) -> tuple[float, float]:
    """Shares of simulations in which a sentence is supported and in which it is contradicted, judged alone.

    One that cannot be tested is neither.
    """
    rng = np.random.default_rng(list(name.encode()))
    judged = [SENTENCES[name].judge(make(rng, seeds), RULE) for _ in range(simulations)]
    found = [evidence for evidence in judged if evidence is not None and evidence.p <= RULE.alpha]
    supported = sum(evidence.p_for < evidence.p_against for evidence in found)
    return supported / simulations, (len(found) - supported) / simulations


def hardly_above(nominal: float, simulations: int) -> float:
    """What a rate of `nominal` hardly ever exceeds by chance: 4 binomial standard deviations more."""
    return nominal + 4 * math.sqrt(nominal * (1 - nominal) / simulations)


def outcome(evidence: Evidence | None) -> str:
    if evidence is None:
        return "not testable here"
    if evidence.p > RULE.alpha:
        return "undecided"
    return "supported" if evidence.p_for < evidence.p_against else "contradicted"
