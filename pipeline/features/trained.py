"""Trained extractors: their metrics, and the alignment of their feature spaces."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from pipeline.artifacts.prepared import PreparedData
from pipeline.config.finetune import FinetuneConfig
from pipeline.models.network import Network
from pipeline.training.dynamics import TrainingDynamics
from pipeline.training.evaluation import Evaluation
from pipeline.training.settings import TrainSettings

Float = NDArray[np.float64]

# Rows transformed at a time, in double precision.
_ROWS = 4096


class PairedSums:
    """Sufficient statistics of a similarity fit over pairs of rows, added in any blocks.

    Attributes:
        values: (1 + 2 D + 2 + D * D,) float64: pairs, the sums of the sources and of the targets, their sums of
            squares, and the cross products. One array, so that several processes can add theirs.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self.values = np.zeros(1 + 2 * dimensions + 2 + dimensions**2)

    def add(self, source: NDArray[np.floating], target: NDArray[np.floating]) -> None:
        """Add the pairs of rows of `source` and `target`, both (B, D)."""
        assert source.shape == target.shape == (len(source), self._dimensions), (source.shape, target.shape)
        x, y = source.astype(np.float64), target.astype(np.float64)
        squares = [np.vdot(x, x), np.vdot(y, y)]
        self.values += np.concatenate([[len(x)], x.sum(0), y.sum(0), squares, (x.T @ y).ravel()])

    def centered(self) -> tuple[Float, Float, Float, float, float]:
        """Return mean source (D,), mean target (D,), cross products (D, D) and sums of squares of the centered rows."""
        d = self._dimensions
        count, (source, target) = self.values[0], self.values[1 : 1 + 2 * d].reshape(2, d) / self.values[0]
        source_squares, target_squares = self.values[1 + 2 * d : 3 + 2 * d]
        cross = self.values[3 + 2 * d :].reshape(d, d) - count * np.outer(source, target)
        return (
            source,
            target,
            cross,
            float(source_squares - count * source @ source),
            float(target_squares - count * target @ target),
        )


@dataclass(frozen=True, kw_only=True)
class SimilarityTransform:
    """The transform x -> scale * (x - source_mean) @ rotation + target_mean.

    Attributes:
        rotation: (D, D), orthogonal; may reflect.
        explained: fraction of the target's variance that the transformed source explains, 0 to 1.
    """

    rotation: Float
    scale: float
    source_mean: Float
    target_mean: Float
    explained: float

    def apply(self, features: NDArray[np.floating]) -> NDArray[np.float32]:
        """Transform features (N, D), in double precision; returns (N, D)."""
        centered = features.astype(np.float64) - self.source_mean
        return (self.scale * centered @ self.rotation + self.target_mean).astype(np.float32)

    def apply_to_rows(self, features: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Transform these rows of `features` (N, D), which may be memory-mapped, in place and in blocks."""
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            features[block] = self.apply(features[block])


def fit_similarity(sums: PairedSums) -> SimilarityTransform:
    """Fit the rotation, scale and shift that minimize the sum of squared distances from sources to targets.

    Two networks of one recipe learn similar features in another order and basis. This is the orthogonal Procrustes
    problem (Schoenemann 1966, A generalized solution of the orthogonal Procrustes problem; with scaling and centering,
    Schoenemann & Carroll 1970). Distances between images of one network change only by the scale.

    Raises:
        ValueError: all sources are equal, or all targets are.
    """
    source_mean, target_mean, cross, source_squares, target_squares = sums.centered()
    # A variance below the rounding error of sums of equal numbers counts as zero.
    noise = np.finfo(np.float64).eps * sums.values[0] * len(source_mean)
    for mean, squares in ((source_mean, source_squares), (target_mean, target_squares)):
        if squares <= noise * (mean @ mean):
            raise ValueError("all features are equal")
    try:
        left, singular, right = scipy.linalg.svd(cross)
    except scipy.linalg.LinAlgError:
        # The default algorithm can fail where there are fewer images than features; this one is slower.
        left, singular, right = scipy.linalg.svd(cross, lapack_driver="gesvd")
    return SimilarityTransform(
        rotation=left @ right,
        scale=float(singular.sum() / source_squares),
        source_mean=source_mean,
        target_mean=target_mean,
        explained=float(singular.sum() ** 2 / (source_squares * target_squares)),
    )


@dataclass(frozen=True, kw_only=True)
class TrainedExtractor:
    """An extractor's network: that of one fold, or the only one.

    Attributes:
        n_train: images that it was trained on.
        train_loss: in nats.
        confidence: (N,) float32, mean confidence in each image's label during training; NaN for other images.
        dynamics: of the training; None if none was recorded.
    """

    model: Network
    settings: TrainSettings
    n_train: int
    train_loss: float
    confidence: NDArray[np.float32]
    dynamics: TrainingDynamics | None


def mean_confidence(networks: Sequence[TrainedExtractor]) -> NDArray[np.float32]:
    """Return the mean confidence (N,) float32 over the networks that trained on each image; NaN without one."""
    stacked = np.stack([trained.confidence for trained in networks])
    counts = np.isfinite(stacked).sum(axis=0)
    return np.where(counts > 0, np.nansum(stacked, axis=0) / np.maximum(counts, 1), np.nan).astype(np.float32)


def mean_dynamics(networks: Sequence[TrainedExtractor]) -> TrainingDynamics | None:
    """Return the means over the networks that trained on each image, NaN without one; None if a network has none.

    A label that a network never learned counts as forgotten in each of its epochs. If no network learned it, the mean
    is infinite.
    """
    found = [trained.dynamics for trained in networks if trained.dynamics is not None]
    if len(found) < len(networks):
        return None
    epochs = [run.settings.batch_sizes.examples(run.settings.steps) / run.n_train for run in networks]
    margins = np.stack([dynamics.margin for dynamics in found])
    events = np.stack([dynamics.forgetting for dynamics in found])
    counted = np.where(np.isinf(events), np.array(epochs, dtype=np.float32)[:, None], events)
    counts = np.isfinite(margins).sum(axis=0)
    divisor = np.where(counts > 0, counts, np.nan)
    never = (counts > 0) & ~np.isfinite(events).any(axis=0)
    return TrainingDynamics(
        margin=(np.nansum(margins, axis=0) / divisor).astype(np.float32),
        forgetting=np.where(never, np.inf, np.nansum(counted, axis=0) / divisor).astype(np.float32),
    )


def extractor_metrics(
    config: FinetuneConfig, data: PreparedData, networks: Sequence[TrainedExtractor], results: Sequence[Evaluation]
) -> dict[str, Any]:
    """Return the metrics on the test images: means over folds, and those of each fold."""
    labels = data.test.labels
    settings = dataclasses.asdict(networks[0].settings)
    if config.trainable == "head":
        settings = {key: settings[key] for key in ("network", "stem", "n_classes", "format", "seed")}
    folds: list[dict[str, Any]] = [
        {
            "top1": result.top1,
            "balanced_accuracy": result.balanced_accuracy(labels),
            "recall_per_class": {
                name: _recall(result.correct[labels == label]) for label, name in enumerate(data.class_names)
            },
            "test_loss": result.loss,
            "train_loss": trained.train_loss,
        }
        for trained, result in zip(networks, results, strict=True)
    ]
    means = {key: float(np.mean([fold[key] for fold in folds])) for key in folds[0] if key != "recall_per_class"}
    recalls = {name: float(np.mean([fold["recall_per_class"][name] for fold in folds])) for name in data.class_names}
    return {
        **means,
        "recall_per_class": recalls,
        "folds": [{**fold, "n_train": trained.n_train} for fold, trained in zip(folds, networks, strict=True)],
        "trained": config.trainable,
        "weights": config.weights,
        "settings": settings,
    }


def _recall(correct: NDArray[np.bool_]) -> float:
    """Return the fraction of a class's test images that are classified correctly; NaN without any, in files null."""
    return float(correct.mean()) if len(correct) else math.nan
