"""A folder of benchmarks/label_noise as its phase (a) leaves it, with planted labels that are easy to find."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from made_up import NETWORK, class_blobs, write_embedding, write_features, write_manifest, write_predictions
from numpy.typing import NDArray

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.overrides import write_overrides
from pipeline.artifacts.tables import write_parquet
from pipeline.datasets.label_noise import plant
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reduction.quality import exact_neighbours

STAGES = ("finetune", "extract", "reduce", "filter")


def write_case(folder: Path, *, n_per_class: int = 60, **about: Any) -> NDArray[np.bool_]:
    """Four classes far apart, a tenth of the labels wrong, of which the filter has dropped the first two.

    Args:
        about: keys of case.json that differ from those here.

    Returns:
        (N,), which labels are wrong.
    """
    rng = np.random.default_rng(0)
    features, truth = class_blobs(rng, 4, n_per_class, 8)
    labels = plant(truth, "symmetric", 0.1, images=np.zeros((len(truth), 1, 1, 3), dtype=np.uint8), rng=rng)
    wrong = np.not_equal(labels, truth)
    data = DataPaths(root=folder / "data")
    write_manifest(data, "train", labels)
    write_features(data, features, features[:4])
    write_predictions(data, truth)
    probabilities = _probabilities(features, truth)
    write_array(data.probabilities(NETWORK), probabilities)
    write_array(data.training_confidence(NETWORK), probabilities[np.arange(len(labels)), labels])
    neighbours = exact_neighbours(features, np.arange(len(truth)), 25).tolist()
    write_embedding(data, features[:, :2], neighbours)
    write_overrides(data.overrides, [])
    write_parquet(data.points(NETWORK), pa.table({"is_noise": wrong & (np.cumsum(wrong) <= 2)}))
    write_json(data.finetune_metrics(NETWORK), {"top1": 0.75})
    write_json(data.extract_metrics(NETWORK), {"train_top1": 0.5})
    for stage in STAGES:
        file = WorkPaths(root=folder / "work").resources(f"{stage}@{NETWORK}")
        write_json(file, {"wall_s": 1.5, "peak_memory_mb": 300.0})
    write_array(folder / "truth.npy", truth)
    case = {"case": folder.name, "kind": "symmetric", "rate": 0.1, "variant": "scratch", "folds": 5, "weights": None}
    write_json(folder / "case.json", {**case, "network": NETWORK, "steps": 30, "batch_size": 32, **about})
    return wrong


def _probabilities(features: NDArray[np.float32], truth: NDArray[np.int64]) -> NDArray[np.float32]:
    """(N, 4) that follow the distance to the classes' means."""
    centres = np.stack([features[truth == label].mean(axis=0) for label in range(4)])
    odds = np.exp(-np.linalg.norm(features[:, None] - centres, axis=2) / 3)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), dtype=np.float32)
