"""The training runs of a study: one for each cell of its grid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

EQUAL_EPOCHS = 0.01
"""Arms of unlike size whose epochs differ by no larger share had as many. A run ends after a whole step: three steps of
a large batch may be 1.88 epochs of one arm and 1.98 of another."""


class Setting(NamedTuple):
    """What two runs must share, beside their seed, to be a pair. Never chosen by its accuracy."""

    model: str
    batch_size: int
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cell. `top1` and `balanced_accuracy` (0 to 1), and `loss` (of the test images, nats), are None unless it
    finished.

    Attributes:
        history: (training images processed, training loss in nats or None where it was not finite), ascending.
        history_steps: optimizer steps at each of `history`; empty where all batches had the same size.
        accuracy: (training images processed, top-1 of the test images 0 to 1) where it was measured before the run's
            end, ascending.
        test_loss: the same of the test images' mean loss in nats.
        critical_batch: in images, with the ends of its 95 % interval; None if it was not sampled or
            cannot be told. With a lower end and no upper one there is no upper bound.
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
        """Optimizer steps that process so many training images; of a growing batch by a line between two records."""
        if not self.history_steps:
            return images / self.setting.batch_size
        processed = [0, *(at for at, _ in self.history)]
        return float(np.interp(images, processed, [0, *self.history_steps]))

    @property
    def accuracy_to_end(self) -> list[tuple[int, float]]:
        """As `accuracy`, with the one after the last step, which every finished run has."""
        assert self.top1 is not None
        return [*self.accuracy, (self.history[-1][0], self.top1)]

    @property
    def test_loss_to_end(self) -> list[tuple[int, float]]:
        """As `test_loss`, with the one after the last step, which every finished run has."""
        assert self.loss is not None
        return [*self.test_loss, (self.history[-1][0], self.loss)]


def run_of(row: Mapping[str, Any]) -> Run:
    """A row of a study's table, with its history, as `pipeline.artifacts.runs` reads it."""
    others = {key: value for key, value in row.items() if key not in (*Setting._fields, "fingerprint")}
    return Run(setting=Setting(*(row[name] for name in Setting._fields)), **others)


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """All settings, sorted."""
    return sorted({run.setting for run in runs})


def varying_fields(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The names of a setting's fields, without batch_size, that take more than one value."""
    settings = list(settings)
    names = [name for name in Setting._fields if name != "batch_size"]
    return tuple(name for name in names if len({getattr(setting, name) for setting in settings}) > 1)


def describe(setting: Setting, fields: Iterable[str]) -> str:
    """E.g. `resnet18, lr 0.05`; empty without fields."""
    short = {"batch_size": "batch ", "learning_rate": "lr ", "weight_decay": "wd ", "model": ""}
    return ", ".join(f"{short[name]}{getattr(setting, name)}" for name in fields)
