"""Doing something for each class among its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import TaskMap


def each_class(
    function: Callable[..., NDArray[Any]], labels: NDArray[np.int64], *arrays: NDArray[Any], each: TaskMap
) -> NDArray[Any]:
    """`function(*arrays of one class)` of each class, put back in the order of the rows.

    Args:
        function: from arrays with n rows to one value a row; a picklable one if `each` runs elsewhere.
        labels: (N,), N >= 1.
        arrays: of N rows each.
    """
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    tasks = [tuple(array[rows] for array in arrays) for rows in classes]
    results = list(each(_Unpacked(function), tasks))
    merged = np.empty(len(labels), dtype=results[0].dtype)
    for rows, result in zip(classes, results, strict=True):
        merged[rows] = result
    return merged


class _Unpacked:
    """Calls a function with a tuple's members; picklable, unlike a lambda."""

    def __init__(self, function: Callable[..., NDArray[Any]]) -> None:
        self._function = function

    def __call__(self, arguments: tuple[NDArray[Any], ...]) -> NDArray[Any]:
        return self._function(*arguments)
