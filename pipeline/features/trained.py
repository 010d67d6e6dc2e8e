"""Trained extractors, and what is told of them together."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.prepared import PreparedData
from pipeline.config.finetune import FinetuneConfig
from pipeline.models.network import Network
from pipeline.training.evaluate import Evaluation
from pipeline.training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class TrainedExtractor:
    """A network of one fold, or of all images.

    Attributes:
        n_train: images that it was trained on.
        train_loss: in nats.
        confidence: (N,) float32, how sure it was of each image's label while it trained; NaN where it was not.
    """

    model: Network
    settings: TrainSettings
    n_train: int
    train_loss: float
    confidence: NDArray[np.float32]


def mean_confidence(networks: Sequence[TrainedExtractor]) -> NDArray[np.float32]:
    """(N,) float32: over the networks that trained on the image; NaN where none did."""
    stacked = np.stack([trained.confidence for trained in networks])
    passes = np.isfinite(stacked).sum(axis=0)
    return np.where(passes > 0, np.nansum(stacked, axis=0) / np.maximum(passes, 1), np.nan).astype(np.float32)


def metrics_of(
    config: FinetuneConfig, data: PreparedData, networks: Sequence[TrainedExtractor], results: Sequence[Evaluation]
) -> dict[str, Any]:
    """Means over folds, and the same of each, on the test images."""
    labels = data.test.labels
    settings = dataclasses.asdict(networks[0].settings)
    if config.trained == "head":
        settings = {key: settings[key] for key in ("network", "stem", "n_classes", "format", "seed")}
    folds: list[dict[str, Any]] = [
        {
            "top1": result.top1,
            "balanced_accuracy": result.balanced_accuracy(labels),
            "recall_per_class": {
                name: float(result.correct[labels == label].mean()) for label, name in enumerate(data.class_names)
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
        "trained": config.trained,
        "weights": config.weights,
        "settings": settings,
    }
