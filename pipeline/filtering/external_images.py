"""Read the pictures of rows of external features: the option `--images` of `filter-features`."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.files import open_array
from pipeline.datasets.decode import UnreadableError, decode_files, resize
from pipeline.datasets.file_tree import unsafe_name
from pipeline.datasets.image_set import UnreadableImage
from pipeline.errors import InputError
from pipeline.filtering.external_features import ExternalFeatures
from pipeline.filtering.visualizer_project import PICTURE_SIDE
from pipeline.run_log import RunLog

_MAX_MEGAPIXELS = 178.0  # Pillow's own limit


def read_external_images(
    external: ExternalFeatures, images: Path, *, log: RunLog
) -> tuple[ExternalFeatures, NDArray[np.uint8]]:
    """Return the features with a path and a SHA-256 for each row, and the pictures (N, H, W, 3), uint8, RGB.

    Args:
        images: a folder, which the column path of the labels is relative to; its images are scaled to squares of
            `PICTURE_SIDE`. Or a .npy file, uint8 (N, H, W, 3), with a row for each row of the features; its rows are
            scaled if they are larger. Without paths they are named by their numbers.
        log: shows the progress.

    Raises:
        InputError: the labels have no paths, or one twice; an image is missing, damaged or outside the folder, or has
            another SHA-256 than the labels say; or the array is of another type or length.
    """
    if images.suffix.lower() == ".npy":
        pixels = _from_array(images, len(external.labels))
        paths = external.paths or [str(row) for row in range(len(pixels))]
        _check_distinct(paths)
        digests = external.sha256 or [hashlib.sha256(image.tobytes()).hexdigest() for image in pixels]
        return replace(external, paths=paths, sha256=digests), pixels
    if not images.is_dir():
        raise InputError(f"--images {images}: is neither a folder nor a .npy file; give one of them")
    if external.paths is None:
        raise InputError(
            f"--images {images}: the rows have no paths; give --labels with the column path, or the images as .npy"
        )
    _check_distinct(external.paths)
    pixels, digests = _from_folder(images, external.paths, log)
    for path, expected, found in zip(external.paths, external.sha256 or digests, digests, strict=True):
        if expected != found:
            raise InputError(
                f"--images {images}: {path} has not the SHA-256 of the labels; give the folder of these images, or "
                "make the labels and the features again"
            )
    return replace(external, sha256=digests), pixels


def _check_distinct(paths: Sequence[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise InputError(f"--labels: {path!r} is there twice; give each row its own path")
        seen.add(path)


def _from_array(file: Path, n: int) -> NDArray[np.uint8]:
    images = open_array(file, dtype=np.uint8, ndim=4)
    if len(images) != n or images.shape[3] != 3 or 0 in images.shape:
        raise InputError(f"--images {file}: is {images.shape} for {n} rows of features; give ({n}, H, W, 3), RGB")
    if max(images.shape[1:3]) <= PICTURE_SIDE:
        return images
    return np.stack([resize(Image.fromarray(image), PICTURE_SIDE) for image in images])


def _from_folder(folder: Path, paths: Sequence[str], log: RunLog) -> tuple[NDArray[np.uint8], list[str]]:
    """Return pictures and SHA-256 of the files, in the order of the paths."""
    pixels = np.empty((len(paths), PICTURE_SIDE, PICTURE_SIDE, 3), dtype=np.uint8)
    digests: list[str] = []
    with log.progress("read images", len(paths), "images") as bar:
        decoded = decode_files(_contents(folder, paths), PICTURE_SIDE, max_megapixels=_MAX_MEGAPIXELS, draft=True)
        for row, image in enumerate(decoded):
            if isinstance(image, UnreadableImage):
                raise InputError(
                    f"--images {folder}: {image.path}: {image.reason}; give the folder that the paths of --labels are "
                    "relative to, or leave the row out there and in the features"
                )
            pixels[row] = image.pixels
            digests.append(image.sha256)
            bar.update(1)
    return pixels, digests


def _contents(folder: Path, paths: Sequence[str]) -> Iterator[tuple[str, bytes | UnreadableError]]:
    for path in paths:
        file = folder / path
        if unsafe_name(path):
            yield path, UnreadableError("not a path below the folder")
        elif not file.is_file():  # a pipe would block its reader
            yield path, UnreadableError("no such file")
        else:
            try:
                yield path, file.read_bytes()
            except OSError as error:
                yield path, UnreadableError(error.strerror or type(error).__name__)
