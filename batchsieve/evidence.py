"""Compute the inputs of scorers from features: components, neighbors, class probabilities and a t-SNE embedding."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsieve.arrays import Labels
from pipeline.config.reduce import TsneConfig, landmark_count
from pipeline.errors import InputError
from pipeline.features.linear import cross_validated_probabilities, probe_folds
from pipeline.reduction.checks import max_perplexity
from pipeline.reduction.pca import fit_pca
from pipeline.run_log import RunLog
from pipeline.typing import row_blocks

N_COMPONENTS = 50
"""Default number of principal components, as in params.yaml."""


def content_order(features: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows (N,) sorted by label, then by the bytes of their features (N, D).

    Folds, t-SNE and sums depend on the order of the rows. Results that are computed in this order do not depend on the
    order of the caller's samples.
    """
    rows = np.ascontiguousarray(features)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    order = np.argsort(keys, kind="stable")
    return order[np.argsort(codes[order], kind="stable")]


def principal_components(features: NDArray[np.float32], n_components: int, log: RunLog) -> NDArray[np.float32]:
    """Return principal components (N, d) of features (N, D), d = min(n_components, N); the features if D is no larger.

    Args:
        log: shows the progress.

    Raises:
        InputError: `n_components` is below 1.
    """
    if n_components < 1:
        raise InputError(f"n_components: {n_components}; give 1 or more")
    if features.shape[1] <= n_components:
        return np.ascontiguousarray(features)
    # Two passes fit the axes, and one transforms.
    with log.progress("principal components", 3 * len(row_blocks(features)), "blocks") as bar:

        def counted(task: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterator[Any]:
            for block in blocks:
                yield task(block)
                bar.update()

        return fit_pca(features, min(n_components, len(features)), map_fn=counted).transform(features, map_fn=counted)


def neighbor_rows(components: NDArray[np.float32], k: int, *, key: str, seed: int, log: RunLog) -> NDArray[np.int32]:
    """Return the rows (N, k) of the nearest other samples by components (N, d), nearest first.

    Args:
        key: the argument that gave `k`, for errors.
        seed: of the search above 100,000 samples.
        log: shows the progress.

    Raises:
        InputError: there are fewer than `k` other samples, or faiss is not installed.
    """
    n = len(components)
    if not 1 <= k < n:
        raise InputError(f"{key}: {k} neighbors of {n} samples; give at least 1 and at most {n - 1}")
    try:
        # From the extra `stages`: probabilities alone need no neighbors.
        from pipeline.reduction.neighbors import nearest_neighbors
    except ModuleNotFoundError as error:
        raise _needs_extra("features", error) from None
    with log.progress("nearest neighbors", n, "samples") as bar:
        return nearest_neighbors(components, k, seed=seed, report=bar.update).rows


def voted_probabilities(
    components: NDArray[np.float32],
    neighbors: NDArray[np.int32],
    labels: Labels,
    *,
    folds: int,
    seed: int,
    log: RunLog,
    fix: str,
) -> NDArray[np.float32]:
    """Estimate class probabilities (N, C) of each sample by models that were not fitted to it; rows sum to 1.

    They are the mean of two classifiers: a cross-validated logistic regression, and the vote of the sample's nearest
    neighbors, which exclude the sample.

    Args:
        components: (N, d).
        neighbors: (N, k).
        folds: of the cross-validation.
        seed: of the folds.
        log: shows the progress.
        fix: what the caller can do if samples are too few.

    Raises:
        InputError: too few samples for the folds, or only one class outside a fold.
    """
    if folds < 2:
        raise InputError(f"folds: {folds}; give 2 or more")
    n, n_classes = len(labels.codes), len(labels.classes)
    fold = probe_folds(labels.codes, folds, seed, key="labels", fix=fix)
    with log.progress("class probabilities", folds, "folds") as bar:
        probed = cross_validated_probabilities(
            components, labels.codes, folds=fold, n_classes=n_classes, report=bar.update
        )
    votes = np.zeros((n, n_classes), dtype=np.float32)
    np.add.at(votes, (np.arange(n)[:, None], labels.codes[neighbors]), np.float32(1 / neighbors.shape[1]))
    return np.asarray((probed.probabilities + votes) / 2, dtype=np.float32)


def tsne_coordinates(
    components: NDArray[np.float32],
    codes: NDArray[np.int64],
    *,
    perplexity: float,
    n_jobs: int,
    seed: int,
    log: RunLog,
) -> NDArray[np.float32]:
    """Return the t-SNE embedding (N, 2) of components (N, d).

    Above 200,000 samples t-SNE is fitted to landmarks, and the others are transformed to their embedding.

    Args:
        log: shows the progress.

    Raises:
        InputError: there are too few samples for the perplexity, a value is out of range, or openTSNE is not installed.
    """
    landmarks = landmark_count("auto", len(components))
    n = landmarks or len(components)
    if not 1 <= perplexity <= max_perplexity(n):
        embedded = f"{n} samples that t-SNE is fitted to" if landmarks else f"{n} samples"
        raise InputError(
            f"perplexity: {perplexity:g} with {embedded}; t-SNE needs at least 1 and more than three times as many "
            "samples: give another perplexity or more samples, or set the scorer's space: components"
        )
    if n_jobs < 1:
        raise InputError(f"n_jobs: {n_jobs}; give 1 or more")
    try:
        from pipeline.embedding import training_tsne_with_progress
    except ModuleNotFoundError as error:
        raise _needs_extra("scorer", error) from None
    settings = TsneConfig(perplexity=float(perplexity), n_jobs=n_jobs, random_state=seed)
    return training_tsne_with_progress(
        components, codes, settings, landmarks=landmarks, log=log, name="t-SNE"
    ).coordinates


def _needs_extra(key: str, error: ModuleNotFoundError) -> InputError:
    return InputError(f"{key}: need the module {error.name}, which is not installed; install batchsieve[stages]")
