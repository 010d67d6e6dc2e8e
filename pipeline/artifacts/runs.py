"""Read and check the tables of runs that the train stage writes."""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeGuard, get_args

from pipeline.artifacts.tables import read_parquet
from pipeline.config.extractors import base_architecture, is_network_name, replicate_number
from pipeline.config.prepare import Storage
from pipeline.config.study import Arm
from pipeline.errors import InputError, short_reason

_COLUMNS = (
    "study", "fingerprint", "status", "arm", "filter_network", "model", "batch_size", "learning_rate", "weight_decay",
    "bn_group", "seed", "steps", "epochs", "top1", "settings",
)  # fmt: skip
_COPIED_COLUMNS = (
    "study", "fingerprint", "arm", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "seed",
    "steps", "epochs", "top1",
)  # fmt: skip
# Settings that have a separate column or key here, or that do not affect the accuracy.
_NOT_RECIPE = frozenset(
    {
        "network", "batch_size", "weight_decay", "bn_group", "simulated_workers", "seed", "steps", "crop_padding",
        "crop_area", "flip", "threads", "reduction", "noise_scale_steps",
        "accuracy_steps", "accuracy_examples", "format",
    }
)  # fmt: skip

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
    "loss",
    "critical_batch",
    "critical_batch_low",
    "critical_batch_high",
)
_LATER_RUN_COLUMNS = ("n_relabeled",)
_HISTORY_COLUMNS = ("fingerprint", "examples", "train_loss", "top1")
_LATER_HISTORY_COLUMNS = ("test_loss", "step")
_TEXTS = ("fingerprint", "status", "model", "arm", "filter_network", "settings")
_NUMBERS = ("batch_size", "simulated_workers", "learning_rate", "weight_decay", "seed")
COMPARED_COLUMNS = (*_TEXTS, *_NUMBERS, "top1")
"""Columns that identify a run, and its result."""

_OF_ODD_VALUES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)

Row = Mapping[str, Any]
"""A row of a table of runs, by column."""


def check_run_values(rows: Iterable[Row], path: Path) -> None:
    """Check the values of runs in `COMPARED_COLUMNS` and loss, as far as the table has these columns.

    Args:
        path: of the table, for the message.

    Raises:
        InputError: a value is of another type or range than a stage writes.
    """
    for row in rows:
        if odd := _odd_column(row):
            shown = str(row[odd])[:80]
            raise InputError(f"{path}: a run with {odd} {shown}, which no stage writes; run `dvc repro --force`")


def _odd_column(row: Row) -> str | None:
    """Return the first column of a run that has a value of another type or range; None if all are sound."""
    sound = {name: isinstance(row[name], str) for name in _TEXTS if name in row}
    sound |= {name: _is_number(row[name]) for name in _NUMBERS if name in row}
    if row["status"] == "finished":
        sound["top1"] = _is_number(row["top1"]) and 0 <= row["top1"] <= 1
        sound["loss"] = "loss" not in row or _is_number(row["loss"])
    if sound["filter_network"]:
        sound["filter_network"] = is_network_name(row["filter_network"])
    if sound.get("settings"):
        sound["settings"] = _is_json_object(row["settings"])
    return next((name for name, is_sound in sound.items() if not is_sound), None)


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, neither a truth value nor infinite nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@contextmanager
def _odd_values_refused(path: Path) -> Iterator[None]:
    """Raise InputError for values in a table that no stage writes: nulls, other types, texts that are no JSON."""
    try:
        yield
    except InputError:
        raise
    except _OF_ODD_VALUES as error:
        raise InputError(
            f"{path}: has values that no stage writes ({type(error).__name__}: {short_reason(error)}); run "
            "`dvc repro --force`"
        ) from None


def read_run_records(runs: Path, storage: Storage, seeds: Collection[int] | None = None) -> list[dict[str, Any]]:
    """Read the finished runs of data/train/<study>.parquet, in the order of the file.

    Args:
        seeds: whose runs count, also those that diverged; None for all.

    Returns:
        For each run: columns of the file; `extractor` and `draw` (number of the replicate) of the filter's network;
        `augmented` (whether images are randomly cropped or flipped); `setting_diverged` (whether a run of its arm and
        setting diverged); and `recipe` (the other settings, including the peak learning rate).

    Raises:
        InputError: the file is missing or damaged, or its settings are unreadable.
    """
    rows = read_parquet(runs, _COLUMNS).to_pylist()
    check_run_values(rows, runs)
    rows = [row for row in rows if seeds is None or row["seed"] in seeds]
    diverged = {_arm_and_setting(row) for row in rows if row["status"] == "diverged"}
    return [
        {**_run_record(row, runs, storage), "setting_diverged": _arm_and_setting(row) in diverged}
        for row in rows
        if row["status"] == "finished"
    ]


def _arm_and_setting(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what runs have in common that differ in seed and replicate of the filter alone."""
    names = ("arm", "model", "batch_size", "learning_rate", "weight_decay")
    return (base_architecture(row["filter_network"]), *(row[name] for name in names))


def _run_record(row: dict[str, Any], path: Path, storage: Storage) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(row["settings"])
        image_format, padding = settings["format"], settings["crop_padding"]
        cropped = storage == "files" or image_format["crop_size"] < image_format["image_size"] + 2 * padding
        augmented = bool(cropped or settings["flip"])
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{path}: a run whose settings cannot be read; run `dvc repro --force`") from None
    recipe = {key: value for key, value in settings.items() if key not in _NOT_RECIPE}
    return {
        **{name: row[name] for name in _COPIED_COLUMNS},
        "extractor": base_architecture(row["filter_network"]),
        "draw": replicate_number(row["filter_network"]),
        "augmented": augmented,
        "recipe": json.dumps(recipe, sort_keys=True),
    }


def read_runs(runs: Path, history: Path) -> list[dict[str, Any]]:
    """Read the runs of a study from its tables of runs and of histories, in the order of the file.

    Returns:
        For each run: the columns of `_RUN_COLUMNS`; `n_relabeled`, if the table has it; `history`: (training images
        processed, training loss in nats or None if it was not finite), ascending; `history_steps`: the optimizer steps
        of these, empty unless the batch grew; `accuracy` and `test_loss`: (training images processed, top-1 or test
        loss in nats) where measured.

    Raises:
        InputError: a file is missing, damaged or has impossible values, or the two files belong to different runs of
            the study, as while its stage replaces them.
    """
    rows = read_parquet(runs, _RUN_COLUMNS, optional=_LATER_RUN_COLUMNS).to_pylist()
    with _odd_values_refused(history):
        curves = _read_curves(history)
    if not rows:
        raise InputError(f"{runs}: holds no run; delete it and run `dvc repro`")
    check_run_values(rows, runs)
    arms = get_args(Arm)
    if unknown := [row["arm"] for row in rows if row["arm"] not in arms]:
        named_arm = unknown[0][:80]
        raise InputError(f"{runs}: a run with arm {named_arm}; give one of {list(arms)}, or run `dvc repro --force`")
    named = {row["fingerprint"]: row["status"] for row in rows}
    recorded, finished = set(curves), {name for name, status in named.items() if status == "finished"}
    if not finished <= recorded <= set(named):
        raise InputError(f"{history}: its runs are not those of {runs}; if no study is being trained, run `dvc repro`")
    with _odd_values_refused(history):
        return [{**row, **_as_curves(curves.get(row["fingerprint"], []), row["batch_size"])} for row in rows]


def _read_curves(path: Path) -> Mapping[str, list[dict[str, Any]]]:
    """Return the records of each run, by fingerprint."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in read_parquet(path, _HISTORY_COLUMNS, optional=_LATER_HISTORY_COLUMNS).to_pylist():
        curves.setdefault(row["fingerprint"], []).append(row)
    return curves


def _as_curves(records: list[dict[str, Any]], batch_size: int) -> dict[str, tuple[Any, ...]]:
    ordered = sorted(records, key=itemgetter("examples"))
    grew = any(record.get("step", 0) * batch_size > record["examples"] for record in ordered)
    return {
        "history": tuple((record["examples"], record["train_loss"]) for record in ordered),
        "history_steps": tuple(record["step"] for record in ordered) if grew else (),
        "accuracy": _measured(ordered, "top1"),
        "test_loss": _measured(ordered, "test_loss"),
    }


def _measured(records: list[dict[str, Any]], name: str) -> tuple[tuple[int, float], ...]:
    return tuple((record["examples"], record[name]) for record in records if record.get(name) is not None)
