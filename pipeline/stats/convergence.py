"""How many steps and images a run takes to a training loss or an accuracy that was stated before it.

The accuracy is of the test images, the same for all arms. The loss is each run's own, on the augmented images of its
own arm: an arm without the hard images has the lower loss with the same network, so that reaching the target sooner is
not yet learning faster. Only an arm of as many images chosen at random tells how much of it comes from the number of
images, and none how much from their choice.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from pipeline.stats.ratios import ratios
from pipeline.stats.runs import Run, Setting, settings_of

TargetQuantity = Literal["train_loss", "top1"]

Crossing = float | Literal["at once", "never"]
"""Images until a target is reached; `at once` if the first record is beyond it, so that it was too easy for the run."""


@dataclass(frozen=True, kw_only=True)
class ArmConvergence:
    """One arm at one setting.

    Attributes:
        n: finished runs.
        reached: those of them that crossed the target.
        at_once: those that were beyond it in their first record.
        steps, images: geometric means over the runs, None unless all of them reached it.
    """

    setting: Setting
    arm: str
    n: int
    reached: int
    at_once: int
    steps: float | None
    images: float | None


def images_to_loss(history: Sequence[tuple[int, float | None]], target: float) -> Crossing:
    """Training images processed until the training loss first falls to `target`.

    Each record is the mean loss since the one before, so it stands for the middle between them, and between two
    middles the loss is taken for a straight line.

    Args:
        history: (images processed, mean loss since the record before in nats, or None), ascending.
        target: in nats.
    """
    ends = [0, *(images for images, _ in history)]
    middles = [(start + end) / 2 for start, end in pairwise(ends)]
    points = [(at, -loss) for at, (_, loss) in zip(middles, history, strict=True) if loss is not None]
    return _first_rise(points, -target)


def images_to_accuracy(curve: Sequence[tuple[int, float]], target: float) -> Crossing:
    """Training images processed until the accuracy first rises to `target`.

    Between two measurements it is taken for a straight line.

    Args:
        curve: (images processed, accuracy of the network as it was then), ascending.
    """
    return _first_rise(curve, target)


def _first_rise(points: Sequence[tuple[float, float]], target: float) -> Crossing:
    if points and points[0][1] >= target:
        return "at once"
    for (before, below), (after, above) in pairwise(points):
        if above >= target:
            return before + (after - before) * (target - below) / (above - below)
    return "never"


def convergence(runs: Sequence[Run], quantity: TargetQuantity, target: float, alpha: float) -> dict[str, Any]:
    """Each arm's steps and images to the target, and the treated arm's against each other one's, as plain values.

    All pairs have the same batch size, so that the ratio of images is that of steps too, unless the batch grew.

    Args:
        runs: of one study.
        target: of the quantity, stated before the runs.
        alpha: level of the tests, in (0, 1).
    """
    images_to = _images_to_loss if quantity == "train_loss" else _images_to_accuracy
    reached = [images_to(run, target) if run.finished else "never" for run in runs]
    return {
        "quantity": quantity,
        "target": target,
        "batch_grew": any(run.history_steps for run in runs),
        "arms": [
            {**asdict(row), "setting": row.setting._asdict()} for row in _arms(runs, reached) if row.n
        ],
        "ratios": [
            {**asdict(ratio), "settings": [setting._asdict() for setting in ratio.settings]}
            for ratio in ratios(runs, [_known(images) for images in reached], alpha)
        ],
    }  # fmt: skip


def _images_to_loss(run: Run, target: float) -> Crossing:
    return images_to_loss(run.history, target)


def _images_to_accuracy(run: Run, target: float) -> Crossing:
    return images_to_accuracy(run.accuracy_to_end, target)


def _known(images: Crossing) -> float | None:
    return None if isinstance(images, str) else images


def _arms(runs: Sequence[Run], reached: Sequence[Crossing]) -> list[ArmConvergence]:
    """An entry for each setting and arm, in the order of the settings and of the study's arms."""
    found = []
    for setting in settings_of(runs):
        for arm in dict.fromkeys(run.arm for run in runs):
            own = [
                (run, images)
                for run, images in zip(runs, reached, strict=True)
                if run.setting == setting and run.arm == arm and run.finished
            ]
            values = [value for _, value in own]
            images = [value for value in values if not isinstance(value, str)]
            steps = [run.steps_after(value) for run, value in own if not isinstance(value, str)]
            all_reached = len(images) == len(values) > 0
            found.append(
                ArmConvergence(
                    setting=setting,
                    arm=arm,
                    n=len(values),
                    reached=len(images),
                    at_once=values.count("at once"),
                    steps=_geometric_mean(steps) if all_reached else None,
                    images=_geometric_mean(images) if all_reached else None,
                )
            )
    return found


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
