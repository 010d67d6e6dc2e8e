"""Fit t-SNE embeddings by openTSNE, of all points or of landmarks."""

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
from pipeline.reduction.landmarks import landmark_rows, transform

# Each report evaluates the KL divergence once, which takes little time compared with ten iterations.
_ITERATIONS_PER_REPORT = 10


@dataclass(frozen=True, kw_only=True)
class TsneResult:
    """A t-SNE embedding of N points.

    Attributes:
        coordinates: (N, 2) float32.
        kl_divergence: of the final embedding, without exaggeration; with landmarks, of the landmarks only.
        effective: the values that openTSNE used for automatic settings.
    """

    coordinates: NDArray[np.float32]
    kl_divergence: float
    effective: dict[str, Any]


def fit_tsne(
    points: NDArray[np.float32],
    settings: Mapping[str, Any],
    *,
    report: Callable[[int, float], None],
) -> TsneResult:
    """Embed points (N, d) in the plane (Poličar, Stražar and Zupan, 2024, doi:10.18637/jss.v109.i03).

    The embedding has the same bits as `openTSNE.TSNE(**settings).fit(points)`. Repeats with the same
    `n_jobs` and `random_state` are equal; those with different `n_jobs` are not.

    Args:
        settings: arguments of `openTSNE.TSNE`; 3 x perplexity < N.
        report: called with the iterations done since its last call and the current KL divergence.

    Raises:
        InputError: the neighbor search refuses its settings, or the optimization diverged.
    """
    return _fit(points, settings, report)[1]


def fit_training_tsne(
    points: NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: Mapping[str, Any],
    *,
    landmarks: int | None,
    report: Callable[[int, float], None] = lambda *_: None,
    report_transformed: Callable[[int], None] = lambda _: None,
) -> TsneResult:
    """Run `fit_tsne` on points (N, d), or on landmarks among them and `transform` for all others.

    Args:
        labels: (N,); every class has its share of the landmarks.
        settings: as for `fit_tsne`; `random_state` also seeds the choice of landmarks.
        landmarks: 3 x perplexity < landmarks < N, at least one for every class; None fits all points.
        report: as for `fit_tsne`.
        report_transformed: called with the number of points transformed since its last call.
    """
    if landmarks is None:
        return fit_tsne(points, settings, report=report)
    rows = landmark_rows(labels, landmarks, seed=settings["random_state"])
    embedding, result = _fit(points[rows], settings, report)
    settings = {**settings, "negative_gradient_method": result.effective["negative_gradient_method"]}
    coordinates = transform(embedding, points, rows, settings=settings, report=report_transformed)
    return replace(result, coordinates=coordinates)


def _fit(
    points: NDArray[np.float32], settings: Mapping[str, Any], report: Callable[[int, float], None]
) -> tuple[openTSNE.TSNEEmbedding, TsneResult]:
    n = len(points)
    k = int(3 * settings["perplexity"])
    assert 1 <= k < n, (settings["perplexity"], n)
    index = _knn_index(points, settings, k)
    affinities = PerplexityBasedNN(
        knn_index=_search_neighbors(index, settings), perplexity=settings["perplexity"], n_jobs=settings["n_jobs"]
    )
    tsne = openTSNE.TSNE(**settings, callbacks=_Reporter(report), callbacks_every_iters=_ITERATIONS_PER_REPORT)
    # The start by PCA needs two columns. One of zeros changes no distance.
    start = points if points.shape[1] > 1 else np.pad(points, ((0, 0), (0, 1)))
    embedding = tsne.fit(start, affinities=affinities)
    coordinates = np.asarray(embedding, dtype=np.float32)
    if not np.isfinite(coordinates).all():
        raise InputError(
            f"reduce.tsne.learning_rate: {settings['learning_rate']} made the embedding diverge; "
            "use auto or a lower value"
        )
    return embedding, TsneResult(
        coordinates=coordinates,
        # Threads sum the divergence in the order in which they finish; one thread makes it reproducible.
        kl_divergence=float(embedding.optimize(0, n_jobs=1, callbacks=None).kl_divergence),
        effective=_effective(tsne, index, n),
    )


def _knn_index(points: NDArray[np.float32], settings: Mapping[str, Any], k: int) -> KNNIndex:
    method, metric = settings["neighbors"], settings["metric"]
    if metric == "precomputed":
        raise InputError("reduce.tsne.metric: precomputed needs distances, and these are features; use euclidean")
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
            f"reduce.tsne.metric_params: {type(index).__name__} has no parameters; set neighbors: exact, or remove them"
        )
    return index


def _search_neighbors(index: KNNIndex, settings: Mapping[str, Any]) -> PrecomputedNeighbors:
    """Search the neighbors before t-SNE, so that errors of the search are reported separately."""
    try:
        return PrecomputedNeighbors(*index.build())
    except (TypeError, ValueError) as error:
        values = {key: settings[key] for key in ("neighbors", "metric", "metric_params", "knn_kwargs")}
        raise InputError(f"reduce.tsne: the neighbor search rejects {values}: {error}") from None


def _effective(tsne: openTSNE.TSNE, index: KNNIndex, n: int) -> dict[str, Any]:
    """Resolve openTSNE's documented defaults; a test reproduces an embedding from these values alone."""
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
    """Turn openTSNE's iteration numbers, which restart in each phase, into increments."""

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report = report
        self._done = 0

    def optimization_about_to_start(self) -> None:
        self._done = 0

    def __call__(self, iteration: int, error: float, embedding: object) -> None:  # noqa: ARG002
        self._report(iteration - self._done, float(error))
        self._done = iteration
