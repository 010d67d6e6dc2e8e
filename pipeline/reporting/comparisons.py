"""What a study's runs say of its arms: accuracies, and differences between paired runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.reporting.runs import Run, Setting
from pipeline.stats import Estimate, mean_estimate, paired_difference, pooled_difference

TREATED = "filtered"
"""The arm that the others are compared with."""

_CONTROLS = ("random", "full", "random_uniform")


@dataclass(frozen=True, kw_only=True)
class ArmAccuracy:
    """One arm at one setting.

    Attributes:
        top1: over the finished seeds, 0 to 1; None if no seed finished.
        balanced_accuracy: mean over the finished seeds, 0 to 1.
        planned: cells, whether they finished or not.
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
        estimate: seeds are its replicates; None if no setting has both arms at every seed.
        settings: how many settings each seed's mean is over.
        left_out: settings in which some seed lacks an arm, because its run was skipped or diverged.
    """

    control: str
    estimate: Estimate | None
    settings: int
    left_out: int


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
    """Filtered minus `control` for each setting, over the seeds at which both finished."""
    found = []
    for setting, pairs in _pairs(runs, control).items():
        estimate = None
        if pairs:
            treated, controls = zip(*pairs.values(), strict=True)
            estimate = paired_difference(treated, controls, confidence)
        found.append(Difference(setting=setting, control=control, estimate=estimate))
    return found


def pooled(runs: Sequence[Run], control: str, confidence: float) -> PooledDifference:
    """Filtered minus `control` over all settings in which every seed has both arms."""
    seeds = sorted({run.seed for run in runs})
    pairs = _pairs(runs, control)
    complete = [by_seed for by_seed in pairs.values() if len(by_seed) == len(seeds)]
    estimate = None
    if complete:
        matrix = np.array([[by_seed[seed][0] - by_seed[seed][1] for by_seed in complete] for seed in seeds])
        estimate = pooled_difference(matrix, confidence)
    return PooledDifference(
        control=control, estimate=estimate, settings=len(complete), left_out=len(pairs) - len(complete)
    )


def _arm_accuracy(group: Sequence[Run], confidence: float) -> ArmAccuracy:
    top1 = [run.top1 for run in group if run.top1 is not None]
    balanced = [run.balanced_accuracy for run in group if run.balanced_accuracy is not None]
    first = group[0]
    return ArmAccuracy(
        setting=first.setting,
        arm=first.arm,
        top1=mean_estimate(top1, confidence) if top1 else None,
        balanced_accuracy=float(np.mean(balanced)) if balanced else None,
        planned=len(group),
        n_train=first.n_train,
        steps=first.steps,
        epochs=first.epochs,
        peak_learning_rate=first.peak_learning_rate,
    )


def _pairs(runs: Sequence[Run], control: str) -> dict[Setting, dict[int, tuple[float, float]]]:
    """Setting -> seed -> (filtered, control) top-1 in percent, where both finished."""
    found = {(run.setting, run.arm, run.seed): 100 * run.top1 for run in runs if run.top1 is not None}
    seeds = sorted({run.seed for run in runs})
    return {
        setting: {
            seed: (found[setting, TREATED, seed], found[setting, control, seed])
            for seed in seeds
            if (setting, TREATED, seed) in found and (setting, control, seed) in found
        }
        for setting in settings_of(runs)
    }
