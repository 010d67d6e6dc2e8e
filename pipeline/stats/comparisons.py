"""What a study's runs say of its arms: accuracies, and differences between paired runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.estimates import Estimate, crossed_difference, mean_estimate, pooled_difference
from pipeline.stats.runs import Run, Setting

TREATED = "filtered"
"""The arm that the others are compared with."""

Pairs = Mapping[tuple[str, int], float]
"""(filter network, seed) -> filtered minus control, in points of top-1."""

_CONTROLS = ("random", "full", "random_uniform")


@dataclass(frozen=True, kw_only=True)
class ArmAccuracy:
    """One arm at one setting.

    Attributes:
        top1: over the finished seeds, or over the means of the draws of the filter where the arm has
            several; 0 to 1, None if no seed finished.
        balanced_accuracy: mean over the finished seeds, 0 to 1.
        planned: seeds or draws, whether they finished or not.
        n_train: mean over the draws.
    """

    setting: Setting
    arm: str
    top1: Estimate | None
    balanced_accuracy: float | None
    planned: int
    n_train: int
    steps: int | None
    epochs: float | None
    peak_learning_rate: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Filtered minus `control` at one setting, in percentage points of top-1; None without pairs."""

    setting: Setting
    control: str
    estimate: Estimate | None


@dataclass(frozen=True, kw_only=True)
class PooledDifference:
    """Filtered minus `control` over the settings of a study, in percentage points of top-1.

    Attributes:
        estimate: None if no setting has both arms everywhere. Its replicates are draws of the filter where
            the study has several, since seeds of one draw share its luck; seeds otherwise.
        settings: how many settings each replicate's mean is over.
        left_out: settings in which some seed lacks an arm, because its run was skipped or diverged.
        draws: of the filter.
        seeds: of each draw.
    """

    control: str
    estimate: Estimate | None
    settings: int
    left_out: int
    draws: int
    seeds: int


def controls_of(runs: Sequence[Run]) -> list[str]:
    """The arms that the filtered one can be compared with; none if it is not there itself."""
    arms = {run.arm for run in runs}
    return [arm for arm in _CONTROLS if arm in arms] if TREATED in arms else []


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """All settings, sorted."""
    return sorted({run.setting for run in runs})


def arm_accuracies(runs: Sequence[Run], confidence: float) -> list[ArmAccuracy]:
    """One entry for each setting and arm, in the order of the settings and of the study's arms."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups: dict[tuple[Setting, str], list[Run]] = {(setting, arm): [] for setting in settings_of(runs) for arm in arms}
    for run in runs:
        groups[run.setting, run.arm].append(run)
    return [_arm_accuracy(group, confidence) for group in groups.values() if group]


def differences(runs: Sequence[Run], control: str, confidence: float) -> list[Difference]:
    """Filtered minus `control` for each setting, over the pairs of which both finished.

    With several draws of the filter, over the seeds that all draws have.
    """
    several = len(_draws(runs)) > 1
    return [
        Difference(setting=setting, control=control, estimate=_estimate([pairs], control, several, confidence))
        for setting, pairs in _pairs(runs, control).items()
    ]


def pooled(runs: Sequence[Run], control: str, confidence: float) -> PooledDifference:
    """Filtered minus `control` over all settings in which every seed of every draw has both arms."""
    seeds, draws = sorted({run.seed for run in runs}), _draws(runs)
    pairs = _pairs(runs, control)
    complete = [found for found in pairs.values() if len(found) == len(seeds) * len(draws)]
    return PooledDifference(
        control=control,
        estimate=_estimate(complete, control, len(draws) > 1, confidence),
        settings=len(complete),
        left_out=len(pairs) - len(complete),
        draws=len(draws),
        seeds=len(seeds),
    )


def _estimate(settings: Sequence[Pairs], control: str, several: bool, confidence: float) -> Estimate | None:
    """Mean over settings, pairs and draws; seeds are the replicates, or draws where there are several.

    `full` is one run a seed for all draws, so that its noise is in all their means: rows and columns both vary.
    """
    common = sorted(set.intersection(*(set(pairs) for pairs in settings))) if settings else []
    draws = sorted({draw for draw, _ in common})
    seeds = [seed for seed in sorted({seed for _, seed in common}) if all((draw, seed) in common for draw in draws)]
    if not seeds:
        return None
    # Axes: setting, draw, seed.
    values = np.array([[[pairs[draw, seed] for seed in seeds] for draw in draws] for pairs in settings])
    if not several:
        return pooled_difference(values[:, 0].T, confidence)
    if control == "full":
        return crossed_difference(values.mean(axis=0), confidence)
    return pooled_difference(values.mean(axis=2).T, confidence)


def _arm_accuracy(group: Sequence[Run], confidence: float) -> ArmAccuracy:
    draws: dict[str, list[float]] = {run.filter_network: [] for run in group}
    for run in group:
        if run.top1 is not None:
            draws[run.filter_network].append(run.top1)
    several = len(draws) > 1
    top1 = [float(np.mean(seeds)) for seeds in draws.values() if seeds] if several else next(iter(draws.values()))
    balanced = [run.balanced_accuracy for run in group if run.balanced_accuracy is not None]
    first = group[0]
    return ArmAccuracy(
        setting=first.setting,
        arm=first.arm,
        top1=mean_estimate(top1, confidence) if top1 else None,
        balanced_accuracy=float(np.mean(balanced)) if balanced else None,
        planned=len(draws) if several else len(group),
        n_train=round(float(np.mean([run.n_train for run in group]))),
        steps=first.steps,
        epochs=first.epochs,
        peak_learning_rate=first.peak_learning_rate,
    )


def _draws(runs: Sequence[Run]) -> list[str]:
    """The networks whose filters made the treated arm, sorted."""
    return sorted({run.filter_network for run in runs if run.arm == TREATED})


def _pairs(runs: Sequence[Run], control: str) -> dict[Setting, Pairs]:
    """The pairs of each setting of which both finished."""
    found = {(run.setting, run.arm, run.filter_network, run.seed): run.top1 for run in runs if run.top1 is not None}
    # All draws of the filter have the full data in common.
    shared = {(run.setting, run.seed): run.top1 for run in runs if run.arm == "full" and run.top1 is not None}
    pairs: dict[Setting, dict[tuple[str, int], float]] = {setting: {} for setting in settings_of(runs)}
    for (setting, arm, draw, seed), treated in sorted(found.items()):
        if arm != TREATED:
            continue
        other = shared.get((setting, seed)) if control == "full" else found.get((setting, control, draw, seed))
        if other is not None:
            pairs[setting][draw, seed] = 100 * (treated - other)
    return dict(pairs)
