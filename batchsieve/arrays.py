"""Check and convert array arguments: labels as codes, finite features, class probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from pipeline.config.base import MAX_SEED
from pipeline.errors import InputError, is_out_of_memory, short_reason
from pipeline.reduction.checks import FeatureFixHints, check_features
from pipeline.scoring.registry import check_probabilities, column_order_problem

_FIXES = FeatureFixHints(
    not_finite="correct or leave out such rows; values must be within the range of float32",
    all_equal="give other features",
    too_small="multiply them by a constant",
)
_MAX_LISTED = 10  # classes in a message


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Labels of N samples.

    Attributes:
        codes: (N,) int64, indices into `classes`.
        classes: (C,) integers or strings.
    """

    codes: NDArray[np.int64]
    classes: NDArray[Any]

    @property
    def names(self) -> list[str]:
        """Names of the C classes, for messages."""
        return [str(name) for name in self.classes.tolist()]


def as_array(values: Any, key: str) -> NDArray[Any]:
    """Return values as an array of no subclass; of a memory map it is a view, which does not load it.

    Raises:
        InputError: naming `key`: rows of different lengths, masked values, or a tensor that NumPy cannot read.
    """
    try:
        array = np.asanyarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(f"{key}: cannot be read as an array ({short_reason(error)}); give one of NumPy") from None
    if np.ma.is_masked(array):
        raise InputError(f"{key}: has masked values; fill or leave out those rows")
    # A matrix keeps two dimensions where an array has one.
    return np.asarray(array)


def checked_labels(
    labels: ArrayLike, *, n_columns: int | None = None, class_names: Sequence[int] | Sequence[str] | None = None
) -> Labels:
    """Check labels (N,) and convert them to codes.

    The classes are `class_names`, if given. Otherwise, they are 0 to `n_columns` - 1 if all labels are integers in this
    range, and else the distinct labels in ascending order, as scikit-learn's `classes_`.

    Args:
        n_columns: columns of the probabilities; None without probabilities.

    Raises:
        InputError: naming `labels`, `class_names` or `pred_probs`.
    """
    values = as_array(labels, "labels")
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"labels: shape {values.shape}; give one label for each sample, (N,) with N of 1 or more")
    if values.dtype.kind in "OT":
        values = _without_objects(values, "labels")
    if values.dtype.kind not in "iubU":
        raise InputError(f"labels: {values.dtype}; give integers or strings")
    if class_names is not None:
        classes = _checked_class_names(class_names, values.dtype.kind)
    elif n_columns is not None and values.dtype.kind in "iu" and values.min() >= 0 and values.max() < n_columns:
        classes = np.arange(n_columns)
    else:
        classes = np.unique(values)
    if n_columns is not None and n_columns != len(classes):
        raise InputError(
            f"pred_probs: {n_columns} columns for the {len(classes)} classes {_listed(classes)}; give a column for "
            "each, or class_names in the order of the columns"
        )
    order = np.argsort(classes, kind="stable")
    # NumPy would search signed among unsigned integers as floats, which merge large ones.
    searched = values if values.dtype.kind == "U" else values.astype(classes.dtype)
    positions = np.minimum(np.searchsorted(classes, searched, sorter=order), len(classes) - 1)
    codes = order[positions].astype(np.int64)
    unknown = classes[codes] != values
    if unknown.any():
        row = int(unknown.argmax())
        raise InputError(f"labels: row {row} is {values[row].item()!r}, which class_names lacks; add it there")
    return Labels(codes=codes, classes=classes)


def _listed(classes: NDArray[Any]) -> str:
    return ", ".join(map(str, classes[:_MAX_LISTED].tolist())) + (", ..." if len(classes) > _MAX_LISTED else "")


def labels_by_columns(
    labels: ArrayLike, pred_probs: ArrayLike | None, class_names: Sequence[int] | Sequence[str] | None
) -> tuple[Labels, NDArray[np.float32] | None]:
    """Check labels (N,) by `checked_labels`, and class probabilities (N, C) by `probability_columns`.

    Without `class_names`, the columns of a data frame give the order of the classes, if they are the classes as text.

    Raises:
        InputError: naming `labels`, `class_names` or `pred_probs`.
    """
    if pred_probs is None:
        return checked_labels(labels, class_names=class_names), None
    probabilities = probability_columns(pred_probs)
    checked = checked_labels(labels, n_columns=probabilities.shape[1], class_names=class_names)
    columns = [str(name) for name in getattr(pred_probs, "columns", ()) if isinstance(name, str | int | np.integer)]
    if class_names is None and sorted(columns) == sorted(checked.names):
        rows = {name: row for row, name in enumerate(checked.names)}
        order = np.array([rows[name] for name in columns])
        checked = Labels(codes=np.argsort(order)[checked.codes], classes=checked.classes[order])
    return checked, probabilities


def column_order_warning(pred_probs: NDArray[np.float32], labels: Labels) -> str:
    """Return a line if the columns of checked probabilities (N, C) are probably not in the order of the classes."""
    problem = column_order_problem(pred_probs, labels.codes, _listed(labels.classes))
    return problem and f"pred_probs: {problem}"


def _without_objects(values: NDArray[Any], key: str) -> NDArray[Any]:
    """Return an array of integers or strings, since a column of pandas can hold Python objects."""
    kinds = {type(value) for value in values.tolist()}
    if all(issubclass(kind, str) for kind in kinds):
        return values.astype(str)
    if all(issubclass(kind, int | np.integer) for kind in kinds):
        try:
            return values.astype(np.int64)
        except OverflowError:
            row = next(row for row, value in enumerate(values.tolist()) if not -(2**63) <= value < 2**63)
            raise InputError(
                f"{key}: row {row} is {values[row]}, beyond 64 bits; give smaller integers, or strings"
            ) from None
    raise InputError(
        f"{key}: values of {', '.join(sorted(kind.__name__ for kind in kinds))}; give only integers or only strings"
    )


def _checked_class_names(names: Sequence[int] | Sequence[str], kind: str) -> NDArray[Any]:
    classes = as_array(names, "class_names")
    if classes.dtype.kind in "OT" and classes.ndim == 1 and len(classes):
        classes = _without_objects(classes, "class_names")
    kinds = "U" if kind == "U" else "iub"
    if classes.ndim != 1 or len(classes) == 0 or classes.dtype.kind not in kinds:
        raise InputError(f"class_names: {classes.dtype} {classes.shape}; give a list of values of the type of labels")
    if len(np.unique(classes)) != len(classes):
        raise InputError("class_names: contains a name twice; give each class once, in the order of the columns")
    return classes


def holds_images(values: object) -> bool:
    """Return whether `features` holds images: PIL images, or an array of four dimensions.

    Raises:
        InputError: as `as_array`.
    """
    if isinstance(values, Sequence) and values and isinstance(values[0], Image.Image):
        return True
    return as_array(values, "features").ndim == 4


def checked_features(features: ArrayLike, n: int) -> NDArray[np.float32]:
    """Check that features (n, D) are finite and not all equal, and convert them to float32.

    A memory map of float32 is not loaded.

    Raises:
        InputError: naming `features`.
    """
    array = as_array(features, "features")
    if array.ndim != 2 or array.dtype.kind not in "fiub" or array.shape[1] == 0:
        raise InputError(f"features: {array.dtype} of shape {array.shape}; give numbers of shape (N, D)")
    _check_length("features", len(array), n)
    with np.errstate(over="ignore"):  # to infinity, which is rejected
        values = np.asarray(array, dtype=np.float32)
    check_features(values, "features", _FIXES)
    return values


def probability_columns(pred_probs: ArrayLike) -> NDArray[np.float32]:
    """Check the shape of class probabilities (N, C), and convert them to float32.

    Raises:
        InputError: naming `pred_probs`.
    """
    array = as_array(pred_probs, "pred_probs")
    if array.ndim != 2 or array.dtype.kind not in "fiub" or array.shape[1] == 0:
        raise InputError(f"pred_probs: {array.dtype} of shape {array.shape}; give numbers of shape (N, C)")
    return np.asarray(array, dtype=np.float32)


def checked_probabilities(pred_probs: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """Check that class probabilities (n, C) have n rows that sum to 1.

    Raises:
        InputError: naming `pred_probs`.
    """
    _check_length("pred_probs", len(pred_probs), n)
    check_probabilities(pred_probs, "pred_probs")
    return pred_probs


def checked_share(value: float, key: str) -> float:
    """Check that a share of the samples is in [0, 1).

    Raises:
        InputError: naming `key`.
    """
    if not 0 <= value < 1:
        raise InputError(f"{key}: {value}; give a share of the samples, at least 0 and below 1")
    return float(value)


def checked_fraction(value: float | str, key: str) -> float | Literal["estimated"]:
    """Check that a fraction is a share of the samples, in [0, 1), or "estimated".

    Raises:
        InputError: naming `key`.
    """
    if not isinstance(value, str):
        return checked_share(value, key)
    if value != "estimated":
        raise InputError(f"{key}: {value!r}; give a share of the samples, at least 0 and below 1, or 'estimated'")
    return "estimated"


def checked_seed(seed: int) -> int:
    """Return a seed that every generator takes.

    Raises:
        InputError: naming `seed`.
    """
    checked = checked_integer(seed, "seed")
    if not 0 <= checked <= MAX_SEED:
        raise InputError(f"seed: {checked}; give an integer from 0 to {MAX_SEED}")
    return checked


def checked_integer(value: int, key: str) -> int:
    """Return an integer, which may be one of NumPy, as an int.

    Raises:
        InputError: naming `key`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{key}: {value!r}; give an integer")
    return int(value)


def checked_number(value: float, key: str) -> float:
    """Return an argument as a float.

    Raises:
        InputError: naming `key`.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{key}: {value!r}; give a number") from None


def _check_length(key: str, rows: int, n: int) -> None:
    if rows != n:
        raise InputError(f"{key}: {rows} rows for {n} labels; give one for each, in the same order")
