"""The interface of data sets: paths and labels first, then pixels one image at a time."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError

SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One image by `path` (unique within the data set, forward slashes) and class number."""

    path: str
    label: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedImage:
    """`pixels` is uint8 (S, S, 3), RGB; `sha256` is of the file's bytes, or of the original pixels.

    `brightest_16_bit` is the value of the brightest pixel of 16-bit grays, 0 to 65,535; None for other images.
    """

    path: str
    pixels: NDArray[np.uint8]
    sha256: str
    brightest_16_bit: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadableImage:
    """An image that cannot be decoded; `reason` is a few words without the path."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A data set before its pixels are read.

    Attributes:
        class_names: by label.
        train: the training images in the order of their `sample_id`.
        test: the test images in the order of their `sample_id`.
        decode: yields every image of both splits once, in the order that reads fastest.
        files_in: folder within `prepare.path` that the paths are relative to ("" or "a/b"), if every image is a file
            there; None otherwise.
        n_relabelled: training images whose label a label file changed; None without a label file.
        description: how the files were read, for the log; empty for class folders.
    """

    class_names: tuple[str, ...]
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]
    decode: Callable[[], Iterator[DecodedImage | UnreadableImage]]
    files_in: str | None = None
    n_relabelled: int | None = None
    description: str = ""

    def samples(self, split: str) -> tuple[Sample, ...]:
        assert split in SPLITS, split
        return self.train if split == "train" else self.test

    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the labels (N,) int64 of a split."""
        return np.array([sample.label for sample in self.samples(split)], dtype=np.int64)

    def with_train_labels(self, labels: NDArray[np.int64]) -> Self:
        """Return the same images with other labels (N,) of the training images."""
        assert len(labels) == len(self.train), (len(labels), len(self.train))
        train = tuple(replace(sample, label=label) for sample, label in zip(self.train, labels.tolist(), strict=True))
        return replace(self, train=train)


class ProgressCounter(Protocol):
    """Counts up to the total of a progress display."""

    def update(self, n: int = 1) -> None: ...


class ProgressFactory(Protocol):
    """Opens a progress display of a job of `total` units; `RunLog.progress` is one."""

    def __call__(self, description: str, total: int, unit: str) -> AbstractContextManager[ProgressCounter]: ...


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options of a data set. Each data set reads those that apply.

    Attributes:
        path: local folder or archive; None for data sets without one.
        image_size: side of the decoded images in pixels.
        test_size: fraction of each class to hold out, if the data set has no test split.
        max_megapixels: larger images are unreadable.
        seed: of the split.
        downloads: folder for fetched archives.
        progress: shows downloads.
        exclude: paths of unreadable images to leave out.
        label_column: column of the labels in Parquet shards, metadata.csv or metadata.jsonl; None for `label`.
        draft: decode large JPEG files at a fraction of their size, see `decode_region`.
    """

    path: Path | None
    image_size: int
    test_size: float | None
    max_megapixels: float
    seed: int
    downloads: Path
    progress: ProgressFactory
    exclude: frozenset[str] = frozenset()
    label_column: str | None = None
    draft: bool = False


def check_classes(images: ImageSet, source: str) -> None:
    """Check that there are two classes, and of each two training images (one to validate on) and one test image.

    Raises:
        InputError: naming `source` and the first class that has too few.
    """
    if len(images.class_names) < 2:
        names = ", ".join(images.class_names) or "none"
        raise InputError(f"{source}: a classifier needs two classes or more, found: {names}; add images of another")
    for split, min_count in (("train", 2), ("test", 1)):
        counts = np.bincount(images.labels(split), minlength=len(images.class_names))
        rare = [name for name, count in zip(images.class_names, counts, strict=True) if count < min_count]
        if rare:
            count = counts[images.class_names.index(rare[0])]
            purpose = "one to train and one to validate on" if split == "train" else "one to test on"
            more = f" (and {len(rare) - 1} more classes)" if len(rare) > 1 else ""
            raise InputError(
                f"{source}: class {rare[0]} has {count} readable {split} images{more}, needs {purpose}; "
                "add images or remove the class"
            )
