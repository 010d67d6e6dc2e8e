"""Features to principal components, nearest neighbors and t-SNE embeddings: the input of the filter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, write_array
from pipeline.config.reduce import ReduceConfig, TsneConfig
from pipeline.errors import InputError
from pipeline.reduction.landmarks import check_landmarks, landmark_count
from pipeline.reduction.neighbors import (
    Neighbors,
    exact_neighbors,
    knn_label_accuracy,
    nearest_neighbors,
    neighbor_recall,
    quality_sample,
)
from pipeline.reduction.pca import FittedPca, fit_pca
from pipeline.reduction.tsne import TsneResult, check_perplexity, check_settings, fit_training_tsne, fit_tsne
from pipeline.run_log import RunLog
from pipeline.typing import MapFn


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult:
    """Components, neighbors and embeddings of N images.

    Attributes:
        axes: the fitted PCA; None without PCA.
        components: (N, d) float32, mapped from its file.
        embeddings: the main one, then those of `reduce.extra_embeddings`.
        metrics: quality and effective settings, as plain values.
    """

    axes: FittedPca | None
    components: NDArray[np.float32]
    embeddings: list[TsneResult]
    neighbours: Neighbors
    metrics: dict[str, Any]

    @property
    def coordinates(self) -> NDArray[np.float32]:
        """(M, N, 2) of all embeddings."""
        return np.stack([mapped.coordinates for mapped in self.embeddings])


def embed(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    config: ReduceConfig,
    *,
    components_file: Path,
    log: RunLog,
    run: MapFn,
) -> EmbeddingResult:
    """Principal components, nearest neighbors and t-SNE embeddings of features (N, D).

    Args:
        labels: (N,), used for the choice of landmarks and for quality metrics alone.
        components_file: file for the components, which later steps memory-map.
        run: map function that runs tasks.

    Raises:
        InputError: the settings do not fit the number of images.
    """
    landmarks = check_reduction(config, features, labels)
    axes = _axes(features, config, log, run)
    write_array(components_file, axes.project(features, run=run) if axes else features)
    components = open_array(components_file, dtype=np.float32, ndim=2, rows=len(features))
    maps = _training_embeddings(components, labels, config, landmarks, log, run)
    neighbours = nearest_neighbors(components, config.n_neighbors, seed=config.tsne.random_state)
    quality = _quality(components, maps[0], neighbours, labels)
    log.info(
        f"embedding of {len(features)} images: KL divergence {maps[0].kl_divergence:.3f}, "
        f"{quality['neighbour_preservation']:.1%} of {config.n_neighbors} nearest neighbors preserved"
    )
    metrics = {
        "pca": _pca_metrics(axes),
        "kl_divergence": maps[0].kl_divergence,
        **quality,
        "neighbour_search": neighbours.search,
        "tsne": {"requested": config.tsne.model_dump(), "effective": maps[0].effective},
        "maps": _embedding_metrics(config, maps, landmarks),
    }
    return EmbeddingResult(axes=axes, components=components, embeddings=maps, neighbours=neighbours, metrics=metrics)


def check_reduction(config: ReduceConfig, features: NDArray[np.float32], labels: NDArray[np.int64]) -> int | None:
    """Check the settings against the training images; returns the number of landmarks, None without landmarks."""
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
    """t-SNE of points (N, d), with a progress bar called `name`."""
    with log.progress(name, _iterations(tsne), "iterations") as bar:

        def report(done: int, divergence: float) -> None:
            bar.update(done, f"KL {divergence:.3f}")

        return fit_tsne(points, tsne.model_dump(), report=report)


def _axes(features: NDArray[np.float32], config: ReduceConfig, log: RunLog, run: MapFn) -> FittedPca | None:
    if config.pca.n_components is None:
        return None
    axes = fit_pca(features, config.pca.n_components, run=run)
    log.info(
        f"PCA: {config.pca.n_components} components of {features.shape[1]} features explain "
        f"{axes.explained_variance_ratio.sum():.1%} of the variance"
    )
    return axes


def _training_embeddings(
    components: NDArray[np.float32],
    labels: NDArray[np.int64],
    config: ReduceConfig,
    landmarks: int | None,
    log: RunLog,
    run: MapFn,
) -> list[TsneResult]:
    """The main embedding, computed in this process, then the extra ones, which workers may compute meanwhile."""
    extra = [config.embedding_settings(number).model_dump() for number in range(1, 1 + len(config.extra_embeddings))]
    results = run(partial(fit_training_tsne, components, labels, landmarks=landmarks), extra)
    maps = [_main_embedding(components, labels, config.tsne, landmarks, log)]
    if extra:
        with log.progress("extra t-SNE embeddings", len(extra), "embeddings") as bar:
            for number in range(len(extra)):
                maps.append(_extra_embedding(results, number))
                bar.update(1, f"KL {maps[-1].kl_divergence:.3f}")
    return maps


def _extra_embedding(results: Iterator[TsneResult], number: int) -> TsneResult:
    try:
        return next(results)
    except InputError as error:
        raise InputError(f"reduce.extra_embeddings[{number}]: {error}") from None


def _main_embedding(
    components: NDArray[np.float32], labels: NDArray[np.int64], tsne: TsneConfig, landmarks: int | None, log: RunLog
) -> TsneResult:
    if landmarks is None:
        return tsne_with_progress(components, tsne, log, "t-SNE of the training images")
    with (
        log.progress("t-SNE of the landmarks", _iterations(tsne), "iterations") as bar,
        log.progress("images embedded", len(labels) - landmarks, "images") as placed,
    ):
        return fit_training_tsne(
            components,
            labels,
            tsne.model_dump(),
            landmarks=landmarks,
            report=lambda done, divergence: bar.update(done, f"KL {divergence:.3f}"),
            report_placed=placed.update,
        )


def _iterations(tsne: TsneConfig) -> int:
    return tsne.early_exaggeration_iter + tsne.n_iter


def _quality(
    components: NDArray[np.float32], mapped: TsneResult, neighbours: Neighbors, labels: NDArray[np.int64]
) -> dict[str, Any]:
    """Fractions, 0 to 1, over a fixed sample of images and their exact nearest neighbors (Euclidean)."""
    rows, k = quality_sample(len(labels)), neighbours.rows.shape[1]
    before = exact_neighbors(components, rows, k)
    after = exact_neighbors(mapped.coordinates, rows, k)
    return {
        "quality_sample": len(rows),
        "quality_neighbours": k,
        "neighbour_preservation": neighbor_recall(after, before),
        "neighbour_search_recall": neighbor_recall(neighbours.rows[rows], before),
        "knn_label_accuracy": {
            "components": knn_label_accuracy(before, rows, labels),
            "map": knn_label_accuracy(after, rows, labels),
        },
    }


def _embedding_metrics(config: ReduceConfig, maps: Sequence[TsneResult], landmarks: int | None) -> list[dict[str, Any]]:
    """Settings, KL divergence, and count and seed of the landmarks of every embedding."""
    settings = [config.embedding_settings(number) for number in range(len(maps))]
    return [
        {
            "kl_divergence": mapped.kl_divergence,
            "landmarks": landmarks and {"count": landmarks, "seed": requested.random_state},
            "tsne": {"requested": requested.model_dump(), "effective": mapped.effective},
        }
        for mapped, requested in zip(maps, settings, strict=True)
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
