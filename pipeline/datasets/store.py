"""Write the pixels of a data set into memory-mapped files, and summarize them: counts, statistics, duplicates."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import create_array
from pipeline.datasets.decode import brightest_of
from pipeline.datasets.image_set import SPLITS, ImageSet, ProgressFactory, Sample, UnreadableImage, check_classes
from pipeline.errors import InputError

_MAX_PAIRS = 20
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class StoredImages:
    """The result of `store_images`.

    Attributes:
        images: the data set without the unreadable images.
        sha256: hashes of the images by split, in the order of rows.
        unreadable: reason by path, for the images that were left out.
        brightest_16_bit: value of the brightest pixel of all 16-bit grays, 0 to 65,535; None without such images.
    """

    images: ImageSet
    sha256: dict[str, list[str]]
    unreadable: dict[str, str]
    brightest_16_bit: int | None = None


def store_images(
    open_images: Callable[[frozenset[str]], ImageSet],
    arrays: Mapping[str, Path],
    *,
    stale_files: Sequence[Path],
    source: str,
    image_size: int,
    skip_unreadable: bool,
    progress: ProgressFactory,
) -> StoredImages:
    """Decode a data set into one uint8 array (N, S, S, 3) per split.

    Both files appear once every image is decoded. If unreadable images are skipped, the data set is opened and decoded
    again without them, since excluding them shifts rows and splits.

    Args:
        open_images: opens the data set without the paths that it receives.
        arrays: path of the array of each split.
        stale_files: files that belong to earlier arrays. They are deleted when the new arrays appear, so that a killed
            run leaves no files that do not fit the arrays.
        source: name of the data set in messages.
        image_size: side S in pixels.
        skip_unreadable: leave unreadable images out instead of raising.

    Raises:
        InputError: an image is unreadable and not skipped, a class has too few images, or the disk is full.
    """
    unreadable: dict[str, str] = {}
    while True:
        images = open_images(frozenset(unreadable))
        check_classes(images, source)
        try:
            sha256, brightest = _write(images, arrays, stale_files, image_size, progress)
        except _UnreadableImagesError as error:
            if not skip_unreadable:
                raise InputError(_describe(error.reasons, source)) from None
            unreadable |= error.reasons
            continue
        return StoredImages(
            images=images,
            sha256=sha256,
            unreadable=dict(sorted(unreadable.items())),
            brightest_16_bit=brightest,
        )


class _UnreadableImagesError(Exception):
    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()
        self.reasons = reasons


def _write(
    images: ImageSet,
    arrays: Mapping[str, Path],
    stale_files: Sequence[Path],
    image_size: int,
    progress: ProgressFactory,
) -> tuple[dict[str, list[str]], int | None]:
    """Decode into the arrays; returns the hashes by split, and the brightest pixel of 16-bit grays.

    Raises:
        _UnreadableImagesError: after decoding all images, if some are unreadable; no file appears.
    """
    positions = {sample.path: (split, row) for split in SPLITS for row, sample in enumerate(images.samples(split))}
    sha256 = {split: [""] * len(images.samples(split)) for split in SPLITS}
    reasons: dict[str, str] = {}
    brightest: int | None = None
    with ExitStack() as stack:
        out = {
            split: stack.enter_context(
                create_array(arrays[split], (len(images.samples(split)), image_size, image_size, 3), np.uint8)
            )
            for split in SPLITS
        }
        bar = stack.enter_context(progress("prepare images", len(positions), "images"))
        for image in images.decode():
            if isinstance(image, UnreadableImage):
                reasons[image.path] = image.reason
            else:
                split, row = positions[image.path]
                out[split][row], sha256[split][row] = image.pixels, image.sha256
                brightest = brightest_of(brightest, image.brightest_16_bit)
            bar.update()
        if reasons:
            raise _UnreadableImagesError(reasons)
        assert all(all(hashes) for hashes in sha256.values()), "an image was not decoded"
        for path in stale_files:
            path.unlink(missing_ok=True)
    return sha256, brightest


def _describe(reasons: Mapping[str, str], source: str) -> str:
    path = min(reasons)
    more = f" (and {len(reasons) - 1} more unreadable files)" if len(reasons) > 1 else ""
    return (
        f"{source}: {path}: {reasons[path]}{more}; fix or remove it, "
        "or set `prepare.unreadable: skip` to leave such files out"
    )


def summarize(stored: StoredImages, train_pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """Return the metrics of the `prepare` stage that depend only on the images.

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
    """Return mean and (population) standard deviation per channel, over all images and pixels, in units of 0 to 1.

    The 256 values are counted first, so the result is exact up to one rounding and independent of the blocks.

    Args:
        pixels: (N, H, W, 3), read in blocks of bounded size.
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
    """Find images of equal content, as pairs of the path of the first one and that of a later one.

    Args:
        samples: by split.
        sha256: hashes of the images' content, by split.

    Returns:
        For `within_train`, `within_test` and `across` (test images that are training images too): `count`, the number
        of later images, and `pairs`, the first 20 pairs.
    """
    first = {split: _first_by_hash(samples[split], sha256[split]) for split in SPLITS}
    pairs = {f"within_{split}": _repeats(first[split], samples[split], sha256[split]) for split in SPLITS}
    pairs["across"] = _repeats(first["train"], samples["test"], sha256["test"])
    return {name: {"count": len(repeats), "pairs": repeats[:_MAX_PAIRS]} for name, repeats in pairs.items()}


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
