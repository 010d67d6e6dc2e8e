"""Read and check the input of `filter-features`: features, labels and class probabilities from other programs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from pipeline.datasets.labels import class_name, read_label_records
from pipeline.errors import InputError
from pipeline.reduction.tsne import FeatureFixHints, check_features
from pipeline.scoring.registry import check_probabilities

_FIX_HINTS = FeatureFixHints(
    not_finite="correct or leave out such rows; values must be within the range of float32",
    all_equal="give other features",
)
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_MAX_LISTED = 10  # classes in a message


@dataclass(frozen=True, kw_only=True)
class ExternalFeatures:
    """Features, labels and probabilities of N rows.

    Attributes:
        features: (N, D), finite.
        labels: (N,) indices into `names`.
        names: of the C classes, in the order of `class_order`.
        paths: from the file of labels; None if it has no paths.
        probabilities: (N, C), rows sum to 1; None without a file.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    names: list[str]
    paths: list[str] | None
    probabilities: NDArray[np.float32] | None


def read_external_features(features: Path, labels: Path | None, probabilities: Path | None) -> ExternalFeatures:
    """Read the files of the options `--features`, `--labels` and `--probabilities`.

    Args:
        features: .npy, floats (N, D).
        labels: UTF-8 CSV with N records, a column label and an optional column path; without it all rows are of one
            class.
        probabilities: .npy, floats (N, C), columns in the order of `class_order`.

    Raises:
        InputError: a file is missing or damaged, does not fit the others, or has invalid values; or the probabilities
            match so few labels that their columns may be in another order.
    """
    array = _floats("--features", features, "(N, D)")
    check_features(array, f"--features {features}", _FIX_HINTS)
    n = len(array)
    numbers, names, paths = np.zeros(n, dtype=np.int64), ["all"], None
    if labels is not None:
        numbers, names, paths = _labels(labels, n)
    elif probabilities is not None:
        raise InputError(f"--probabilities {probabilities}: need classes, which --labels gives; give --labels too")
    class_probabilities = None if probabilities is None else _probabilities(probabilities, numbers, names)
    return ExternalFeatures(features=array, labels=numbers, names=names, paths=paths, probabilities=class_probabilities)


def class_order(names: Iterable[str]) -> list[str]:
    """Sort class names as scikit-learn does: by number if all are integers, else alphabetically."""
    alphabetical = sorted(names)
    if all(_INTEGER.fullmatch(name) for name in alphabetical):
        return sorted(alphabetical, key=int)
    return alphabetical


def agreement(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the share of the rows, 0 to 1, whose most probable class is the label."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def _floats(option: str, path: Path, shape: str) -> NDArray[np.float32]:
    try:
        array = open_memmap(path, mode="r")
    except FileNotFoundError:
        raise InputError(f"{option} {path}: no such file; give a .npy file of floats {shape}") from None
    except (ValueError, OSError) as error:
        reason = "an .npz archive" if path.is_file() and is_zipfile(path) else error
        raise InputError(f"{option} {path}: not a valid .npy file ({reason}); write it by numpy.save") from None
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise InputError(f"{option} {path}: is {array.dtype} {array.shape}; give floats of shape {shape}")
    # Single precision stays memory-mapped; other types are converted in memory.
    with np.errstate(over="ignore"):  # to infinity, which the checks reject
        return np.asanyarray(array, dtype=np.float32)


def _labels(path: Path, n: int) -> tuple[NDArray[np.int64], list[str], list[str] | None]:
    source = f"--labels {path}"
    labels, paths = [], []
    for line, record in read_label_records(
        path, source=source, required=["label"], optional=["path"], allow_extra=True
    ):
        name = class_name(record["label"])
        if not name:
            raise InputError(
                f"{source}: line {line} has no label; give one, or leave the row out here and in the features"
            )
        labels.append(name)
        if "path" in record:
            paths.append(record["path"])
    _check_rows(source, len(labels), n)
    names = class_order(set(labels))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[name] for name in labels], dtype=np.int64), names, paths or None


def _probabilities(path: Path, labels: NDArray[np.int64], names: Sequence[str]) -> NDArray[np.float32]:
    source = f"--probabilities {path}"
    values = _floats("--probabilities", path, "(N, C)")
    order = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    _check_rows(source, len(values), len(labels))
    if values.shape[1] != len(names):
        raise InputError(
            f"{source}: has {values.shape[1]} columns for {len(names)} classes; give one for each of {order}"
        )
    check_probabilities(values, source)
    _check_order(source, values, labels, order)
    return values


def _check_order(source: str, values: NDArray[np.float32], labels: NDArray[np.int64], order: str) -> None:
    """Check that the most probable class is the label in more than twice the rows of chance, or in most rows.

    Raises:
        InputError: naming the share of the rows, and the order of the classes.
    """
    share, min_share = agreement(values, labels), min(2 / values.shape[1], 1 / 2)
    if share <= min_share:
        raise InputError(
            f"{source}: the most probable class is the label in {share:.2%} of the rows; the columns are probably not "
            f"in the order of the classes, which is {order}; give them in this order, or probabilities that are right "
            f"in more than {min_share:.0%}"
        )


def _check_rows(source: str, rows: int, n: int) -> None:
    if rows != n:
        raise InputError(f"{source}: has {rows} rows for {n} rows of features; give one for each, in order")
