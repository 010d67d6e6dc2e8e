"""One t-SNE map by openTSNE, of all points or of landmarks among which the others are placed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openTSNE
from numpy.typing import NDArray
from openTSNE.affinity import PerplexityBasedNN, get_knn_index
from openTSNE.callbacks import Callback
from openTSNE.nearest_neighbors import HNSW, Annoy, KNNIndex, NNDescent, PrecomputedNeighbors

from pipeline.errors import InputError
from pipeline.reduction.landmarks import landmark_rows
from pipeline.reduction.placing import place

# Each report costs one evaluation of the KL divergence, little beside ten iterations.
_ITERATIONS_PER_REPORT = 10


@dataclass(frozen=True, kw_only=True)
class TsneMap:
    """A map of N points.

    Attributes:
        coordinates: (N, 2) float32.
        kl_divergence: of the final map, without exaggeration; of the landmarks alone where there are any.
        effective: what openTSNE used where the settings left it the choice.
    """

    coordinates: NDArray[np.float32]
    kl_divergence: float
    effective: dict[str, Any]


def tsne_map(
    points: NDArray[np.float32],
    settings: Mapping[str, Any],
    *,
    report: Callable[[int, float], None],
) -> TsneMap:
    """Map points (N, d) to the plane (Poličar, Stražar and Zupan, 2024, doi:10.18637/jss.v109.i03).

    The map is `openTSNE.TSNE(**settings).fit(points)`, bit by bit. Repeats with the same `n_jobs`
    and `random_state` are equal; those of different `n_jobs` are not.

    Args:
        settings: arguments of `openTSNE.TSNE`; 3 x perplexity < N.
        report: called with the iterations done since its last call and the current KL divergence.

    Raises:
        InputError: the neighbour search refuses its settings, or the optimisation diverged.
    """
    return _fit(points, settings, report)[1]


def training_map(
    points: NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: Mapping[str, Any],
    *,
    landmarks: int | None,
    report: Callable[[int, float], None] = lambda *_: None,
    report_placed: Callable[[int], None] = lambda _: None,
) -> TsneMap:
    """`tsne_map` of points (N, d), or of so many landmarks among them with all others placed by `place`.

    Args:
        labels: (N,); every class has its share of the landmarks.
        settings: as for `tsne_map`; `random_state` draws the landmarks too.
        landmarks: 3 x perplexity < landmarks < N, at least one for every class; None fits all points.
        report: as for `tsne_map`.
        report_placed: called with the number of points placed since its last call.
    """
    if landmarks is None:
        return tsne_map(points, settings, report=report)
    rows = landmark_rows(labels, landmarks, seed=settings["random_state"])
    embedding, mapped = _fit(points[rows], settings, report)
    placing = {**settings, "negative_gradient_method": mapped.effective["negative_gradient_method"]}
    return replace(mapped, coordinates=place(embedding, points, rows, settings=placing, report=report_placed))


def _fit(
    points: NDArray[np.float32], settings: Mapping[str, Any], report: Callable[[int, float], None]
) -> tuple[openTSNE.TSNEEmbedding, TsneMap]:
    n = len(points)
    k = int(3 * settings["perplexity"])
    assert 1 <= k < n, (settings["perplexity"], n)
    index = _knn_index(points, settings, k)
    affinities = PerplexityBasedNN(
        knn_index=_searched(index, settings), perplexity=settings["perplexity"], n_jobs=settings["n_jobs"]
    )
    tsne = openTSNE.TSNE(**settings, callbacks=_Reporter(report), callbacks_every_iters=_ITERATIONS_PER_REPORT)
    embedding = tsne.fit(points, affinities=affinities)
    coordinates = np.asarray(embedding, dtype=np.float32)
    if not np.isfinite(coordinates).all():
        raise InputError(
            f"reduce.tsne.learning_rate: {settings['learning_rate']} made the map diverge; use auto or a lower value"
        )
    return embedding, TsneMap(
        coordinates=coordinates,
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


def _searched(index: KNNIndex, settings: Mapping[str, Any]) -> PrecomputedNeighbors:
    """The neighbours that a search finds: searching first tells its errors from those of the map."""
    try:
        return PrecomputedNeighbors(*index.build())
    except (TypeError, ValueError) as error:
        given = {key: settings[key] for key in ("neighbors", "metric", "metric_params", "knn_kwargs")}
        raise InputError(f"reduce.tsne: the neighbour search refuses {given}: {error}") from None


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
