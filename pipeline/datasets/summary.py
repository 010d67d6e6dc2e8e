"""Figures about a prepared data set: counts, channel statistics, exact duplicates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.image_set import SPLITS, Sample
from pipeline.datasets.storage import StoredImages

_MAX_PAIRS = 20
_BLOCK_BYTES = 1 << 24


def summarize(stored: StoredImages, train_pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """The metrics of the `prepare` stage that follow from the images alone.

    Args:
        train_pixels: (N, S, S, 3) as stored, may be a memory map.
    """
    images = stored.images
    mean, std = channel_statistics(train_pixels)
    return {
        "class_names": list(images.class_names),
        "n_train": len(images.train),
        "n_test": len(images.test),
        "class_counts": {split: _class_counts(images.labels(split), images.class_names) for split in SPLITS},
        "mean": mean,
        "std": std,
        "duplicates": find_duplicates({split: images.samples(split) for split in SPLITS}, stored.sha256),
        "unreadable": [{"path": path, "reason": reason} for path, reason in stored.unreadable.items()],
    }


def channel_statistics(pixels: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Mean and (population) standard deviation per channel, over all images and places, in 0 to 1.

    Args:
        pixels: (N, H, W, 3), read in blocks of bounded size.

    Exact up to one rounding: it counts the 256 values first, so blocks leave no trace.
    """
    counts = np.zeros((3, 256), dtype=np.int64)
    rows = max(1, _BLOCK_BYTES // max(1, pixels[:1].nbytes))
    for start in range(0, len(pixels), rows):
        block = np.asarray(pixels[start : start + rows]).reshape(-1, 3)
        for channel in range(3):
            counts[channel] += np.bincount(block[:, channel], minlength=256)
    values = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]) ** 2).sum(axis=1)
    return mean.tolist(), np.sqrt(variance).tolist()


def find_duplicates(
    samples: Mapping[str, Sequence[Sample]], sha256: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Images of equal content: pairs of the first one's path and a later one's.

    `count` is the number of later ones (for `across`: of test images that are training images
    too); `pairs` holds the first 20.
    """
    first = {split: _first_by_hash(samples[split], sha256[split]) for split in SPLITS}
    pairs = {f"within_{split}": _repeats(first[split], samples[split], sha256[split]) for split in SPLITS}
    pairs["across"] = _repeats(first["train"], samples["test"], sha256["test"])
    return {name: {"count": len(found), "pairs": found[:_MAX_PAIRS]} for name, found in pairs.items()}


def _first_by_hash(samples: Sequence[Sample], sha256: Sequence[str]) -> dict[str, str]:
    first: dict[str, str] = {}
    for sample, digest in zip(samples, sha256, strict=True):
        first.setdefault(digest, sample.path)
    return first


def _repeats(first: Mapping[str, str], samples: Sequence[Sample], sha256: Sequence[str]) -> list[list[str]]:
    return [
        [first[digest], sample.path]
        for sample, digest in zip(samples, sha256, strict=True)
        if digest in first and first[digest] != sample.path
    ]


def _class_counts(labels: NDArray[np.int64], class_names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(class_names))
    return {name: int(count) for name, count in zip(class_names, counts, strict=True)}
