"""Reading what `prepare` wrote."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.arrays import open_array
from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths


@dataclass(frozen=True, kw_only=True)
class PreparedSplit:
    """One split: `images` uint8 (N, H, W, 3) mapped from disk, `labels` int64 (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """Both splits; `mean` and `std` of the training images per channel, in units of 0 to 1."""

    train: PreparedSplit
    test: PreparedSplit
    class_names: tuple[str, ...]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def load_prepared(data: DataPaths) -> PreparedData:
    """Map the images and read labels and metrics.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others.
    """
    metrics = read_json(data.prepare_metrics)
    missing = [key for key in ("class_names", "image_size", "mean", "std") if key not in metrics]
    if missing:
        raise InputError(f"{data.prepare_metrics}: has no key {missing[0]}; run `dvc repro --force`")
    n_classes = len(metrics["class_names"])
    splits = {}
    for split in ("train", "test"):
        labels = read_parquet(data.manifest(split), ["label"])["label"].to_numpy()
        if not len(labels) or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= n_classes:
            raise InputError(
                f"{data.manifest(split)}: its labels are not those of the {n_classes} classes in "
                f"{data.prepare_metrics}; run `dvc repro --force`"
            )
        images = open_array(data.images(split), dtype=np.uint8, ndim=4, rows=len(labels))
        if images.shape[1:] != (metrics["image_size"],) * 2 + (3,):
            raise InputError(f"{data.images(split)}: images of {images.shape[1:]}; run `dvc repro`")
        splits[split] = PreparedSplit(images=images, labels=labels.astype(np.int64))
    return PreparedData(
        **splits,
        class_names=tuple(metrics["class_names"]),
        image_size=metrics["image_size"],
        mean=tuple(metrics["mean"]),
        std=tuple(metrics["std"]),
    )


def digest_of(data: DataPaths) -> str:
    """SHA-256 of the images and the manifests of both splits."""
    files = [
        *(data.images(split) for split in ("train", "test")),
        *(data.manifest(split) for split in ("train", "test")),
    ]
    return " ".join(sha256_of_file(path) for path in files)
