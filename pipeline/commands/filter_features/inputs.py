"""Read and check the inputs of `filter-features`: features, labels and class probabilities, and pictures of rows."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.files import map_array
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.decode import UnreadableError, decode_files, resize
from pipeline.datasets.file_tree import unsafe_name
from pipeline.datasets.image_set import UnreadableImage
from pipeline.datasets.labels import class_name, read_label_records
from pipeline.errors import InputError
from pipeline.filtering.visualizer_project import PICTURE_SIDE
from pipeline.reduction.checks import FeatureFixHints, check_features
from pipeline.run_log import RunLog
from pipeline.scoring.registry import check_probabilities, column_order_problem

_FIX_HINTS = FeatureFixHints(
    not_finite="correct or leave out such rows; values must be within the range of float32",
    all_equal="give other features",
    too_small="multiply them by a constant",
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_MAX_LISTED = 10  # classes, in a message

_MAX_MEGAPIXELS = 178.0  # Pillow's own limit


@dataclass(frozen=True, kw_only=True)
class ExternalFeatures:
    """External features of N rows.

    Attributes:
        features: (N, D), finite.
        labels: (N,) indices into `class_names`.
        class_names: names of the C classes, in the order of `class_order`.
        paths: (N,) from the label file; None without such a column.
        sha256: (N,) of the files' contents; None without such a column.
        probabilities: (N, C), rows sum to 1; None without a file.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    class_names: list[str]
    paths: list[str] | None
    sha256: list[str] | None
    probabilities: NDArray[np.float32] | None


def read_external_features(features: Path, labels: Path | None, probabilities: Path | None) -> ExternalFeatures:
    """Read the files of the options `--features`, `--labels` and `--probabilities`.

    Args:
        features: .npy, floats (N, D).
        labels: UTF-8 CSV with N records, a column label and optionally the columns path and sha256; or a manifest of
            `prepare` (.parquet), whose label_name is the label. Without it all rows are of one class.
        probabilities: .npy, floats (N, C), columns in the order of `class_order`.

    Raises:
        InputError: a file is missing or damaged, does not fit the others, or has invalid values; or the probabilities
            agree with so few labels that their columns are probably in another order.
    """
    array = _floats("--features", features, "(N, D)")
    check_features(array, f"--features {features}", _FIX_HINTS)
    n = len(array)
    numbers, names, paths, sha256 = np.zeros(n, dtype=np.int64), ["all"], None, None
    if labels is not None:
        numbers, names, paths, sha256 = _labels(labels, n)
    elif probabilities is not None:
        raise InputError(f"--probabilities {probabilities}: the classes are unknown without labels; give --labels too")
    values = None
    if probabilities is not None:
        values = _probabilities(probabilities, numbers, names)
    return ExternalFeatures(
        features=array, labels=numbers, class_names=names, paths=paths, sha256=sha256, probabilities=values
    )


def class_order(names: Iterable[str]) -> list[str]:
    """Return class names in the order of scikit-learn: by number if all are integers, otherwise alphabetically."""
    alphabetical = sorted(names)
    if all(_INTEGER.fullmatch(name) for name in alphabetical):
        return sorted(alphabetical, key=int)
    return alphabetical


def _floats(option: str, path: Path, shape: str) -> NDArray[np.float32]:
    try:
        array = map_array(path)
    except FileNotFoundError:
        raise InputError(f"{option} {path}: no such file; give a .npy file of floats {shape}") from None
    except ValueError as error:
        raise InputError(f"{option} {path}: {error}; write it by numpy.save") from None
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise InputError(f"{option} {path}: is {array.dtype} {array.shape}; give floats of shape {shape}")
    # Single precision stays memory-mapped; other types are converted in memory.
    with np.errstate(over="ignore"):  # infinity, which the checks reject
        return np.asanyarray(array, dtype=np.float32)


def _labels(path: Path, n: int) -> tuple[NDArray[np.int64], list[str], list[str] | None, list[str] | None]:
    source = f"--labels {path}"
    row_names: list[str] = []
    paths: list[str] = []
    hashes: list[str] = []
    lines: dict[str, int] = {}
    for line, record in _label_records(path, source):
        name = class_name(record["label"])
        if not name:
            raise InputError(
                f"{source}: line {line} has no label; give one, or remove the row here and in the features"
            )
        row_names.append(name)
        if "path" in record:
            paths.append(record["path"])
        if "sha256" in record:
            hashes.append(record["sha256"])
            _check_image(record, line, lines, source)
    _check_rows(source, len(row_names), n)
    names = class_order(set(row_names))
    number = {name: index for index, name in enumerate(names)}
    labels = np.array([number[name] for name in row_names], dtype=np.int64)
    return labels, names, paths or None, hashes or None


def _label_records(path: Path, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and the columns label, path and sha256 of each record of a CSV, or of a manifest of `prepare`."""
    if path.suffix.lower() != ".parquet":
        yield from read_label_records(
            path, source=source, required=["label"], optional=["path", "sha256"], allow_extra=True
        )
        return
    if not path.is_file():
        raise InputError(f"{source}: no such file; give a CSV, or a manifest of data/prepare")
    try:
        table = read_parquet(path)
    except InputError as error:
        # Its fix is to delete the file, which may be of somebody.
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
        raise InputError(f"{source}: {reason}; write it again") from None
    names = {"label_name": "label", "path": "path", "sha256": "sha256"}
    if "label_name" not in table.column_names:
        raise InputError(f"{source}: has no column label_name; give a manifest of data/prepare, or a CSV")
    columns = [name for name in names if name in table.column_names]
    try:
        records = table.select(columns).to_pylist()
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not valid UTF-8 text ({error}); write the manifest again") from None
    for row, record in enumerate(records, start=1):
        # A missing value is an empty text, as in a CSV.
        yield row, {names[name]: "" if value is None else str(value) for name, value in record.items()}


def _check_image(record: Mapping[str, str], line: int, lines: dict[str, int], source: str) -> None:
    """Check that an image has a unique path and a SHA-256: decisions refer to it by both."""
    if "path" not in record:
        raise InputError(f"{source}: has the column sha256 without path; add it, or remove sha256")
    if not _SHA256.fullmatch(record["sha256"]):
        raise InputError(f"{source}: line {line}: {record['sha256']!r} is no SHA-256 of 64 hexadecimal digits")
    earlier = lines.setdefault(record["path"], line)
    if earlier != line:
        raise InputError(
            f"{source}: line {line}: {record['path']!r} is in line {earlier} too; give each row its own path"
        )


def _probabilities(path: Path, labels: NDArray[np.int64], names: Sequence[str]) -> NDArray[np.float32]:
    source = f"--probabilities {path}"
    values = _floats("--probabilities", path, "(N, C)")
    order = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    _check_rows(source, len(values), len(labels))
    if values.shape[1] != len(names):
        raise InputError(
            f"{source}: has {values.shape[1]} columns for {len(names)} classes; give one for each of {order}"
        )
    check_probabilities(values, source)
    if problem := column_order_problem(values, labels, order):
        raise InputError(f"{source}: {problem}")
    return values


def _check_rows(source: str, rows: int, n: int) -> None:
    if rows != n:
        raise InputError(f"{source}: has {rows} rows for {n} rows of features; give one for each, in order")


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
    try:
        images = map_array(file)
    except FileNotFoundError:
        raise InputError(f"--images {file}: no such file; give a folder, or a .npy file") from None
    except ValueError as error:
        raise InputError(f"--images {file}: {error}; write it by numpy.save") from None
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) != n or images.shape[3] != 3 or 0 in images.shape:
        raise InputError(
            f"--images {file}: is {images.dtype} {images.shape} for {n} rows; give uint8 ({n}, H, W, 3), RGB"
        )
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
