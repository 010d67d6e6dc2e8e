"""Stratified, reproducible splits: training, validation and test rows, folds and subsets."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.image_set import DecodedImage, ImageSet, UnreadableImage

# Tags that make the splits for different purposes independent under one seed.
_PART, _TEST, _VAL, _FOLDS = "part", "test", "val", "folds"


def subset_mask(paths: Sequence[str], labels: Sequence[int], share: float, *, seed: int) -> NDArray[np.bool_]:
    """Return a mask (N,) bool of the training rows to use, at least two of a class that has two; see `_sample`."""
    return _sample(paths, labels, share, f"{seed}/{_PART}", min_count=2, min_rest=0)


def choose_test_rows(
    paths: Sequence[str], labels: Sequence[int] | NDArray[np.int64], share: float, *, seed: int
) -> NDArray[np.bool_]:
    """Return a mask (N,) bool of the test rows; at least two of a class that has three stay; see `_sample`."""
    return _sample(paths, labels, share, f"{seed}/{_TEST}", min_rest=2)


def choose_val_rows(
    paths: Sequence[str], labels: Sequence[int] | NDArray[np.int64], share: float, *, seed: int
) -> NDArray[np.bool_]:
    """Return a mask (N,) bool of the rows to flag `val`; at least one of a class that has two stays; see `_sample`."""
    return _sample(paths, labels, share, f"{seed}/{_VAL}", min_rest=1)


def assign_folds(
    paths: Sequence[str],
    labels: Sequence[int] | NDArray[np.int64],
    count: int,
    *,
    seed: int,
    contents: Sequence[str],
) -> NDArray[np.int32]:
    """Return the fold (N,) int32 of each row, 0 to `count` - 1.

    The images of each class are ranked by a hash of their paths and cut into folds that differ by at most one image.
    Adding or removing an image then moves at most one other image of its class across each cut, and none of another
    class. Afterwards copies join the fold of the first image with their content, regardless of their labels: a network
    that has seen a copy has seen the image.

    Args:
        contents: (N,) hashes of the images' content.
    """
    classes = np.asarray(labels, dtype=np.int64)
    hashes = _hashes(paths, f"{seed}/{_FOLDS}")
    folds = np.zeros(len(classes), dtype=np.int32)
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        ranked = rows[np.argsort(hashes[rows], kind="stable")]
        # Classes begin at different folds; otherwise the first fold would get the odd image of each class.
        folds[ranked] = (np.arange(len(rows)) * count // len(rows) + label) % count
    _, firsts, group = np.unique(np.asarray(contents), return_index=True, return_inverse=True)
    return folds[firsts[group]]


def _sample(
    paths: Sequence[str],
    labels: Sequence[int] | NDArray[np.int64],
    share: float,
    key: str,
    *,
    min_count: int = 1,
    min_rest: int,
) -> NDArray[np.bool_]:
    """Flag round(share * n) rows of each class, at least `min_count`.

    Leave at least `min_rest` unflagged where the class has enough rows for both.

    Images are ranked by a hash of their path. Adding or removing an image then moves at most one other image of its
    class across the border, and none of another class: a test split is stable under additions.
    """
    classes = np.asarray(labels, dtype=np.int64)
    hashes = _hashes(paths, key)
    flags = np.zeros(len(classes), dtype=np.bool_)
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        count = max(min_count, min(round(share * len(rows)), len(rows) - min_rest))
        flags[rows[np.argsort(hashes[rows], kind="stable")[:count]]] = True
    return flags


def _hashes(paths: Sequence[str], key: str) -> NDArray[np.str_]:
    return np.array([hashlib.sha256(f"{key}/{path}".encode()).hexdigest() for path in paths], dtype="U64")


def subsample(images: ImageSet, share: float, *, seed: int) -> tuple[ImageSet, frozenset[str]]:
    """Return the data set with a share of each class's training images, and the paths of the excluded ones.

    With one seed, a smaller subset is part of a larger one. Test images stay.

    Args:
        share: above 0 and below 1; at least two images of a class stay where it has two, to train and to tune on.
    """
    paths = [sample.path for sample in images.train]
    selected = subset_mask(paths, [sample.label for sample in images.train], share, seed=seed)
    excluded = frozenset(path for path, stays in zip(paths, selected, strict=True) if not stays)

    def decode() -> Iterator[DecodedImage | UnreadableImage]:
        return (image for image in images.decode() if image.path not in excluded)

    train = tuple(sample for sample in images.train if sample.path not in excluded)
    return replace(images, train=train, decode=decode), excluded
