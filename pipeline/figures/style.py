"""Colors, line styles and groups of points, equal in every figure and safe for color-blind readers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOISE = "#808080"
"""Color of DBSCAN's noise."""

# P. Tol, "Color schemes", SRON/EPS/TN/09-002 (2021), "muted", and orange of its "vibrant" scheme.
_CLASSES = (
    "#332288",
    "#88ccee",
    "#44aa99",
    "#117733",
    "#999933",
    "#ddcc77",
    "#cc6677",
    "#882255",
    "#aa4499",
    "#ee7733",
)

N_CLASS_COLORS = len(_CLASSES)

# M. Okabe and K. Ito, "Color universal design" (2008).
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colors of networks, studies and other small sets."""

KEPT, DROPPED, KEPT_BY_HAND, DROPPED_BY_HAND, RELABELED_BY_HAND = SERIES[:5]
"""Colors of decisions on images, in every view of them."""

DROPPED_SHADES = ("#f2a36b", "#e5772a", DROPPED, "#8f3d00")
"""Colors of dropped images by what contradicts their label: nothing, one, the other, both."""

CONTRADICTED, AGREED = "#882255", "#b0b0a8"
"""Colors of labels that the network contradicts, and of the others."""

# J. R. Nuñez et al., "Optimizing colormaps with consideration for color vision deficiency", PLoS ONE 13(7) (2018).
SCALE = "cividis"
"""Color map of numbers from 0 to 1, by its name in plotly and matplotlib."""

_ARMS = {"filtered": 0, "random": 1, "full": 2, "random_uniform": 3, "relabeled": 4}

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

    With several arms, color and marker show the arm and the dash shows the variant. With one arm, color and marker show
    the variant. Styles repeat if there are more lines than styles.

    Args:
        keys: all lines that must differ, variants in their order; duplicates are allowed.
    """
    variants = list(dict.fromkeys(key.variant for key in keys))
    by_arm = len({key.arm for key in keys}) > 1
    styles = {}
    for key in keys:
        variant = variants.index(key.variant)
        look, dash = (_ARMS[key.arm], variant) if by_arm or len(variants) == 1 else (variant, variant // len(SERIES))
        styles[key] = LineStyle(
            color=SERIES[look % len(SERIES)],
            marker=_MARKERS[look % len(_MARKERS)],
            dash=_DASHES[dash % len(_DASHES)],
        )
    return styles


def class_color(index: int) -> str:
    """Return the color of the class with this label; colors repeat from the eleventh class on."""
    return _CLASSES[index % len(_CLASSES)]


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
