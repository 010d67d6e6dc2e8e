"""Accuracy of each arm of a study at each setting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.estimates import Estimate, mean_estimate
from pipeline.stats.runs import Run, Setting, settings_of
from pipeline.stats.student import rounding_sd


@dataclass(frozen=True, kw_only=True)
class ArmAccuracy:
    """One arm at one setting.

    Attributes:
        top1: over the finished seeds, or over the means of the draws of the filter where the arm has
            several; 0 to 1, None if no seed finished.
        balanced_accuracy: mean over the finished seeds, 0 to 1.
        planned: seeds or draws, whether they finished or not.
        n_train: smallest and largest of the draws.
        steps, epochs: smallest and largest of the finished runs, which differ where draws of the filter keep unlike
            numbers of images; None if none finished. A run that diverged says how far it came, not what was planned.
    """

    setting: Setting
    arm: str
    top1: Estimate | None
    balanced_accuracy: float | None
    planned: int
    n_train: tuple[int, int]
    steps: tuple[int, int] | None
    epochs: tuple[float, float] | None
    peak_learning_rate: float


def arm_accuracies(runs: Sequence[Run], confidence: float, n_images: int) -> list[ArmAccuracy]:
    """One entry for each setting and arm, in the order of the settings and of the study's arms.

    Args:
        confidence: of each interval, in (0, 1).
        n_images: test images, of which every accuracy is a multiple of one part: the interval knows of this rounding.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups: dict[tuple[Setting, str], list[Run]] = {(setting, arm): [] for setting in settings_of(runs) for arm in arms}
    for run in runs:
        groups[run.setting, run.arm].append(run)
    return [_arm_accuracy(group, confidence, rounding_sd(1 / n_images)) for group in groups.values() if group]


def _arm_accuracy(group: Sequence[Run], confidence: float, rounding: float) -> ArmAccuracy:
    draws: dict[str, list[float]] = {run.filter_network: [] for run in group}
    for run in group:
        if run.top1 is not None:
            draws[run.filter_network].append(run.top1)
    several, finished = len(draws) > 1, sum(map(len, draws.values()))
    top1 = [float(np.mean(seeds)) for seeds in draws.values() if seeds] if several else next(iter(draws.values()))
    balanced = [run.balanced_accuracy for run in group if run.balanced_accuracy is not None]
    n_train = [run.n_train for run in group]
    steps = [run.steps for run in group if run.finished and run.steps is not None]
    epochs = [run.epochs for run in group if run.finished and run.epochs is not None]
    first = group[0]
    return ArmAccuracy(
        setting=first.setting,
        arm=first.arm,
        top1=mean_estimate(top1, confidence, rounding=rounding * (len(top1) / finished) ** 0.5) if top1 else None,
        balanced_accuracy=float(np.mean(balanced)) if balanced else None,
        planned=len(draws) if several else len(group),
        n_train=(min(n_train), max(n_train)),
        steps=(min(steps), max(steps)) if steps else None,
        epochs=(min(epochs), max(epochs)) if epochs else None,
        peak_learning_rate=first.peak_learning_rate,
    )
