"""t-SNE by openTSNE, and the checks of its settings."""

import math
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

# What features and settings must satisfy before anything is computed from them.


_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class FeatureFixHints:
    """What to do about features from which no map can be drawn, by what is wrong with them; ends of messages."""

    not_finite: str
    all_equal: str


EXTRACTOR_FIX_HINTS = FeatureFixHints(
    not_finite=(
        "the extractor has diverged: lower finetune.learning_rate, or delete the file if it is damaged, "
        "and run `dvc repro`"
    ),
    all_equal="the extractor has collapsed: lower finetune.learning_rate or use more images, and run `dvc repro`",
)


def check_features(features: NDArray[np.float32], source: str, mends: FeatureFixHints = EXTRACTOR_FIX_HINTS) -> None:
    """Refuse features from which no map can be drawn.

    Args:
        features: (N, D); read in blocks, so a memory map stays one.
        source: the file to name.
        mends: for whoever made them.

    Raises:
        InputError: a value is NaN or infinite, or all rows are equal.
    """
    first, all_equal = features[:1], True
    for start in range(0, len(features), _ROWS):
        block = features[start : start + _ROWS]
        bad = ~np.isfinite(block).all(axis=1)
        if bad.any():
            raise InputError(f"{source}: row {start + int(bad.argmax())} holds NaN or infinity; {mends.not_finite}")
        all_equal = all_equal and bool((block == first).all())
    if all_equal:
        raise InputError(
            f"{source}: all {len(features)} rows are equal, so the images cannot be told apart; {mends.all_equal}"
        )


def max_perplexity(n: int) -> float:
    """The largest perplexity for `n` points: t-SNE looks at 3 x perplexity neighbours of each."""
    return (n - 1) / 3


def check_settings(n: int, dimensions: int, *, n_components: int | None, neighbors: int) -> None:
    """Refuse settings that `n` training images with features of `dimensions` cannot meet.

    Raises:
        InputError: naming the key of the `reduce` section, its value and the largest that works.
    """
    most = min(n, dimensions)
    if n_components is not None and n_components > most:
        raise InputError(
            f"reduce.pca.n_components: {n_components} is more than {n} training images of {dimensions} features "
            f"have; give at most {most}, or null for no PCA"
        )
    if neighbors > n - 1:
        raise InputError(
            f"reduce.n_neighbors: {neighbors} is too many for {n} training images; give at most {max(n - 1, 0)}"
        )


def check_perplexity(n: int, perplexity: float, *, key: str) -> None:
    """Refuse a perplexity, given by `key`, that a map fitted to `n` images cannot have.

    Raises:
        InputError: naming the key, its value and the largest that works.
    """
    if perplexity > max_perplexity(n):
        largest = math.floor(max_perplexity(n) * 100) / 100
        raise InputError(f"{key}: {perplexity:g} is too large for a map of {n} images; give at most {largest:g}")


# One t-SNE map by openTSNE, of all points or of landmarks among which the others are placed.


# Each report costs one evaluation of the KL divergence, little beside ten iterations.
_ITERATIONS_PER_REPORT = 10


@dataclass(frozen=True, kw_only=True)
class TsneResult:
    """A map of N points.

    Attributes:
        coordinates: (N, 2) float32.
        kl_divergence: of the final map, without exaggeration; of the landmarks alone where there are any.
        effective: what openTSNE used where the settings left it the choice.
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


def fit_training_tsne(
    points: NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: Mapping[str, Any],
    *,
    landmarks: int | None,
    report: Callable[[int, float], None] = lambda *_: None,
    report_placed: Callable[[int], None] = lambda _: None,
) -> TsneResult:
    """`fit_tsne` of points (N, d), or of so many landmarks among them with all others placed by `transform`.

    Args:
        labels: (N,); every class has its share of the landmarks.
        settings: as for `fit_tsne`; `random_state` draws the landmarks too.
        landmarks: 3 x perplexity < landmarks < N, at least one for every class; None fits all points.
        report: as for `fit_tsne`.
        report_placed: called with the number of points placed since its last call.
    """
    if landmarks is None:
        return fit_tsne(points, settings, report=report)
    rows = landmark_rows(labels, landmarks, seed=settings["random_state"])
    embedding, mapped = _fit(points[rows], settings, report)
    placing = {**settings, "negative_gradient_method": mapped.effective["negative_gradient_method"]}
    return replace(mapped, coordinates=transform(embedding, points, rows, settings=placing, report=report_placed))


def _fit(
    points: NDArray[np.float32], settings: Mapping[str, Any], report: Callable[[int, float], None]
) -> tuple[openTSNE.TSNEEmbedding, TsneResult]:
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
    return embedding, TsneResult(
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
