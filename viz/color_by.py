"""Colorings of the embedding: by decision, class, score, reason, cluster, arm or prediction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.arms import arm_mask
from pipeline.figures.palette import (
    AGREED,
    ALL_ARMS,
    ARMS,
    CONTRADICTED,
    DECISIONS,
    DROPPED,
    DROPPED_SHADES,
    DUPLICATE,
    KEPT,
    NOISE,
    SMALL_CLUSTERS,
)
from pipeline.figures.style import MAX_NAMES, Colors, Groups, Scale, class_color
from pipeline.scoring.votes import neighbor_vote
from viz.data import Points
from viz.filter_settings import FilterPreview

_BY_HAND = {name: DECISIONS[name] for name in ("kept by hand", "dropped by hand", "relabeled by hand")}


@dataclass(frozen=True, kw_only=True, eq=False)
class ColorData:
    """Data of N images for coloring.

    Attributes:
        points: the images.
        preview: the images that the filter drops.
    """

    points: Points
    preview: FilterPreview

    @cached_property
    def voted(self) -> NDArray[np.int64]:
        """(N,) the label of most neighbors."""
        return neighbor_vote(self.points.neighbors, self.points.labels)

    @cached_property
    def in_random(self) -> NDArray[np.bool_]:
        """(N,) members of the arm `random` for seed 0."""
        return arm_mask("random", self.points.labels, self.preview.keep, seed=0)


def colors_by(coloring: str, color_data: ColorData) -> Colors:
    """Return the color of each image.

    Args:
        coloring: a key of `COLORINGS`.
        color_data: of the images.
    """
    return COLORINGS[coloring][1](color_data)


def _by_decision(color_data: ColorData) -> Groups:
    names, colors = ("kept", "dropped", *_BY_HAND), (KEPT, DROPPED, *_BY_HAND.values())
    return Groups(codes=_with_overrides(color_data, ~color_data.preview.keep, 2), names=names, colors=colors)


def _with_overrides(color_data: ColorData, codes: NDArray[Any], first: int) -> NDArray[np.uint8]:
    """Return the codes (N,) with those of `_BY_HAND`, from `first` on, for images with an override."""
    order = ("keep", "drop", "relabel")
    codes = codes.astype(np.uint8)
    for row, override in color_data.preview.overrides.items():
        codes[row] = first + order.index(override.decision)
    return codes


def _by_class(color_data: ColorData) -> Groups:
    names = color_data.points.class_names
    colors = [class_color(index) for index in range(len(names))]
    return Groups(codes=color_data.points.labels, names=names, colors=colors)


def _by_cluster(color_data: ColorData) -> Groups:
    """Color the largest clusters of all classes separately, and the others in one color."""
    points = color_data.points
    n_per_class = int(points.clusters.max(initial=0)) + 1
    keys = points.labels * n_per_class + points.clusters
    unique, counts = np.unique(keys[points.clusters >= 0], return_counts=True)
    largest = unique[np.argsort(-counts, kind="stable")][: MAX_NAMES - 2]
    codes = np.full(len(keys), len(largest) + 1, dtype=np.uint8)
    for index, key in enumerate(largest):
        codes[keys == key] = index
    codes[points.clusters < 0] = len(largest)
    names = [f"{points.class_names[key // n_per_class]}, cluster {key % n_per_class}" for key in largest.tolist()]
    colors = [class_color(index) for index in range(len(largest))]
    return Groups(codes=codes, names=[*names, "noise", "smaller clusters"], colors=[*colors, NOISE, SMALL_CLUSTERS])


def _by_reason(color_data: ColorData) -> Groups:
    points = color_data.points
    by_network, by_neighbors = points.predicted != points.labels, color_data.voted != points.labels
    contradictions = by_network.astype(np.uint8) + 2 * by_neighbors.astype(np.uint8)
    # 0 to 3 for noise, by what contradicts the label; 4 for near duplicates; 5 for kept images.
    codes = np.where(color_data.preview.noise, contradictions, 5)
    codes[list(color_data.preview.redundant)] = 4
    names = (
        "dropped: nothing contradicts the label",
        "dropped: network predicts another class",
        "dropped: neighbors have another class",
        "dropped: network and neighbors contradict the label",
        "dropped: near duplicate",
        "kept",
        *_BY_HAND,
    )
    colors = (*DROPPED_SHADES, DUPLICATE, KEPT, *_BY_HAND.values())
    return Groups(codes=_with_overrides(color_data, codes, 6), names=names, colors=colors)


def _by_arm(color_data: ColorData) -> Groups:
    codes = color_data.preview.keep.astype(np.uint8) + 2 * color_data.in_random.astype(np.uint8)
    names = ("full only", "full and filtered", "full and random (seed 0)", "full, filtered and random")
    return Groups(codes=codes, names=names, colors=(ARMS["full"], ARMS["filtered"], ARMS["random"], ALL_ARMS))


def _by_correctness(color_data: ColorData) -> Groups:
    wrong = (color_data.points.predicted != color_data.points.labels).astype(np.uint8)
    names = ("network predicts the label", "network predicts another class")
    return Groups(codes=wrong, names=names, colors=(AGREED, CONTRADICTED))


def _by_score(color_data: ColorData) -> Scale:
    return Scale(values=color_data.preview.scores, name="score (above 0.5: dropped)")


COLORINGS: Mapping[str, tuple[str, Callable[[ColorData], Colors]]] = {
    "decision": ("decision", _by_decision),
    "class": ("class", _by_class),
    "score": ("score", _by_score),
    "reason": ("reason", _by_reason),
    "cluster": ("cluster", _by_cluster),
    "arm": ("arm", _by_arm),
    "correct": ("prediction", _by_correctness),
}
"""Key -> name on the page, and the function that returns the colors. Clusters are those that the filter wrote."""
