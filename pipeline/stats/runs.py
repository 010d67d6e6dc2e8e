"""The runs of a study as the statistics read them, their accuracies by arm, and mean learning curves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from pipeline.stats.estimates import Estimate, crossed_estimate, mean_estimate, rounding_sd

EQUAL_EPOCHS = 0.01
"""Largest relative difference of epochs that counts as equal. A run ends after a whole step: three steps of a large
batch may be 1.88 epochs of one arm and 1.98 of a smaller one."""

Quantity = Literal["train_loss", "top1", "test_loss"]
"""Measured while a run trains: mean loss of its training images in nats; of the test images the share classified
correctly, and the mean loss in nats."""

CurveAxis = Literal["examples", "steps", "epochs"]
"""Horizontal axis of learning curves: training images processed, optimizer steps, or epochs of the arm."""


class Setting(NamedTuple):
    """The settings that two runs of a pair share, in addition to their seed. Never selected by accuracy."""

    model: str
    batch_size: int
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a study's grid.

    `top1` and `balanced_accuracy` (0 to 1), and `loss` (of the test images, nats), are None unless it finished.

    Attributes:
        n_relabeled: training images with another label than the given one.
        history: (training images processed, training loss in nats or None if it was not finite), ascending.
        history_steps: optimizer steps at each of `history`; empty if all batches had the same size.
        accuracy: (training images processed, top-1 of the test images 0 to 1), measured before the run's end,
            ascending.
        test_loss: the same for the test images' mean loss in nats.
        critical_batch: in images, with the ends of its 95 % interval; None if it was not sampled or
            is unknown. With a lower end and no upper one there is no upper bound.
    """

    setting: Setting
    arm: str
    filter_network: str
    seed: int
    status: str
    reason: str
    peak_learning_rate: float
    n_train: int
    steps: int | None
    epochs: float | None
    top1: float | None
    balanced_accuracy: float | None
    loss: float | None
    history: tuple[tuple[int, float | None], ...]
    n_relabeled: int = 0
    history_steps: tuple[int, ...] = ()
    accuracy: tuple[tuple[int, float], ...] = ()
    test_loss: tuple[tuple[int, float], ...] = ()
    critical_batch: float | None = None
    critical_batch_low: float | None = None
    critical_batch_high: float | None = None

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    def steps_after(self, images: float) -> float:
        """Return the optimizer steps that process `images`; with a growing batch, linear between two records."""
        if not self.history_steps:
            return images / self.setting.batch_size
        processed = [0, *(at for at, _ in self.history)]
        return float(np.interp(images, processed, [0, *self.history_steps]))

    @property
    def accuracy_to_end(self) -> list[tuple[int, float]]:
        """`accuracy` and the value after the last step, which every finished run has."""
        assert self.top1 is not None
        return [*self.accuracy, (self.history[-1][0], self.top1)]

    @property
    def test_loss_to_end(self) -> list[tuple[int, float]]:
        """`test_loss` and the value after the last step, which every finished run has."""
        assert self.loss is not None
        return [*self.test_loss, (self.history[-1][0], self.loss)]


def run_from_row(row: Mapping[str, Any]) -> Run:
    """Build a run from a row of a study's table, with its history, as `pipeline.artifacts.runs` reads it."""
    fields = {key: value for key, value in row.items() if key not in (*Setting._fields, "fingerprint")}
    return Run(setting=Setting(*(row[name] for name in Setting._fields)), **fields)


def sorted_settings(runs: Sequence[Run]) -> list[Setting]:
    """Return all settings, sorted."""
    return sorted({run.setting for run in runs})


def varying_fields(settings: Iterable[Setting]) -> tuple[str, ...]:
    """Return the names of a setting's fields, without batch_size, that have more than one value."""
    settings = list(settings)
    names = [name for name in Setting._fields if name != "batch_size"]
    return tuple(name for name in names if len({getattr(setting, name) for setting in settings}) > 1)


def describe(setting: Setting, fields: Iterable[str]) -> str:
    """Return e.g. `resnet18, lr 0.05`; empty without fields."""
    short = {"batch_size": "batch ", "learning_rate": "lr ", "weight_decay": "wd ", "model": ""}
    return ", ".join(f"{short[name]}{getattr(setting, name)}" for name in fields)


@dataclass(frozen=True, kw_only=True)
class ArmAccuracy:
    """Accuracy of one arm at one setting.

    Attributes:
        top1: over the finished seeds, or, if the arm has several draws of the filter, over draws and the seeds that
            finished in each of them, as crossed factors; 0 to 1, None if no seed finished.
        balanced_accuracy: mean over the finished seeds, 0 to 1.
        planned: number of seeds or draws, whether they finished or not.
        n_train, n_relabeled: smallest and largest over the draws.
        steps, epochs: smallest and largest over the finished runs, which differ if draws of the filter keep different
            numbers of images; None if none finished. A diverged run records how far it came, not what was planned.
    """

    setting: Setting
    arm: str
    top1: Estimate | None
    balanced_accuracy: float | None
    planned: int
    n_train: tuple[int, int]
    n_relabeled: tuple[int, int]
    steps: tuple[int, int] | None
    epochs: tuple[float, float] | None
    peak_learning_rate: float


def arm_accuracies(runs: Sequence[Run], confidence: float, n_images: int) -> list[ArmAccuracy]:
    """Return one entry for each setting and arm, in the order of the settings and of the study's arms.

    Args:
        confidence: of each interval, in (0, 1).
        n_images: number of test images; the interval includes the rounding of accuracies to multiples of 1 / n_images.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups: dict[tuple[Setting, str], list[Run]] = {
        (setting, arm): [] for setting in sorted_settings(runs) for arm in arms
    }
    for run in runs:
        groups[run.setting, run.arm].append(run)
    return [_arm_accuracy(group, confidence, rounding_sd(1 / n_images)) for group in groups.values() if group]


def _arm_accuracy(group: Sequence[Run], confidence: float, rounding: float) -> ArmAccuracy:
    draws: dict[str, dict[int, float]] = {run.filter_network: {} for run in group}
    for run in group:
        if run.top1 is not None:
            draws[run.filter_network][run.seed] = run.top1
    balanced = [run.balanced_accuracy for run in group if run.balanced_accuracy is not None]
    n_train, n_relabeled = [run.n_train for run in group], [run.n_relabeled for run in group]
    steps = [run.steps for run in group if run.finished and run.steps is not None]
    epochs = [run.epochs for run in group if run.finished and run.epochs is not None]
    first = group[0]
    return ArmAccuracy(
        setting=first.setting,
        arm=first.arm,
        top1=_top1_estimate([of_draw for of_draw in draws.values() if of_draw], confidence, rounding, len(draws) > 1),
        balanced_accuracy=float(np.mean(balanced)) if balanced else None,
        planned=len(draws) if len(draws) > 1 else len(group),
        n_train=(min(n_train), max(n_train)),
        n_relabeled=(min(n_relabeled), max(n_relabeled)),
        steps=(min(steps), max(steps)) if steps else None,
        epochs=(min(epochs), max(epochs)) if epochs else None,
        peak_learning_rate=first.peak_learning_rate,
    )


def _top1_estimate(
    draws: Sequence[Mapping[int, float]], confidence: float, rounding: float, several: bool
) -> Estimate | None:
    """Return the mean of the draws with a finished run (seed -> top-1); `several`: of the arm, finished or not."""
    if not draws:
        return None
    if not several:
        return mean_estimate([*draws[0].values()], confidence, rounding=rounding)
    if seeds := sorted(set.intersection(*map(set, draws))):
        return crossed_estimate([[draw[seed] for seed in seeds] for draw in draws], confidence, rounding=rounding)
    means = [np.mean([*draw.values()]) for draw in draws]
    return Estimate(n=len(draws), mean=float(np.mean(means)), sd=None, low=None, high=None)


def learning_curves(
    runs: Sequence[Run], quantity: Quantity, varying: Iterable[str], x_axis: CurveAxis = "examples"
) -> list[dict[str, Any]]:
    """Return the mean over the finished runs of each setting and arm, at the records of the first of them.

    Draws of the filter that keep different numbers of images have records at different steps. Curves are interpolated
    linearly between two records, over the range that all of them cover.

    Args:
        quantity: `top1` and `test_loss` give no curve for runs that measured them only after their last step.
        varying: names of the setting's fields that differ between variants.
        x_axis: what `x` counts.

    Returns:
        Rows of `variant`, `batch_size`, `arm`, `n`; `examples`, training images processed, ascending; `values`; and,
        for steps or epochs, `x`, these at `examples`, with the mean of an epoch's images over the runs.
    """
    groups: dict[tuple[Setting, str], list[dict[int, float]]] = defaultdict(list)
    of_group: dict[tuple[Setting, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.finished and (points := _points(run, quantity)):
            groups[run.setting, run.arm].append(points)
            of_group[run.setting, run.arm].append(run)
    curves = []
    for (setting, arm), group in sorted(groups.items()):
        begin, end = max(map(min, group)), min(map(max, group))
        shared = [at for at in group[0] if begin <= at <= end]
        values = [np.interp(shared, list(points), list(points.values())) for points in group]
        curves.append(
            {
                "variant": describe(setting, varying),
                "batch_size": setting.batch_size,
                "arm": arm,
                "n": len(group),
                "examples": shared,
                "values": np.mean(values, axis=0).tolist(),
                **_other_axis(shared, of_group[setting, arm], x_axis),
            }
        )
    return curves


def _other_axis(examples: Sequence[int], runs: Sequence[Run], x_axis: CurveAxis) -> dict[str, list[float]]:
    if x_axis == "examples":
        return {}
    if x_axis == "steps":
        return {"x": [runs[0].steps_after(at) for at in examples]}
    epoch = float(np.mean([run.n_train for run in runs]))
    return {"x": [at / epoch for at in examples]}


def _points(run: Run, quantity: Quantity) -> dict[int, float]:
    """Return images processed, ascending -> value."""
    if quantity == "top1":
        return dict(run.accuracy_to_end) if run.accuracy else {}
    if quantity == "test_loss":
        return dict(run.test_loss_to_end) if run.test_loss else {}
    return {examples: loss for examples, loss in run.history if loss is not None}
