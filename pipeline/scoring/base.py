"""What a scorer reads and returns, and how it treats classes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# What scorers may look at, and what a scorer is.


Space = Literal["embedding", "components"]
SPACE_NAMES: Mapping[Space, str] = {"embedding": "on the map", "components": "among the principal components"}
"""In words."""

Need = Literal["classes", "components", "embedding", "neighbours", "probabilities", "training_confidence"]

MapFn = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""The built-in `map`, or one that runs the tasks elsewhere and returns their results in order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScorerInputs:
    """What is known of N images, row by row. Scorers use what they need of it; the rest may be missing.

    Attributes:
        labels: (N,) int64, the class that each image is said to have.
        maps: (M, N, 2), finite: maps of all classes together. The first one counts; ensembles use all.
        components: (N, d) float32, finite: principal components of the features.
        neighbours: (N, k) rows of the nearest others by components, nearest first.
        probabilities: (N, C) float32, what a network holds for the class of each image; rows sum to 1.
        training_confidence: (N,) float32, mean probability of the label while the network trained; NaN where it
            did not meet the image.
        each: runs tasks of single classes; how changes no result.
    """

    labels: NDArray[np.int64]
    maps: NDArray[np.floating] | None = None
    components: NDArray[np.float32] | None = None
    neighbours: NDArray[np.integer] | None = None
    probabilities: NDArray[np.float32] | None = None
    training_confidence: NDArray[np.float32] | None = None
    each: MapFn = map

    def points(self, space: Space) -> NDArray[np.float64]:
        """(N, d) places on the first map, or principal components."""
        chosen = self.components if space == "components" else self.maps[0] if self.maps is not None else None
        assert chosen is not None, space
        return np.asarray(chosen, dtype=np.float64)

    def on_map(self, index: int) -> "ScorerInputs":
        """The same with the map `index` as the one that counts."""
        assert self.maps is not None
        return replace(self, maps=self.maps[index : index + 1])

    def has(self, need: Need) -> bool:
        """Whether that part is there; `classes` are two at least."""
        if need == "classes":
            return len(np.unique(self.labels)) > 1
        return getattr(self, {"embedding": "maps"}.get(need, need)) is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredImages:
    """A scorer's values and what they are measured by, for N images.

    Attributes:
        options: the scorer's.
        values: (N,) its values.
        thresholds: (N,) what the values of dropped images exceed, above 0.
        names: of the classes.
    """

    evidence: ScorerInputs
    options: Mapping[str, Any]
    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    names: Sequence[str]

    @property
    def pairs(self) -> Iterable[tuple[float, float]]:
        """Value and threshold of each image."""
        return zip(self.values.tolist(), self.thresholds.tolist(), strict=True)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """One way of suspecting images.

    Attributes:
        values: from the evidence and the scorer's options as keywords, how suspect each image is, in the
            scorer's own unit: (N,) float64, each at least 0 and possibly infinite, higher = more suspect.
            It depends on nothing but its arguments. Choosing is not its business: any rule of `budgets`
            can follow.
        phrases: N phrases that say what the values mean.
        needs: the parts of the evidence without which it cannot work; with an option `space`, that space too.
        least_per_class: the options, if any, that no class may have fewer images than.
        clusters: from evidence, thresholds (N,) and options, clusters (N,) int32 numbered from 0 within
            each class, noise -1; for scorers that find clusters.
    """

    values: Callable[..., NDArray[np.float64]]
    phrases: Callable[[ScoredImages], list[str]]
    needs: frozenset[Need] = field(default=frozenset())
    least_per_class: tuple[str, ...] = ()
    clusters: Callable[..., NDArray[np.int32]] | None = None


# Doing something for each class among its own.


def each_class(
    function: Callable[..., NDArray[Any]], labels: NDArray[np.int64], *arrays: NDArray[Any], each: MapFn
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


# Why an image is kept or dropped, in words.


def neighbor_phrases(neighbours: NDArray[np.integer], labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    """What the neighbours of each image are: "7 of 10 nearest neighbours are truck".

    Args:
        neighbours: (N, k) rows of the nearest others.
        labels: (N,) indices into `names`, one per class.
    """
    k = neighbours.shape[1]
    phrases = []
    for own, votes in zip(labels, labels[neighbours], strict=True):
        counts = np.bincount(votes, minlength=int(own) + 1)
        # The image's own class wins a draw: the phrase is to warn only if there is cause.
        most = int(own) if counts[own] == counts.max() else int(counts.argmax())
        whose = "share its label" if most == own else f"are {names[most]}"
        phrases.append(f"{counts[most]} of {k} nearest neighbours {whose}")
    return phrases


def network_phrases(
    predicted: NDArray[np.int64], confidence: NDArray[np.float32], labels: NDArray[np.int64], names: Sequence[str]
) -> list[str]:
    """What the network takes each image for, if not its label: "the network sees truck (91 %)", else ""."""
    return [
        f"the network sees {names[seen]} ({sure:.0%})".replace("%", " %") if seen != own else ""
        for seen, sure, own in zip(predicted.tolist(), confidence.tolist(), labels.tolist(), strict=True)
    ]


def override_reason(decision: str, note: str) -> str:
    """ "kept by hand: <note>" for a person's `decision`, keep or drop."""
    done = {"keep": "kept by hand", "drop": "dropped by hand"}[decision]
    return f"{done}: {note}" if note else done


def format_distinct(left: float, right: float) -> tuple[str, str]:
    """Both numbers with three digits, or as many as it takes to tell them apart."""
    for digits in range(3, 17):
        texts = f"{left:.{digits}g}", f"{right:.{digits}g}"
        if texts[0] != texts[1] or left == right:
            break
    return texts
