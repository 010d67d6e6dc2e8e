"""Type of map functions that run independent tasks, and blocks of rows as their items."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

_MAX_ROWS = 8192
_MAX_BYTES = 2**26

Item = TypeVar("Item")
Result = TypeVar("Result")


class MapFn(Protocol):
    """The built-in `map` of one iterable, or one that runs tasks on workers; results in the order of the items."""

    def __call__(self, task: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]: ...


def row_blocks(features: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return consecutive views that cover the rows of features (N, D).

    Their size depends only on D: at most 8192 rows, and 64 MiB or one row.
    """
    rows = max(1, min(_MAX_ROWS, _MAX_BYTES // (4 * features.shape[1])))
    return [features[start : start + rows] for start in range(0, len(features), rows)]
