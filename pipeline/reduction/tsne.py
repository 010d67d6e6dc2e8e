"""One t-SNE map by openTSNE, and the nearest neighbours that its search finds on the way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openTSNE
from numpy.typing import NDArray
from openTSNE.affinity import PerplexityBasedNN, get_knn_index
from openTSNE.callbacks import Callback
from openTSNE.nearest_neighbors import HNSW, Annoy, KNNIndex, NNDescent, PrecomputedNeighbors

from pipeline.errors import InputError

# Each report costs one evaluation of the KL divergence, little beside ten iterations.
_ITERATIONS_PER_REPORT = 10


@dataclass(frozen=True, kw_only=True)
class TsneMap:
    """A map of N points.

    Attributes:
        coordinates: (N, 2) float32.
        neighbours: (N, k) int32, the nearest others of each point in the space that was mapped,
            nearest first; approximate unless the search was exact (`effective["neighbors"]`).
        kl_divergence: of the final map, without exaggeration.
        effective: what openTSNE used where the settings left it the choice.
    """

    coordinates: NDArray[np.float32]
    neighbours: NDArray[np.int32]
    kl_divergence: float
    effective: dict[str, Any]


def tsne_map(
    points: NDArray[np.float32],
    settings: Mapping[str, Any],
    *,
    n_neighbours: int,
    report: Callable[[int, float], None],
) -> TsneMap:
    """Map points (N, d) to the plane (Poličar, Stražar and Zupan, 2024, doi:10.18637/jss.v109.i03).

    The map is `openTSNE.TSNE(**settings).fit(points)`, bit by bit. Repeats with the same `n_jobs`
    and `random_state` are equal; those of different `n_jobs` are not.

    Args:
        settings: arguments of `openTSNE.TSNE`; 3 x perplexity < N.
        n_neighbours: nearest others to return, at most N - 2.
        report: called with the iterations done since its last call and the current KL divergence.

    Raises:
        InputError: the neighbour search refuses its settings, or the optimisation diverged.
    """
    n = len(points)
    k = int(3 * settings["perplexity"])
    assert 1 <= k < n, (settings["perplexity"], n)
    assert n_neighbours <= n - 2, (n_neighbours, n)
    index = _knn_index(points, settings, max(k, n_neighbours + 1))
    indices, distances = _search(index, settings)
    affinities = PerplexityBasedNN(
        # openTSNE keeps using the index as given, so it gets the columns it would have searched.
        knn_index=PrecomputedNeighbors(indices[:, :k], distances[:, :k]),
        perplexity=settings["perplexity"],
        n_jobs=settings["n_jobs"],
    )
    tsne = openTSNE.TSNE(**settings, callbacks=_Reporter(report), callbacks_every_iters=_ITERATIONS_PER_REPORT)
    embedding = tsne.fit(points, affinities=affinities)
    coordinates = np.asarray(embedding, dtype=np.float32)
    if not np.isfinite(coordinates).all():
        raise InputError(
            f"reduce.tsne.learning_rate: {settings['learning_rate']} made the map diverge; use auto or a lower value"
        )
    return TsneMap(
        coordinates=coordinates,
        neighbours=_others(indices, n_neighbours),
        # Threads add the divergence up in the order in which they finish; one thread repeats it.
        kl_divergence=float(embedding.optimize(0, n_jobs=1, callbacks=None).kl_divergence),
        effective=_effective(tsne, index, n),
    )


def _knn_index(points: NDArray[np.float32], settings: Mapping[str, Any], k: int) -> KNNIndex:
    method, metric = settings["neighbors"], settings["metric"]
    if metric == "precomputed":
        raise InputError("reduce.tsne.metric: precomputed takes distances, and these are features; use euclidean")
    try:
        index = get_knn_index(
            points,
            method,
            k=k,
            metric=metric,
            metric_params=settings["metric_params"],
            n_jobs=settings["n_jobs"],
            random_state=settings["random_state"],
            knn_kwargs=settings["knn_kwargs"],
        )
    except ImportError as error:
        raise InputError(f"reduce.tsne.neighbors: {method} cannot be used here: {error}") from None
    except ValueError as error:
        raise InputError(f"reduce.tsne.metric: {metric} with neighbors {method}: {error}") from None
    if settings["metric_params"] and isinstance(index, Annoy | HNSW):
        raise InputError(
            f"reduce.tsne.metric_params: {type(index).__name__} takes none; set neighbors: exact, or remove them"
        )
    return index


def _search(index: KNNIndex, settings: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Neighbours (N, k), nearest first, and their distances."""
    try:
        indices, distances = index.build()
    except (TypeError, ValueError) as error:
        given = {key: settings[key] for key in ("neighbors", "metric", "metric_params", "knn_kwargs")}
        raise InputError(f"reduce.tsne: the neighbour search refuses {given}: {error}") from None
    return np.asarray(indices), np.asarray(distances)


def _others(indices: NDArray[np.int64], k: int) -> NDArray[np.int32]:
    """The first `k` columns (N, k) without the point itself.

    A search that drops each point's first hit as the point itself drops one of its duplicates
    instead where it has any, and then lists the point among its own neighbours.
    """
    is_self = indices == np.arange(len(indices))[:, None]
    order = np.argsort(is_self, axis=1, kind="stable")
    return np.take_along_axis(indices, order, axis=1)[:, :k].astype(np.int32)


def _effective(tsne: openTSNE.TSNE, index: KNNIndex, n: int) -> dict[str, Any]:
    """openTSNE's documented defaults, resolved; a test repeats a map from these values alone."""
    method = {Annoy: "annoy", HNSW: "hnsw", NNDescent: "pynndescent"}.get(type(index), "exact")
    gradient = tsne.negative_gradient_method
    if gradient == "auto":
        gradient = "bh" if n < 10_000 else "fft"
    exaggerations = {"early": tsne.early_exaggeration, "final": tsne.exaggeration or 1}
    automatic = tsne.learning_rate == "auto"
    return {
        "perplexity": tsne.perplexity,
        "neighbors": method,
        "negative_gradient_method": gradient,
        "early_exaggeration": tsne.early_exaggeration,
        "learning_rate": {
            phase: n / factor if automatic else tsne.learning_rate for phase, factor in exaggerations.items()
        },
    }


class _Reporter(Callback):  # type: ignore[misc]
    """Turns openTSNE's iteration numbers, which start anew in each phase, into increments."""

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report = report
        self._done = 0

    def optimization_about_to_start(self) -> None:
        self._done = 0

    def __call__(self, iteration: int, error: float, embedding: object) -> None:  # noqa: ARG002
        self._report(iteration - self._done, float(error))
        self._done = iteration
