"""Suspicion of each image by one scorer, cached until the files change."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pipeline.config.base import Section
from pipeline.config.filter import SingleScorer
from pipeline.scoring.base import Space
from pipeline.scoring.density import release_radii_by_class
from pipeline.scoring.eps_search import k_distances
from pipeline.scoring.registry import SCORERS, check_scorer, split_options
from pipeline.scoring.thresholds import values_from_scores
from pipeline.typing import MapFn
from viz.data import Points, Source


def filter_values(source: Source, points: Points) -> NDArray[np.float64]:
    """Return the values (N,) of the filter's scorer, from its scores; infinite for a score of 1."""
    return _cached(source, points, "written", lambda: values_from_scores(points.scores, points.thresholds))


def scored_values(source: Source, points: Points, name: str) -> NDArray[np.float64]:
    """Return the values (N,) of a scorer with its default options, in its unit.

    Raises:
        InputError: the scorer needs files that are missing, or cannot score these images.
    """

    def compute() -> NDArray[np.float64]:
        scorer, inputs = with_defaults(name), source.scorer_inputs(points)
        check_scorer(inputs, scorer, points.class_names, f"the scorer {name}")
        _, options = split_options(scorer)
        return SCORERS[name].values(inputs, **options)

    return _cached(source, points, name, compute)


def radii(source: Source, points: Points, space: Space, min_samples: int, label: int | None) -> NDArray[np.float64]:
    """Return the release radii of the n images of one class, or of all for None, (n,); see `scoring.density`.

    Args:
        source: of the images.
        points: of the network.
        space: of the distances and their unit.
        min_samples: of DBSCAN.
        label: of the class; None for all.

    Raises:
        InputError: the components are missing, or belong to other files than the points.
    """

    def compute(coordinates: NDArray[np.float64], labels: NDArray[np.int64], map_fn: MapFn) -> NDArray[np.float64]:
        return release_radii_by_class(coordinates, labels, min_samples=min_samples, map_fn=map_fn)

    return _per_class(source, points, ("radii", space, min_samples, label), compute)


def ordered_distances(
    source: Source, points: Points, space: Space, min_samples: int, label: int | None
) -> NDArray[np.float64]:
    """Return each image's distance to the `min_samples`-th nearest of its class, itself included; ascending (n,).

    Args:
        source, points, space, min_samples, label: as `radii`.

    Raises:
        InputError: as `radii`.
    """

    def compute(coordinates: NDArray[np.float64], labels: NDArray[np.int64], map_fn: MapFn) -> NDArray[np.float64]:
        return k_distances(coordinates, labels, min_samples, map_fn=map_fn)

    return _per_class(source, points, ("k-distances", space, min_samples, label), compute)


def with_defaults(name: str) -> dict[str, Any]:
    """Return a scorer with the default options of params.yaml."""
    options: Mapping[str, Any] = TypeAdapter[Section](SingleScorer).validate_python({"name": name}).model_dump()
    return dict(options)


def _per_class(
    source: Source,
    points: Points,
    key: tuple[str, Space, int, int | None],
    compute: Callable[[NDArray[np.float64], NDArray[np.int64], MapFn], NDArray[np.float64]],
) -> NDArray[np.float64]:
    _, space, _, label = key

    def make() -> NDArray[np.float64]:
        coordinates = points.coordinates if space == "embedding" else source.scorer_inputs(points).points(space)
        rows = slice(None) if label is None else points.labels == label
        # The neighbor search releases the GIL.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return compute(coordinates[rows], points.labels[rows], pool.map)

    return _cached(source, points, key, make)


def _cached(
    source: Source, points: Points, key: object, make: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    # This stamp also covers `scorer_inputs`, which rejects files of other points.
    return source.cache.get((points.network, key), points.stamp, make)
