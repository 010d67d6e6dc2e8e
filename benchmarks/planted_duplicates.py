"""Plant near duplicates among real images: changed copies of some of them, as people make them without noticing."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Change = Callable[[Pixels, np.random.Generator], Pixels]

_QUALITY = 50
_MAX_SHIFT = 2
_BRIGHTNESS = (0.1, 0.2)
_CROP = 0.875


def encoded_again(image: Pixels, _: np.random.Generator) -> Pixels:
    """Return an image (H, W, 3) after JPEG of quality 50."""
    content = io.BytesIO()
    Image.fromarray(image).save(content, "JPEG", quality=_QUALITY)
    return np.asarray(Image.open(content))


def shifted(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Return an image (H, W, 3) moved by 1 or 2 pixels along both axes; its edge is repeated."""
    down, right = (int(rng.integers(1, _MAX_SHIFT + 1)) * int(rng.choice([-1, 1])) for _ in range(2))
    padded = np.pad(image, ((_MAX_SHIFT, _MAX_SHIFT), (_MAX_SHIFT, _MAX_SHIFT), (0, 0)), mode="edge")
    height, width = image.shape[:2]
    top, left = _MAX_SHIFT - down, _MAX_SHIFT - right
    return padded[top : top + height, left : left + width].copy()


def brightened(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Return an image (H, W, 3) that is 10 to 20 % brighter or darker."""
    factor = 1 + rng.uniform(*_BRIGHTNESS) * rng.choice([-1, 1])
    return np.asarray((image * factor).round().clip(0, 255).astype(np.uint8))


def mirrored(image: Pixels, _: np.random.Generator) -> Pixels:
    """Return an image (H, W, 3) mirrored left to right."""
    return image[:, ::-1].copy()


def cropped(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Return a random crop of seven eighths of each side, enlarged to the size of the image (H, W, 3)."""
    height, width = image.shape[:2]
    part = (round(height * _CROP), round(width * _CROP))
    top, left = (int(rng.integers(whole - side + 1)) for whole, side in zip((height, width), part, strict=True))
    crop = Image.fromarray(np.ascontiguousarray(image[top : top + part[0], left : left + part[1]]))
    return np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR))


CHANGES: Mapping[str, Change] = {
    "jpeg": encoded_again,
    "shift": shifted,
    "brightness": brightened,
    "mirror": mirrored,
    "crop": cropped,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Planted:
    """P changed copies of P different images among N.

    Attributes:
        images: (P, H, W, 3) uint8.
        sources: (P,) rows of the N images.
        kinds: (P,) names in `CHANGES`.
    """

    images: Pixels
    sources: NDArray[np.int64]
    kinds: tuple[str, ...]


def plant(images: Pixels, per_kind: int, rng: np.random.Generator) -> Planted:
    """Return `per_kind` copies by each of `CHANGES`, of different images (N, H, W, 3) chosen at random."""
    kinds = tuple(kind for kind in CHANGES for _ in range(per_kind))
    sources = rng.choice(len(images), size=len(kinds), replace=False)
    copies = [CHANGES[kind](images[row], rng) for kind, row in zip(kinds, sources.tolist(), strict=True)]
    return Planted(images=np.stack(copies), sources=sources, kinds=kinds)
