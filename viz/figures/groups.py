"""What the points of a map are coloured by: a few groups, or a number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_NAMES = 20
"""Beyond this many, groups of one colour have no entry of their own in a legend."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """A colour for each of a few groups. `codes` (N,) are indices into `names` and `colors`, one each."""

    codes: NDArray[np.integer[Any]]
    names: Sequence[str]
    colors: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """A colour that goes with a number: `values` (N,), 0 to 1."""

    values: NDArray[np.float64]
    name: str


Colors = Groups | Scale
