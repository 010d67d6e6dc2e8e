"""What scorers may look at, and what a scorer is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Space = Literal["map", "components"]
PLACES: Mapping[Space, str] = {"map": "on the map", "components": "among the principal components"}
"""In words."""

Need = Literal["classes", "components", "map", "neighbours", "probabilities", "training_confidence"]

TaskMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""The built-in `map`, or one that runs the tasks elsewhere and returns their results in order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
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
    each: TaskMap = map

    def points(self, space: Space) -> NDArray[np.float64]:
        """(N, d) places on the first map, or principal components."""
        chosen = self.components if space == "components" else self.maps[0] if self.maps is not None else None
        assert chosen is not None, space
        return np.asarray(chosen, dtype=np.float64)

    def on_map(self, index: int) -> "Evidence":
        """The same with the map `index` as the one that counts."""
        assert self.maps is not None
        return replace(self, maps=self.maps[index : index + 1])

    def has(self, need: Need) -> bool:
        """Whether that part is there; `classes` are two at least."""
        if need == "classes":
            return len(np.unique(self.labels)) > 1
        return getattr(self, {"map": "maps"}.get(need, need)) is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """A scorer's values and what they are measured by, for N images.

    Attributes:
        options: the scorer's.
        values: (N,) its values.
        thresholds: (N,) what the values of dropped images exceed, above 0.
        names: of the classes.
    """

    evidence: Evidence
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
    phrases: Callable[[Judged], list[str]]
    needs: frozenset[Need] = field(default=frozenset())
    least_per_class: tuple[str, ...] = ()
    clusters: Callable[..., NDArray[np.int32]] | None = None
