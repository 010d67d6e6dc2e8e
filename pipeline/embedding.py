"""Compute principal components, nearest neighbors and t-SNE embeddings from features: the filter's inputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, write_array
from pipeline.config.reduce import ReduceConfig, TsneConfig, landmark_count
from pipeline.errors import InputError
from pipeline.reduction.checks import check_perplexity, check_settings
from pipeline.reduction.landmarks import check_landmarks
from pipeline.reduction.neighbors import (
    Neighbors,
    PointsOf,
    exact_neighbors,
    exact_neighbors_by_network,
    expected_same_fold_share,
    knn_label_accuracy,
    nearest_neighbors,
    neighbor_recall,
    neighbors_by_network,
    quality_sample,
    same_fold_share,
)
from pipeline.reduction.pca import FittedPca, fit_pca
from pipeline.reduction.tsne import TsneResult, fit_training_tsne, fit_tsne
from pipeline.run_log import RunLog
from pipeline.typing import MapFn


@dataclass(frozen=True, kw_only=True)
class FoldFeatures:
    """Features of N images by each of K networks, aligned with those of the first.

    Attributes:
        features: (K, N, D) float32, may be memory-mapped.
        folds: (N,), the network that did not train on the image.
    """

    features: NDArray[np.float32]
    folds: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult:
    """Reduced features of N images.

    Attributes:
        axes: the fitted PCA; None without PCA.
        components: (N, d) float32, memory-mapped.
        embeddings: the main one, then those of `reduce.extra_embeddings`.
        neighbors: by components; with folds, each image among all images by the network of its fold.
        metrics: quality and settings.
    """

    axes: FittedPca | None
    components: NDArray[np.float32]
    embeddings: list[TsneResult]
    neighbors: Neighbors
    metrics: dict[str, Any]

    @property
    def coordinates(self) -> NDArray[np.float32]:
        """(M, N, 2) of all embeddings."""
        return np.stack([embedding.coordinates for embedding in self.embeddings])


def embed(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    config: ReduceConfig,
    *,
    components_file: Path,
    log: RunLog,
    map_fn: MapFn,
    by_network: FoldFeatures | None = None,
) -> EmbeddingResult:
    """Compute principal components, nearest neighbors and t-SNE embeddings of features (N, D).

    Args:
        labels: (N,), used only to choose landmarks and to measure quality.
        components_file: file to write the components to; later steps memory-map it.
        map_fn: runs independent tasks, such as extra embeddings.
        by_network: with folds, the features by every network, from which `features` were chosen.

    Raises:
        InputError: the settings do not fit the number of images.
    """
    landmarks = check_reduction(config, features, labels)
    axes, components = _components(features, config, components_file, log, map_fn)
    embeddings = _fit_embeddings(components, labels, config, landmarks, log, map_fn)
    neighbors, quality = _neighbors(components, axes, embeddings[0], labels, config, by_network)
    log.info(
        f"embedding of {len(features)} images: KL divergence {embeddings[0].kl_divergence:.3f}, "
        f"{quality['neighbour_preservation']:.1%} of {config.n_neighbors} nearest neighbors preserved"
    )
    metrics = {
        "pca": _pca_metrics(axes),
        "kl_divergence": embeddings[0].kl_divergence,
        **quality,
        "neighbour_search": neighbors.search,
        "tsne": {"requested": config.tsne.model_dump(), "effective": embeddings[0].effective},
        "maps": _embedding_metrics(config, embeddings, landmarks),
    }
    return EmbeddingResult(
        axes=axes, components=components, embeddings=embeddings, neighbors=neighbors, metrics=metrics
    )


@dataclass(frozen=True, kw_only=True)
class ReducedFeatures:
    """Reduced features of N images without an embedding: components (N, d) float32, neighbors by them, and metrics."""

    components: NDArray[np.float32]
    neighbors: Neighbors
    metrics: dict[str, Any]


def reduce_features(
    features: NDArray[np.float32], config: ReduceConfig, *, components_file: Path, log: RunLog, map_fn: MapFn
) -> ReducedFeatures:
    """Compute principal components and nearest neighbors of features (N, D), as `embed` does, without t-SNE.

    Raises:
        InputError: the settings do not fit the number of images.
    """
    check_settings(*features.shape, n_components=config.pca.n_components, neighbors=config.n_neighbors)
    axes, components = _components(features, config, components_file, log, map_fn)
    neighbors = nearest_neighbors(components, config.n_neighbors, seed=config.tsne.random_state)
    metrics = {"pca": _pca_metrics(axes), "neighbour_search": neighbors.search}
    return ReducedFeatures(components=components, neighbors=neighbors, metrics=metrics)


def check_reduction(config: ReduceConfig, features: NDArray[np.float32], labels: NDArray[np.int64]) -> int | None:
    """Check that the settings fit the training images; return the number of landmarks, None without landmarks.

    Args:
        features: (N, D); only their shape counts.
        labels: (N,).

    Raises:
        InputError: names the key, its value and a fix.
    """
    n = len(labels)
    check_settings(*features.shape, n_components=config.pca.n_components, neighbors=config.n_neighbors)
    landmarks = landmark_count(config.landmarks, n)
    for number in range(1 + len(config.extra_embeddings)):
        settings = config.embedding_settings(number)
        key = f"reduce.extra_embeddings[{number - 1}]" if number else "reduce.tsne"
        check_perplexity(landmarks or n, settings.perplexity, key=f"{key}.perplexity")
        if landmarks:
            n_classes = len(np.unique(labels))
            check_landmarks(landmarks, n=n, n_classes=n_classes, metric=settings.metric, key=f"{key}.metric")
    return landmarks


def tsne_with_progress(points: NDArray[np.float32], tsne: TsneConfig, log: RunLog, name: str) -> TsneResult:
    """Run t-SNE on points (N, d), and show its progress as `name`."""
    with log.progress(name, _iterations(tsne), "iterations") as bar:

        def report(done: int, divergence: float) -> None:
            bar.update(done, f"KL {divergence:.3f}")

        return fit_tsne(points, tsne.model_dump(), report=report)


def training_tsne_with_progress(
    points: NDArray[np.float32],
    labels: NDArray[np.int64],
    tsne: TsneConfig,
    *,
    landmarks: int | None,
    log: RunLog,
    name: str,
) -> TsneResult:
    """Run `fit_training_tsne` on points (N, d) with labels (N,), and show its progress, without landmarks as `name`."""
    if landmarks is None:
        return tsne_with_progress(points, tsne, log, name)
    with (
        log.progress("t-SNE of the landmarks", _iterations(tsne), "iterations") as bar,
        log.progress("placement of other images", len(labels) - landmarks, "images") as placement_bar,
    ):
        return fit_training_tsne(
            points,
            labels,
            tsne.model_dump(),
            landmarks=landmarks,
            report=lambda done, divergence: bar.update(done, f"KL {divergence:.3f}"),
            report_transformed=placement_bar.update,
        )


def _components(
    features: NDArray[np.float32], config: ReduceConfig, file: Path, log: RunLog, map_fn: MapFn
) -> tuple[FittedPca | None, NDArray[np.float32]]:
    """Return the axes, and the components, which are memory-mapped from `file`."""
    axes = _axes(features, config, log, map_fn)
    write_array(file, axes.transform(features, map_fn=map_fn) if axes else features)
    return axes, open_array(file, dtype=np.float32, ndim=2, rows=len(features))


def _axes(features: NDArray[np.float32], config: ReduceConfig, log: RunLog, map_fn: MapFn) -> FittedPca | None:
    if config.pca.n_components is None:
        return None
    axes = fit_pca(features, config.pca.n_components, map_fn=map_fn)
    log.info(
        f"PCA: {config.pca.n_components} components of {features.shape[1]} features explain "
        f"{axes.explained_variance_ratio.sum():.1%} of the variance"
    )
    return axes


def _fit_embeddings(
    components: NDArray[np.float32],
    labels: NDArray[np.int64],
    config: ReduceConfig,
    landmarks: int | None,
    log: RunLog,
    map_fn: MapFn,
) -> list[TsneResult]:
    """Fit the main embedding here, then collect the extra ones, which workers may have started before."""
    extra = [config.embedding_settings(number).model_dump() for number in range(1, 1 + len(config.extra_embeddings))]
    results = map_fn(partial(fit_training_tsne, components, labels, landmarks=landmarks), extra)
    name = "t-SNE of the training images"
    main = training_tsne_with_progress(components, labels, config.tsne, landmarks=landmarks, log=log, name=name)
    embeddings = [main]
    if extra:
        with log.progress("extra t-SNE embeddings", len(extra), "embeddings") as bar:
            for number in range(len(extra)):
                embeddings.append(_next_embedding(results, number))
                bar.update(1, f"KL {embeddings[-1].kl_divergence:.3f}")
    return embeddings


def _next_embedding(results: Iterator[TsneResult], number: int) -> TsneResult:
    try:
        return next(results)
    except InputError as error:
        raise InputError(f"reduce.extra_embeddings[{number}]: {error}") from None


def _iterations(tsne: TsneConfig) -> int:
    return tsne.early_exaggeration_iter + tsne.n_iter


def _neighbors(
    components: NDArray[np.float32],
    axes: FittedPca | None,
    embedding: TsneResult,
    labels: NDArray[np.int64],
    config: ReduceConfig,
    by_network: FoldFeatures | None,
) -> tuple[Neighbors, dict[str, Any]]:
    """Return the neighbors, and quality measures (0 to 1) over a fixed sample of images and their exact neighbors."""
    rows, k, seed = quality_sample(len(labels)), config.n_neighbors, config.tsne.random_state
    before = exact_neighbors(components, rows, k)
    after = exact_neighbors(embedding.coordinates, rows, k)
    if by_network is None:
        neighbors = nearest_neighbors(components, k, seed=seed)
        return neighbors, _quality(neighbors, rows, before, after, before, labels)
    folds, points_of = by_network.folds, _components_of(by_network, axes)
    neighbors = neighbors_by_network(points_of, folds, k, seed=seed)
    exact = exact_neighbors_by_network(points_of, folds, rows, k)
    same_fold = {
        "expected": expected_same_fold_share(folds),
        "neighbours": same_fold_share(neighbors.rows, np.arange(len(folds)), folds),
        "components": same_fold_share(before, rows, folds),
        "map": same_fold_share(after, rows, folds),
    }
    return neighbors, {**_quality(neighbors, rows, before, after, exact, labels), "same_fold_share": same_fold}


def _components_of(by_network: FoldFeatures, axes: FittedPca | None) -> PointsOf:
    def points(network: int) -> NDArray[np.float32]:
        features = by_network.features[network]
        # Without `map_fn`, which would send parts of a memory-mapped file to workers.
        return axes.transform(features) if axes else features

    return points


def _quality(
    neighbors: Neighbors,
    rows: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    exact: NDArray[np.int64],
    labels: NDArray[np.int64],
) -> dict[str, Any]:
    """Return quality measures, 0 to 1, over the images `rows` (n,).

    Args:
        before, after: (n, k) exact nearest neighbors among the components and on the embedding.
        exact: (n, k) what `neighbors` would be by brute force.
    """
    k = neighbors.rows.shape[1]
    return {
        "quality_sample": len(rows),
        "quality_neighbours": k,
        "neighbour_preservation": neighbor_recall(after, before),
        "neighbour_search_recall": neighbor_recall(neighbors.rows[rows], exact),
        "knn_label_accuracy": {
            "components": knn_label_accuracy(before, rows, labels),
            "map": knn_label_accuracy(after, rows, labels),
        },
    }


def _embedding_metrics(
    config: ReduceConfig, embeddings: Sequence[TsneResult], landmarks: int | None
) -> list[dict[str, Any]]:
    """Return settings, divergence, and the number and seed of the landmarks for each embedding."""
    settings = [config.embedding_settings(number) for number in range(len(embeddings))]
    return [
        {
            "kl_divergence": embedding.kl_divergence,
            "landmarks": landmarks and {"count": landmarks, "seed": requested.random_state},
            "tsne": {"requested": requested.model_dump(), "effective": embedding.effective},
        }
        for embedding, requested in zip(embeddings, settings, strict=True)
    ]


def _pca_metrics(axes: FittedPca | None) -> dict[str, Any] | None:
    if axes is None:
        return None
    ratios = axes.explained_variance_ratio.astype(np.float64)
    return {
        "n_components": len(ratios),
        "explained_variance_ratio": float(ratios.sum()),
        "explained_variance_ratio_per_component": ratios.tolist(),
    }
