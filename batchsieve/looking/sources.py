"""The images to look at: a folder, an archive or arrays, decoded once and in batches to squares of one size."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from batchsieve.arrays import as_array, checked_labels
from pipeline.datasets.decode import (
    UnreadableError,
    brightest_of,
    dark_16_bit_note,
    full_image,
    resize,
    scaled_region,
)
from pipeline.datasets.image_folder import open_unsplit
from pipeline.datasets.image_set import DatasetOptions, DecodedImage, ImageSet, Sample, UnreadableImage
from pipeline.errors import InputError
from pipeline.run_log import RunLog

THUMBNAIL_SIDE = 160
"""Side in pixels of the pictures on a page."""

_MAX_MEGAPIXELS = 178.0  # Pillow's own limit
_JPEG_QUALITY = 85
_BATCH = 32

Images = ArrayLike | Sequence[Image.Image]
"""uint8 (N, H, W, 3), RGB, or PIL images of any sizes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """N readable images in the order of their paths.

    Attributes:
        paths: in the folder or archive; of arrays the positions.
        labels: (N,) int64, indices into `class_names`.
        class_names: those that have an image; strings, or the integers given as labels.
        sha256: of the files, or of the pixels.
        thumbnails: JPEG files, at most `THUMBNAIL_SIDE` pixels square.
        encoded: (N, ...) outputs of `Extractor.encode`, one per image.
        unreadable: path -> reason, of images that were left out.
    """

    paths: tuple[str, ...]
    labels: NDArray[np.int64]
    class_names: NDArray[Any]
    sha256: tuple[str, ...]
    thumbnails: tuple[bytes, ...]
    encoded: NDArray[Any]
    unreadable: dict[str, str]


def open_folder(path: Path, side: int, *, label_column: str | None, log: RunLog) -> ImageSet:
    """Open a folder or archive with the reader of the stage `prepare`, and put the images of all splits together.

    Args:
        side: of the decoded images, in pixels.
        label_column: of Parquet shards, metadata.csv or metadata.jsonl; None for `label`.

    Raises:
        InputError: as `open_unsplit`, without the key of params.yaml.
    """
    options = DatasetOptions(
        path=path,
        image_size=side,
        test_size=None,
        max_megapixels=_MAX_MEGAPIXELS,
        seed=0,
        downloads=Path(),
        progress=log.progress,
        label_column=label_column,
        draft=True,
    )
    return open_unsplit(options)


def open_arrays(images: Images, labels: ArrayLike, side: int) -> tuple[ImageSet, NDArray[Any]]:
    """Return images in memory as a data set, and its class names in the type of the labels.

    Raises:
        InputError: naming `images` or `labels`.
    """
    checked = checked_labels(labels)
    pictures = checked_images(images, len(checked.codes))
    samples = tuple(Sample(path=str(row), label=int(code)) for row, code in enumerate(checked.codes))

    def decode() -> Iterator[DecodedImage]:
        for row, image in enumerate(pictures):
            picture = _picture(image)
            pixels = _decoded(picture, row, side)
            digest = hashlib.sha256(f"{picture.size}".encode() + picture.tobytes()).hexdigest()
            yield DecodedImage(path=str(row), pixels=pixels, sha256=digest)

    return ImageSet(class_names=tuple(checked.names), train=samples, test=(), decode=decode), checked.classes


def _decoded(picture: Image.Image, row: int, side: int) -> NDArray[np.uint8]:
    """Return a PIL image as uint8 (side, side, 3): upright, over white, 16 bits as their upper byte, as from a file.

    Raises:
        InputError: it has no such pixels, or its file is damaged, which shows when its pixels are needed.
    """
    try:
        return scaled_region(picture, side, full_image, max_megapixels=_MAX_MEGAPIXELS)
    except UnreadableError as error:
        raise InputError(f"images: number {row}: {error}; leave it out or give another image") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"images: number {row}: damaged ({error}); leave it out or give another image") from None


def checked_images(images: Images, n: int) -> list[Image.Image] | NDArray[np.uint8]:
    """Check that these are n images, and return them.

    Raises:
        InputError: naming `images`.
    """
    checked: list[Image.Image] | NDArray[np.uint8]
    if isinstance(images, Sequence) and images and isinstance(images[0], Image.Image):
        checked = []
        for row, picture in enumerate(images):
            if not isinstance(picture, Image.Image):
                raise InputError(f"images: {row} is a {type(picture).__name__}; give PIL images or one array")
            checked.append(picture)
    else:
        checked = as_array(images, "images")
        if checked.dtype != np.uint8 or checked.ndim != 4 or checked.shape[3] != 3:
            raise InputError(f"images: {checked.dtype} of shape {checked.shape}; give PIL images or uint8 (N, H, W, 3)")
    if len(checked) != n:
        raise InputError(f"images: {len(checked)} of them for {n} labels; give one for each")
    return checked


def thumbnails_of(images: Images, rows: Sequence[int], n: int) -> list[bytes]:
    """Return the thumbnails of these rows of n images.

    Raises:
        InputError: naming `images`.
    """
    checked = checked_images(images, n)
    return [_thumbnail(_decoded(_picture(checked[row]), row, THUMBNAIL_SIDE)) for row in rows]


def _picture(image: Image.Image | NDArray[np.uint8]) -> Image.Image:
    return image if isinstance(image, Image.Image) else Image.fromarray(np.ascontiguousarray(image))


def read_pictures(
    images: ImageSet,
    encode: Callable[[NDArray[np.uint8]], NDArray[Any]],
    *,
    class_names: NDArray[Any] | None = None,
    log: RunLog,
) -> Pictures:
    """Decode all images once.

    Args:
        encode: maps images (B, S, S, 3) to arrays (B, ...), which are kept instead of the images.
        class_names: in the type of the labels; None for those of `images`.

    Raises:
        InputError: no image can be read.
    """
    rows = {sample.path: row for row, sample in enumerate(images.train)}
    decoded: dict[int, tuple[str, bytes, NDArray[Any]]] = {}
    unreadable: dict[str, str] = {}
    brightest: int | None = None
    with log.progress("look at images", len(rows), "images") as bar:
        for batch in _batches(images.decode(), unreadable):
            encoded = encode(np.stack([image.pixels for image in batch]))
            for image, values in zip(batch, encoded, strict=True):
                decoded[rows[image.path]] = image.sha256, _thumbnail(image.pixels), values
                brightest = brightest_of(brightest, image.brightest_16_bit)
            bar.update(len(batch))
    if not decoded:
        reason = next(iter(unreadable.values()), "there are none")
        raise InputError(f"images: none of {len(rows)} can be read ({reason}); give others")
    if note := dark_16_bit_note(brightest):
        log.info(note)
    order = sorted(decoded)
    sha256, thumbnails, values = zip(*(decoded[row] for row in order), strict=True)
    names = np.asarray(images.class_names) if class_names is None else class_names
    used, labels = np.unique([images.train[row].label for row in order], return_inverse=True)
    return Pictures(
        paths=tuple(images.train[row].path for row in order),
        labels=labels.astype(np.int64),
        class_names=names[used],
        sha256=sha256,
        thumbnails=thumbnails,
        encoded=np.stack(values),
        unreadable=dict(sorted(unreadable.items())),
    )


def _batches(
    decoded: Iterator[DecodedImage | UnreadableImage], unreadable: dict[str, str]
) -> Iterator[list[DecodedImage]]:
    """Yield readable images in batches, and note the others in `unreadable`."""
    batch: list[DecodedImage] = []
    for image in decoded:
        if isinstance(image, UnreadableImage):
            unreadable[image.path] = image.reason
            continue
        batch.append(image)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    return jpeg(Image.fromarray(pixels), THUMBNAIL_SIDE)


def jpeg(picture: Image.Image, side: int) -> bytes:
    """Return a JPEG file of the picture, which is reduced to at most `side` pixels."""
    if max(picture.size) > side:
        picture = picture.resize((side, side), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


def thumbnail_pixels(thumbnails: Sequence[bytes], side: int) -> NDArray[np.uint8]:
    """Return thumbnails as pixels, uint8 (N, side, side, 3)."""
    pixels = np.empty((len(thumbnails), side, side, 3), dtype=np.uint8)
    for row, content in enumerate(thumbnails):
        with Image.open(io.BytesIO(content)) as picture:
            pixels[row] = resize(picture, side)
    return pixels
