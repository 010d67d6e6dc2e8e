"""What points are colored by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.arms import arm_mask
from pipeline.figures.style import MAX_NAMES, NOISE, SERIES, Colors, Groups, Scale, class_color
from viz.data import Points
from viz.filter_settings import FilterPreview

_DROPPED, _KEPT = SERIES[1], SERIES[0]
_BY_HAND = SERIES[3]
# Visible on light and on dark backgrounds.
_SMALLER = "#b0b0a8"


@dataclass(frozen=True, kw_only=True, eq=False)
class ColorData:
    """Data of N images for coloring.

    Attributes:
        labels, predicted: (N,) int64 indices into `class_names`: the label, and the class that the network predicts.
        neighbors: (N, k) rows of the nearest neighbors.
        clusters: (N,) int32 numbered from 0 within each class, noise -1.
        keep: (N,) whether the image would stay, overrides included.
        noise: (N,) whether it would go without overrides.
        is_overridden: (N,) whether it has an override.
        scores: (N,) suspicion, 0 to 1.
        class_names: of the labels.
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    neighbors: NDArray[np.int64]
    clusters: NDArray[np.int32]
    keep: NDArray[np.bool_]
    noise: NDArray[np.bool_]
    is_overridden: NDArray[np.bool_]
    scores: NDArray[np.float64]
    class_names: Sequence[str]

    @cached_property
    def voted(self) -> NDArray[np.int64]:
        """(N,) the label of most neighbors."""
        return neighbor_vote(self.neighbors, self.labels)

    @cached_property
    def in_random(self) -> NDArray[np.bool_]:
        """(N,) members of the arm `random` for seed 0."""
        return arm_mask("random", self.labels, self.keep, seed=0)


def colors_by(coloring: str, color_data: ColorData) -> Colors:
    """Return the color of each image.

    Args:
        coloring: a key of `COLORINGS`.
        color_data: of the images.
    """
    return COLORINGS[coloring][1](color_data)


def neighbor_vote(neighbors: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most frequent label (N,) of each image's neighbors (N, k); in a tie its own label, if among them."""
    votes = labels[neighbors]
    # Pairwise comparison: k is small, and classes may be a thousand.
    counts = (votes[:, :, None] == votes[:, None, :]).sum(axis=2)
    most = np.take_along_axis(votes, counts.argmax(axis=1)[:, None], axis=1)[:, 0]
    own = (votes == labels[:, None]).sum(axis=1)
    return np.where(own >= counts.max(axis=1, initial=0), labels, most)


def _by_decision(color_data: ColorData) -> Groups:
    names = ("stays", "goes", "stays by hand", "goes by hand")
    codes = (~color_data.keep).astype(np.uint8) + 2 * color_data.is_overridden.astype(np.uint8)
    return Groups(codes=codes, names=names, colors=(_KEPT, _DROPPED, SERIES[2], _BY_HAND))


def _by_class(color_data: ColorData) -> Groups:
    names = color_data.class_names
    return Groups(codes=color_data.labels, names=names, colors=[class_color(index) for index in range(len(names))])


def _by_cluster(color_data: ColorData) -> Groups:
    """Color the largest clusters of all classes separately, and the others in one color."""
    n_per_class = int(color_data.clusters.max(initial=0)) + 1
    keys = color_data.labels * n_per_class + color_data.clusters
    found, counts = np.unique(keys[color_data.clusters >= 0], return_counts=True)
    largest = found[np.argsort(-counts, kind="stable")][: MAX_NAMES - 2]
    codes = np.full(len(keys), len(largest) + 1, dtype=np.uint8)
    for index, key in enumerate(largest):
        codes[keys == key] = index
    codes[color_data.clusters < 0] = len(largest)
    names = [f"{color_data.class_names[key // n_per_class]}, cluster {key % n_per_class}" for key in largest.tolist()]
    colors = [class_color(index) for index in range(len(largest))]
    return Groups(codes=codes, names=[*names, "noise", "smaller clusters"], colors=[*colors, NOISE, _SMALLER])


def _by_reason(color_data: ColorData) -> Groups:
    sees, votes = color_data.predicted != color_data.labels, color_data.voted != color_data.labels
    doubts = sees.astype(np.uint8) + 2 * votes.astype(np.uint8)
    # 0 to 3 for images that go, by what contradicts the label; 4 for images that stay; 5 for overrides.
    codes = np.where(color_data.is_overridden, 5, np.where(color_data.noise, doubts, 4)).astype(np.uint8)
    names = (
        "goes: far from its class, yet nobody doubts the label",
        "goes: the network sees another class",
        "goes: neighbors are another class",
        "goes: network and neighbors see another class",
        "stays",
        "decided by hand",
    )
    return Groups(codes=codes, names=names, colors=(SERIES[4], SERIES[5], SERIES[2], SERIES[1], NOISE, SERIES[3]))


def _by_arm(color_data: ColorData) -> Groups:
    codes = color_data.keep.astype(np.uint8) + 2 * color_data.in_random.astype(np.uint8)
    names = ("full alone", "full and filtered", "full and random (seed 0)", "all three")
    return Groups(codes=codes, names=names, colors=(SERIES[1], SERIES[0], SERIES[4], NOISE))


def _by_correctness(color_data: ColorData) -> Groups:
    wrong = (color_data.predicted != color_data.labels).astype(np.uint8)
    return Groups(codes=wrong, names=("network sees the label", "sees another class"), colors=(_KEPT, _DROPPED))


def _by_score(color_data: ColorData) -> Scale:
    return Scale(values=color_data.scores, name="score (above 0.5 goes)")


COLORINGS: Mapping[str, tuple[str, Callable[[ColorData], Colors]]] = {
    "decision": ("stays or goes", _by_decision),
    "class": ("class", _by_class),
    "score": ("score", _by_score),
    "reason": ("reason", _by_reason),
    "cluster": ("cluster that the filter found", _by_cluster),
    "arm": ("arm of the comparison", _by_arm),
    "correct": ("what the network sees", _by_correctness),
}
"""Key -> name, and the function that returns the colors."""


def make_color_data(points: Points, preview: FilterPreview) -> ColorData:
    """Collect the data for coloring. The clusters are those that the filter wrote."""
    is_overridden = np.zeros(len(points), dtype=np.bool_)
    is_overridden[list(preview.overrides)] = True
    return ColorData(
        labels=points.labels,
        predicted=points.predicted,
        neighbors=points.neighbors,
        clusters=points.clusters,
        keep=preview.keep,
        noise=preview.noise,
        is_overridden=is_overridden,
        scores=preview.scores,
        class_names=points.class_names,
    )
