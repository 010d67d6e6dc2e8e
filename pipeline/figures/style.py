"""Line styles, and groups of points with their colors, equal in every figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.figures.palette import ARMS, CLASSES, SERIES

N_CLASS_COLORS = len(CLASSES)

_ARM_MARKS = {arm: number for number, arm in enumerate(("filtered", "random", "full", "random_uniform", "relabeled"))}

# Names in plotly and in matplotlib.
_MARKERS = (("circle", "o"), ("diamond", "D"), ("square", "s"), ("triangle-up", "^"), ("x", "X"), ("star", "*"))
_DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."))


@dataclass(frozen=True, kw_only=True)
class LineStyle:
    """A line's style: color, marker and dash, each pair by its names in plotly and matplotlib."""

    color: str
    marker: tuple[str, str]
    dash: tuple[str, str]


@dataclass(frozen=True, order=True)
class LineKey:
    """What a line represents.

    Attributes:
        arm: arm of the runs.
        variant: further settings that distinguish the line, e.g. a learning rate; may be empty.
    """

    arm: str
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.arm}, {self.variant}" if self.variant else self.arm


def line_styles(keys: Sequence[LineKey]) -> dict[LineKey, LineStyle]:
    """Return a style for each of a study's lines.

    With several arms, color and marker show the arm and the dash shows the variant. With one arm in several variants,
    color and marker show the variant. Styles repeat if there are more lines than styles.

    Args:
        keys: all lines that must differ, variants in their order; duplicates are allowed.
    """
    variants = list(dict.fromkeys(key.variant for key in keys))
    by_arm = len({key.arm for key in keys}) > 1
    styles = {}
    for key in keys:
        variant = variants.index(key.variant)
        if by_arm or len(variants) == 1:
            color, mark, dash = ARMS[key.arm], _ARM_MARKS[key.arm], variant
        else:
            color, mark, dash = SERIES[variant % len(SERIES)], variant, variant // len(SERIES)
        styles[key] = LineStyle(color=color, marker=_MARKERS[mark % len(_MARKERS)], dash=_DASHES[dash % len(_DASHES)])
    return styles


def class_color(index: int) -> str:
    """Return the color of the class with this label; colors repeat from the eleventh class on."""
    return CLASSES[index % len(CLASSES)]


MAX_NAMES = 20
"""Number of groups above which groups of one color have no separate legend entry."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """A color for each of a few groups. `codes` (N,) are indices into `names` and `colors`."""

    codes: NDArray[np.integer[Any]]
    names: Sequence[str]
    colors: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """A color scale over numbers: `values` (N,), 0 to 1."""

    values: NDArray[np.float64]
    name: str


Colors = Groups | Scale
