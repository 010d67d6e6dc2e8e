"""Images that belong to no class, which the paper means by noise: of a class that is left out, and damaged ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from pipeline.errors import InputError

OutlierKind = Literal["open_set", "corrupt"]
OUTLIER_KINDS: tuple[OutlierKind, ...] = get_args(OutlierKind)
"""`open_set`: images of a class that is left out have labels of the others. `corrupt`: images are damaged."""

NO_CLASS = -1
"""The true class of an image for which no label is right."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenSet:
    """N of M images, of which some belong to a class that is left out.

    Attributes:
        rows: (N,) of the M images, ascending.
        left_out: the class without a name here.
        labels: (N,) classes without `left_out`, numbered again.
        truth: (N,) likewise, `NO_CLASS` for images of `left_out`.
    """

    rows: NDArray[np.int64]
    left_out: int
    labels: NDArray[np.int64]
    truth: NDArray[np.int64]


def open_set(truth: NDArray[np.int64], n_classes: int, rate: float, rng: np.random.Generator) -> OpenSet:
    """Leave a random class out, and put its images among the others, each with a random label of theirs.

    Args:
        truth: (M,) classes.
        n_classes: at least 3.
        rate: share of the result that belongs to the class left out, 0 to 1.

    Raises:
        InputError: the class has too few images, or there are too few classes.
    """
    if n_classes < 3:
        raise InputError(f"--kinds: open_set leaves a class out, and the data have {n_classes}; omit open_set")
    left_out = int(rng.integers(n_classes))
    others, outside = np.flatnonzero(truth != left_out), np.flatnonzero(truth == left_out)
    count = round(rate / (1 - rate) * len(others))
    if count > len(outside):
        most = len(outside) / (len(outside) + len(others))
        raise InputError(f"--rates: open_set of {rate:g} needs {count} images of a class of {len(outside)}; give at "
                         f"most {most:.2g}")  # fmt: skip
    rows = np.sort(np.concatenate([others, rng.choice(outside, size=count, replace=False)]))
    numbered = truth[rows] - (truth[rows] > left_out)
    is_outside = truth[rows] == left_out
    random_labels = rng.integers(n_classes - 1, size=len(rows))
    return OpenSet(
        rows=rows,
        left_out=left_out,
        labels=np.where(is_outside, random_labels, numbered),
        truth=np.where(is_outside, NO_CLASS, numbered),
    )


def corrupt(images: Pixels, rate: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], Pixels]:
    """Damage exactly round(rate x N) of the images (N, H, W, 3): a third each blurred, blank and cropped wrong.

    Returns:
        Their rows (n,), and the damaged images (n, H, W, 3).
    """
    rows = rng.choice(len(images), size=round(rate * len(images)), replace=False)
    damages: tuple[Callable[[Pixels], Pixels], ...] = (blurred, blank, lambda image: wrong_crop(image, rng))
    damaged = [damages[i % len(damages)](images[row]) for i, row in enumerate(rows.tolist())]
    return rows, np.stack(damaged) if damaged else np.asarray(images[:0])


def blurred(image: Pixels) -> Pixels:
    """Return an image (H, W, 3) after a Gaussian filter with a standard deviation of an eighth of its height."""
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(len(image) / 8)))


def blank(image: Pixels) -> Pixels:
    """Return an image of the same shape (H, W, 3) that is its mean color."""
    mean = image.mean(axis=(0, 1)).round().astype(np.uint8)
    return np.broadcast_to(mean, image.shape).copy()


def wrong_crop(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Return a corner of a quarter of the height and width, enlarged to the size of the image (H, W, 3)."""
    height, width = image.shape[:2]
    part = (max(1, height // 4), max(1, width // 4))
    top, left = (int(rng.integers(2)) * (whole - side) for whole, side in zip((height, width), part, strict=True))
    corner = Image.fromarray(np.ascontiguousarray(image[top : top + part[0], left : left + part[1]]))
    return np.asarray(corner.resize((width, height), Image.Resampling.BILINEAR))
