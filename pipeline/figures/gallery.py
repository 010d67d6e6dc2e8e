"""Thumbnails of images, single and in a grid."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from pipeline.figures.rendering import matplotlib_style

_COLUMNS = 10


def thumbnail(image: NDArray[np.uint8], *, side: int = 96) -> tuple[str, bytes]:
    """Return an image of at most `side` pixels as a file, with its media type.

    Small images are kept as they are (PNG, lossless); larger ones are reduced (JPEG).

    Args:
        image: uint8 (H, W, 3).
    """
    picture = Image.fromarray(image)
    buffer = io.BytesIO()
    if max(picture.size) <= side:
        picture.save(buffer, format="PNG", optimize=True)
        return "image/png", buffer.getvalue()
    picture.thumbnail((side, side))
    picture.save(buffer, format="JPEG", quality=85)
    return "image/jpeg", buffer.getvalue()


def image_grid(images: Sequence[NDArray[np.uint8]], captions: Sequence[str]) -> Figure:
    """Return images in rows of ten, each with its caption above.

    Args:
        images: uint8 (H, W, 3) each.
        captions: one per image; long ones are cut.
    """
    assert len(images) == len(captions)
    rows = max(1, -(-len(images) // _COLUMNS))
    with matplotlib_style():
        figure = Figure(figsize=(_COLUMNS, 1.35 * rows))
        grid: Any = figure.subplots(rows, _COLUMNS, squeeze=False, gridspec_kw={"wspace": 0.1, "hspace": 0.4})
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, image, caption in zip(grid.flat, images, captions, strict=False):
            axes.imshow(image, interpolation="nearest")
            axes.set_title(_cut(caption), fontsize=6, pad=2)
        return figure


def _cut(caption: str, length: int = 16) -> str:
    lines = [line if len(line) <= length else line[: length - 1] + "…" for line in caption.splitlines()]
    return "\n".join(lines)
