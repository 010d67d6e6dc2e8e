"""Read and check the filter's inputs: the training images as one network sees them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.metrics import ClassKeys, read_dynamics, read_metrics
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides
from pipeline.artifacts.stage_inputs import filter_inputs, input_paths
from pipeline.artifacts.tables import list_column, read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs

_MANIFEST = {
    "sample_id": pa.int64(),
    "path": pa.string(),
    "sha256": pa.string(),
    "label": pa.int64(),
    "label_name": pa.string(),
}
_PREDICTIONS = {"sample_id": pa.int64(), "predicted": pa.int64(), "confidence": pa.float32(), "fold": pa.int32()}
_EMBEDDING = {"sample_id": pa.int64(), "neighbours": pa.list_(pa.int32())}

_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class NetworkData:
    """One network's training images, row = sample_id.

    Attributes:
        images: the first columns of the points table.
        scorer_inputs: what scorers read.
        class_names: one per class.
        n_planted: number of labels that were changed on purpose; None if none was. Which ones is unknown here.
    """

    images: pa.Table
    scorer_inputs: ScorerInputs
    class_names: list[str]
    n_planted: int | None = None


@dataclass(frozen=True, kw_only=True)
class FilterInputs(NetworkData):
    """One network's training images with the manual overrides, by row."""

    overrides: dict[int, Override]


def input_files(data: DataPaths, network: str) -> list[Path]:
    """Return the files that `load_filter_inputs` reads, except for overrides.csv."""
    return input_paths(filter_inputs(network, data))


def load_filter_inputs(data: DataPaths, network: str) -> FilterInputs:
    """Read one network's results on the training images, and the manual overrides.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others.
    """
    loaded = load_network_data(data, network)
    overrides = locate_overrides(
        read_overrides(data.overrides),
        file=data.overrides,
        paths=loaded.images["path"].to_pylist(),
        sha256=loaded.images["sha256"].to_pylist(),
        class_names=loaded.class_names,
    )
    return FilterInputs(**vars(loaded), overrides=overrides)


def load_network_data(data: DataPaths, network: str) -> NetworkData:
    """Read one network's results on the training images.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others.
    """
    manifest = read_parquet(data.manifest("train"), _MANIFEST)
    n = len(manifest)
    _check_rows(manifest, n, data.manifest("train"))
    predictions = read_parquet(data.predictions(network), _PREDICTIONS)
    _check_rows(predictions, n, data.predictions(network))
    embedding = read_parquet(data.embedding(network), _EMBEDDING)
    _check_rows(embedding, n, data.embedding(network))
    labels = manifest["label"].to_numpy()
    # Classes without a training image have a name, too: a network may predict them.
    metrics = read_metrics(data.prepare_metrics, ClassKeys)
    class_names = metrics["class_names"]
    if labels.max() >= len(class_names):
        raise InputError(f"{data.manifest('train')}: has more classes than {data.prepare_metrics}; run `dvc repro`")
    margin, forgetting = read_dynamics(data.training_dynamics(network), n) or (None, None)
    images = manifest.select(list(_MANIFEST))
    for column in ("predicted", "confidence"):
        images = images.append_column(column, predictions[column])
    return NetworkData(
        images=images,
        scorer_inputs=ScorerInputs(
            labels=labels,
            embeddings=_embeddings(data.embeddings(network), n),
            components=_finite(
                open_array(data.components(network), dtype=np.float32, ndim=2, rows=n), 0, data.components(network), n
            ),
            neighbors=_neighbors(embedding, n, data.embedding(network)),
            probabilities=_probabilities(data.probabilities(network), n, len(class_names)),
            training_confidence=_training_confidence(data.training_confidence(network), n),
            training_margin=margin,
            training_forgetting=forgetting,
            folds=_folds(predictions),
        ),
        class_names=class_names,
        n_planted=metrics.get("n_planted"),
    )


def _check_rows(table: pa.Table, n: int, path: Path) -> None:
    if not np.array_equal(table["sample_id"].to_numpy(), np.arange(n)):
        raise InputError(
            f"{path}: its {len(table)} rows are not those of the {n} training images; delete it and run `dvc repro`"
        )


def _embeddings(path: Path, n: int) -> NDArray[np.float32]:
    coordinates = open_array(path, dtype=np.float32, ndim=3)
    if len(coordinates) == 0 or coordinates.shape[2] != 2:
        raise InputError(
            f"{path}: is {coordinates.shape}, needed are embeddings (M, {n}, 2); delete it and run `dvc repro`"
        )
    return _finite(coordinates, 1, path, n)


def _finite(values: NDArray[np.float32], axis: int, path: Path, n: int) -> NDArray[np.float32]:
    """Return the values if they are finite and have a row for each of `n` images along `axis`.

    Raises:
        InputError: naming the file and the first bad row.
    """
    if values.shape[axis] != n:
        raise InputError(f"{path}: has {values.shape[axis]} rows for {n} images; delete it and run `dvc repro`")
    # In blocks: the probabilities of a million images in a thousand classes fill the memory.
    for start in range(0, n, _ROWS):
        block = values[start : start + _ROWS] if axis == 0 else values[:, start : start + _ROWS]
        bad = ~np.isfinite(block).all(axis=tuple(other for other in range(values.ndim) if other != axis))
        if bad.any():
            raise InputError(f"{path}: row {start + int(bad.argmax())} is not finite; delete it and run `dvc repro`")
    return values


def _probabilities(path: Path, n: int, n_classes: int) -> NDArray[np.float32]:
    values = _finite(open_array(path, dtype=np.float32, ndim=2, rows=n), 0, path, n)
    if values.shape[1] != n_classes or values.min() < 0 or abs(values.sum(axis=1) - 1).max() > 1e-3:
        raise InputError(f"{path}: rows are not probabilities of {n_classes} classes; delete it and run `dvc repro`")
    return values


def _training_confidence(path: Path, n: int) -> NDArray[np.float32] | None:
    """Return (n,); None if training used no image, as when a head alone was fitted."""
    values = open_array(path, dtype=np.float32, ndim=1, rows=n)
    if (values < 0).any() or (values > 1).any():
        raise InputError(f"{path}: values are not probabilities; delete it and run `dvc repro`")
    return None if np.isnan(values).all() else values


def _folds(predictions: pa.Table) -> NDArray[np.int32] | None:
    """Return (N,); None if one network trained on all images."""
    folds: NDArray[np.int32] = predictions["fold"].to_numpy()
    return folds if folds.any() else None


def _neighbors(embedding: pa.Table, n: int, path: Path) -> NDArray[np.int32]:
    neighbors: NDArray[np.int32] = list_column(embedding, "neighbours", path)
    if not np.isin(neighbors, np.arange(n)).all():
        raise InputError(f"{path}: names neighbors that are not training images; delete it and run `dvc repro`")
    return neighbors
