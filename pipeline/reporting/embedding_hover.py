"""What the page says about the image under the pointer in an embedding: its path, its label and the decision on it."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.figures.embeddings import class_map, rows_to_draw
from pipeline.figures.rendering import data_uri, png
from pipeline.reporting.inputs import NetworkInputs, ReportInputs

MAX_POINTS = 5_000
"""Largest number of images of one embedding that the pointer finds; each takes about 60 bytes of the page.

Of more images, half of these are the most suspect and half are a sample of the others. All images are plotted, but a
picture some hundred pixels wide separates no more.
"""

DECISIONS = ("kept", "dropped", "kept by hand")
"""Outcomes of a training image, by their codes in `NamedPoints.decision`."""

GRID = 10_000
"""Steps along a side of the picture."""


class NamedPoints(NamedTuple):
    """The images of one embedding that the pointer finds: columns of one length, as plain JSON.

    Attributes:
        x, y: place in the picture, 0 to `GRID` from its left and its upper side.
        name: path of a training image, sample id of a test image.
        label: index into the class names.
        truth: the true label; empty where no label was planted.
        decision: index into `DECISIONS`; empty for test images, which are not filtered.
    """

    x: list[int]
    y: list[int]
    name: list[str]
    label: list[int]
    truth: list[int]
    decision: list[int]


class EmbeddingPicture(NamedTuple):
    """A picture of an embedding as a data URI, and the images that the pointer finds in it."""

    source: str
    points: NamedPoints


def embedding_pictures(network: NetworkInputs, inputs: ReportInputs) -> dict[str, EmbeddingPicture]:
    """Return the pictures `train` and `test` of a network. The page lists the class names next to them."""
    return {"train": _training_images(network, inputs), "test": _test_images(network, inputs)}


def _training_images(network: NetworkInputs, inputs: ReportInputs) -> EmbeddingPicture:
    """Return the embedding of the training images by class, with the noise in gray."""
    figure = class_map(network.xy, network.labels, inputs.data.class_names, network.is_noise, legend=False)
    rows = rows_to_draw(network.xy, network.score, np.ones(len(network.xy), dtype=bool), at_most=MAX_POINTS)
    # Without a decision by hand, all noise is dropped.
    decisions = np.where(network.keep, np.where(network.is_noise, 2, 0), 1)
    return _picture(
        figure,
        network.xy,
        rows,
        name=[network.path[row] for row in rows],
        label=network.labels[rows].tolist(),
        truth=[] if inputs.true_labels is None else inputs.true_labels[rows].tolist(),
        decision=decisions[rows].tolist(),
    )


def _test_images(network: NetworkInputs, inputs: ReportInputs) -> EmbeddingPicture:
    """Return the embedding of the test images by class."""
    xy, labels = network.test_xy, inputs.data.test.labels
    # Test images have no score. In random order, those that get a picture are a sample of them.
    chance = np.random.default_rng(0).random(len(xy))
    rows = rows_to_draw(xy, chance, np.ones(len(xy), dtype=bool), at_most=MAX_POINTS)
    return _picture(
        class_map(xy, labels, inputs.data.class_names, legend=False),
        xy,
        rows,
        name=[f"test image {row}" for row in rows],
        label=labels[rows].tolist(),
        truth=[],
        decision=[],
    )


def _picture(
    figure: Figure, xy: NDArray[np.floating[Any]], rows: NDArray[np.int64], **columns: list[Any]
) -> EmbeddingPicture:
    """Return the whole figure, and the places of `rows` (n,) of the plotted points (N, 2) in it."""
    content = png(figure, dpi=120, transparent=True, cropped=False)
    # Rendering has given the axes their place.
    to_figure = figure.axes[0].transData + figure.transFigure.inverted()
    places = to_figure.transform(xy[rows])
    x, y = (np.rint(GRID * side).astype(int).tolist() for side in (places[:, 0], 1 - places[:, 1]))
    return EmbeddingPicture(data_uri("image/png", content), NamedPoints(x=x, y=y, **columns))
