"""All colors with a meaning, in one place: a color means the same in figures, report and visualizer.

The colors of one group differ for readers with each kind of color blindness, and stand out from white paper and from
the dark pages. No two groups share a color. The style sheets repeat some of them; a test compares both.
"""

from collections.abc import Mapping

# M. Okabe and K. Ito, "Color universal design" (2008): blue, vermilion and sky blue.
KEPT = "#0072b2"
DROPPED = "#d55e00"
KEPT_BY_HAND = "#56b4e9"
DROPPED_BY_HAND = "#5c0a2e"
RELABELED_BY_HAND = "#4926d4"
DUPLICATE = "#8dbaa1"
"""Dropped as a near duplicate."""

DECISIONS: Mapping[str, str] = {
    "kept": KEPT,
    "dropped": DROPPED,
    "kept by hand": KEPT_BY_HAND,
    "dropped by hand": DROPPED_BY_HAND,
    "relabeled by hand": RELABELED_BY_HAND,
    "dropped: near duplicate": DUPLICATE,
}
"""Colors of decisions on images, in every view of them."""

DROPPED_SHADES = ("#f2a36b", "#e5772a", DROPPED, "#8f3d00")
"""Colors of dropped images by what contradicts their label: nothing, one, the other, both."""

ARMS: Mapping[str, str] = {
    "full": "#009e73",
    "filtered": "#9d50fa",
    "random": "#e07ab8",
    "random_uniform": "#8e4d89",
    "relabeled": "#c0a040",
}
"""Colors of the arms of studies."""

ALL_ARMS = "#a6a8ab"
"""Color of images that all arms train on."""

ONLY_A, ONLY_B = "#1f1f1f", "#aa3377"
"""Colors of images that one of two compared settings drops, and the other keeps."""

CONTRADICTED, AGREED = "#93003a", "#b0b0a8"
"""Colors of labels that the network contradicts, and of the others."""

SERIES = ("#255f62", "#a35e16", "#729fe9", "#917597", "#c47c3b", "#9e9e9e")
"""Colors of networks, settings and other small sets, in their order."""

# P. Tol, "Color schemes", SRON/EPS/TN/09-002 (2021), "muted", and orange of its "vibrant" scheme.
CLASSES = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499", "#ee7733",
)  # fmt: skip
"""Colors of classes and of clusters. They are too many to differ for all readers; names and tooltips help."""

NOISE = "#808080"
"""Color of DBSCAN's noise."""

SMALL_CLUSTERS = "#bfb9a6"
"""Color of all clusters without a separate one."""

CHOSEN = "#d6249f"
"""Color of the ring around the chosen image."""

MARK = "#767676"
"""Color of lines and signs that explain a chart: zero, thresholds, published values."""

OUTCOMES: Mapping[str, tuple[str, str]] = {
    "helps": ("#00664b", "#4ccaa4"),
    "hurts": ("#a63c00", "#ff9a66"),
    "equivalent": ("#52489c", "#a99bf5"),
    "undecided": ("#5c6470", "#9aa3b0"),
}
"""Colors of verdicts, which are words: on light and on dark pages."""

# J. R. Nuñez et al., "Optimizing colormaps with consideration for color vision deficiency", PLoS ONE 13(7) (2018).
SCALE = "cividis"
"""Color map of numbers from 0 to 1, by its name in plotly and matplotlib."""
