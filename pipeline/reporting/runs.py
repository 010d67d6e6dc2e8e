"""The training runs of a study: one for each cell of its grid."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

from pipeline.artifacts.tables import read_parquet
from pipeline.config.study import Arm
from pipeline.errors import InputError

_RUN_COLUMNS = (
    "fingerprint",
    "status",
    "reason",
    "model",
    "arm",
    "filter_network",
    "batch_size",
    "learning_rate",
    "peak_learning_rate",
    "weight_decay",
    "seed",
    "n_train",
    "steps",
    "epochs",
    "top1",
    "balanced_accuracy",
    "critical_batch",
    "critical_batch_low",
    "critical_batch_high",
)


class Setting(NamedTuple):
    """What two runs must share, beside their seed, to be a pair. Never chosen by its accuracy."""

    model: str
    batch_size: int
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cell. `top1` and `balanced_accuracy` (0 to 1) are None unless it finished.

    Attributes:
        history: (training images processed, training loss in nats), ascending.
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
    history: tuple[tuple[int, float], ...]
    critical_batch: float | None = None
    critical_batch_low: float | None = None
    critical_batch_high: float | None = None

    @property
    def finished(self) -> bool:
        return self.status == "finished"


def read_runs(runs: Path, history: Path) -> list[Run]:
    """The cells in a study's two tables, in the order of the file.

    Raises:
        InputError: a file is missing or damaged, or holds values that no study can give.
    """
    curves = _read_curves(history)
    rows = read_parquet(runs, _RUN_COLUMNS).to_pylist()
    found = []
    for row in rows:
        if row["arm"] not in get_args(Arm) or (row["status"] == "finished" and row["top1"] is None):
            raise InputError(f"{runs}: a row with arm {row['arm']}, status {row['status']}; run `dvc repro --force`")
        names = (*Setting._fields, "fingerprint")
        found.append(
            Run(
                setting=Setting(*(row[name] for name in Setting._fields)),
                history=tuple(sorted(curves.get(row["fingerprint"], {}).items())),
                **{key: value for key, value in row.items() if key not in names},
            )
        )
    return found


def varying_fields(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The names of a setting's fields, without batch_size, that take more than one value."""
    settings = list(settings)
    names = [name for name in Setting._fields if name != "batch_size"]
    return tuple(name for name in names if len({getattr(setting, name) for setting in settings}) > 1)


def describe(setting: Setting, fields: Iterable[str]) -> str:
    """E.g. `resnet18, lr 0.05`; empty without fields."""
    short = {"batch_size": "batch ", "learning_rate": "lr ", "weight_decay": "wd ", "model": ""}
    return ", ".join(f"{short[name]}{getattr(setting, name)}" for name in fields)


def _read_curves(path: Path) -> Mapping[str, dict[int, float]]:
    """Fingerprint -> {training images processed: training loss}."""
    table = read_parquet(path, ("fingerprint", "examples", "train_loss"))
    curves: dict[str, dict[int, float]] = {}
    for row in table.to_pylist():
        curves.setdefault(row["fingerprint"], {})[row["examples"]] = row["train_loss"]
    return curves
