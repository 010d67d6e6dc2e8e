"""The interface of scorers: what they read and return. Also tasks by class, and phrases of reasons."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.typing import MapFn

Space = Literal["embedding", "components"]
SPACE_NAMES: Mapping[Space, str] = {"embedding": "on the embedding", "components": "among the principal components"}
"""Names of the spaces in reasons."""

Need = Literal[
    "classes",
    "components",
    "embedding",
    "neighbors",
    "probabilities",
    "training_confidence",
    "training_forgetting",
    "training_margin",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScorerInputs:
    """Arrays about N images, one row per image. A scorer uses what it needs; the rest may be missing.

    Attributes:
        labels: (N,) int64, the class that each image is labeled with.
        embeddings: (M, N, 2), finite: t-SNE embeddings of all classes together. Scorers use the first one;
            ensembles use all.
        components: (N, d) float32, finite: principal components of the features.
        neighbors: (N, k) rows of the nearest other images by components, nearest first.
        probabilities: (N, C) float32, the network's probability of each class; rows sum to 1. With folds, that of
            the network that did not train on the image.
        training_confidence: (N,) float32, mean probability of the label over the second half of training, or its last
            two epochs if they are more; NaN where training did not use the image. It is in sample: with folds, the
            mean over the networks that trained on it.
        training_margin: (N,) float32, mean margin of the label's logit over training; NaN where training did not use
            the image.
        training_forgetting: (N,) float32, how often training forgot the label, infinite if it never learned it; NaN
            where training did not use the image.
        folds: (N,) the fold of each image; None if one network trained on all images.
        map_fn: runs one task per class; it does not change results.
    """

    labels: NDArray[np.int64]
    embeddings: NDArray[np.floating] | None = None
    components: NDArray[np.float32] | None = None
    neighbors: NDArray[np.integer] | None = None
    probabilities: NDArray[np.float32] | None = None
    training_confidence: NDArray[np.float32] | None = None
    training_margin: NDArray[np.float32] | None = None
    training_forgetting: NDArray[np.float32] | None = None
    folds: NDArray[np.int32] | None = None
    map_fn: MapFn = map

    def points(self, space: Space) -> NDArray[np.float64]:
        """Return coordinates (N, 2) on the first embedding, or principal components (N, d)."""
        first = self.embeddings[0] if self.embeddings is not None else None
        points = self.components if space == "components" else first
        assert points is not None, space
        return np.asarray(points, dtype=np.float64)

    def with_embedding(self, index: int) -> "ScorerInputs":
        """Return a copy with only the embedding `index`."""
        assert self.embeddings is not None
        return replace(self, embeddings=self.embeddings[index : index + 1])

    def has(self, need: Need) -> bool:
        """Return whether an input is available; `classes` means at least two of them."""
        if need == "classes":
            return len(np.unique(self.labels)) > 1
        return getattr(self, {"embedding": "embeddings"}.get(need, need)) is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredImages:
    """A scorer's values for N images, with what its reasons need.

    Attributes:
        inputs: what the scorer read.
        options: the scorer's options.
        values: (N,) the scorer's values.
        thresholds: (N,), above 0; an image is dropped if its value exceeds its threshold.
        class_names: one name per class.
    """

    inputs: ScorerInputs
    options: Mapping[str, Any]
    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    class_names: Sequence[str]

    @property
    def pairs(self) -> Iterable[tuple[float, float]]:
        """Value and threshold of each image."""
        return zip(self.values.tolist(), self.thresholds.tolist(), strict=True)

    @property
    def dropped(self) -> list[bool]:
        """Whether each image is dropped, which decides the wording of its reason."""
        return [value > threshold for value, threshold in self.pairs]


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """One method of finding suspect images.

    Attributes:
        values: function of the inputs and, as keywords, the scorer's options. It returns how suspect each image is:
            (N,) float64 in the scorer's own unit, at least 0, possibly infinite, higher = more suspect. The scorer
            does not choose images: any rule of `thresholds` can follow.
        reasons: function that returns N phrases, which say what the values mean.
        needs: the inputs without which it cannot work; with an option `space`, that space too.
        needs_without_folds: further ones where one network trained on all images.
        min_per_class: options that give a minimum number of images for every class.
        clusters: function of inputs, thresholds (N,) and options. It returns clusters (N,) int32, numbered from 0
            within each class, noise -1. None for scorers without clusters, or whose clusters need no threshold.
        values_and_clusters: function of the inputs and options that returns both, for scorers whose clusters need no
            threshold: one fit gives both. None for other scorers.
    """

    values: Callable[..., NDArray[np.float64]]
    reasons: Callable[[ScoredImages], list[str]]
    needs: frozenset[Need] = field(default=frozenset())
    needs_without_folds: frozenset[Need] = field(default=frozenset())
    min_per_class: tuple[str, ...] = ()
    clusters: Callable[..., NDArray[np.int32]] | None = None
    values_and_clusters: Callable[..., tuple[NDArray[np.float64], NDArray[np.int32]]] | None = None

    def needs_of(self, inputs: ScorerInputs) -> frozenset[Need]:
        """Return the inputs without which it cannot work, where these are given."""
        return self.needs | self.needs_without_folds if inputs.folds is None else self.needs


def each_class(
    function: Callable[..., NDArray[Any]], labels: NDArray[np.int64], *arrays: NDArray[Any], map_fn: MapFn
) -> NDArray[Any]:
    """Apply a function to the rows of each class, and return its results (N,) in the order of the rows.

    Args:
        function: from arrays with n rows to one value per row; picklable if `map_fn` runs elsewhere.
        labels: (N,), N >= 1.
        arrays: N rows each.
    """
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    tasks = [tuple(array[rows] for array in arrays) for rows in classes]
    results = list(map_fn(partial(_call, function), tasks))
    merged = np.empty(len(labels), dtype=results[0].dtype)
    for rows, result in zip(classes, results, strict=True):
        merged[rows] = result
    return merged


def _call(function: Callable[..., NDArray[Any]], arguments: tuple[NDArray[Any], ...]) -> NDArray[Any]:
    """Call a function with the items of a tuple; picklable, unlike a lambda."""
    return function(*arguments)


def suggestion_phrases(
    suggested: NDArray[np.int64],
    probabilities: NDArray[np.float32],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
) -> list[str]:
    """Say which other label the network suggests, "suggested label: truck (91 %)"; "" where it suggests the label."""
    return [
        f"suggested label: {class_names[guess]} ({100 * share:.0f} %)" if guess != label else ""
        for guess, share, label in zip(suggested.tolist(), probabilities.tolist(), labels.tolist(), strict=True)
    ]


def override_reason(decision: str, note: str, label: str = "") -> str:
    """Return "kept by hand: <note>" for a person's `decision`: keep, drop, or relabel as `label`."""
    done = {"keep": "kept by hand", "drop": "dropped by hand", "relabel": f"relabeled as {label} by hand"}[decision]
    return f"{done}: {note}" if note else done


def format_distinct(left: float, right: float) -> tuple[str, str]:
    """Format two numbers with three digits, or with as many as make the texts differ."""
    for digits in range(3, 17):
        texts = f"{left:.{digits}g}", f"{right:.{digits}g}"
        if texts[0] != texts[1] or left == right:
            break
    return texts
