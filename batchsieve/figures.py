"""The figures of the notebooks, as pictures.

Each function returns a `Picture`, which a notebook shows as the output of a cell, also on sites and after nbconvert.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import pipeline.figures.embeddings
import pipeline.figures.rendering
from batchsieve.results import NetworkResults
from batchsieve.study_results import StudyResults
from pipeline.artifacts.files import atomic_path
from pipeline.errors import InputError
from pipeline.figures.batch_curves import batch_figure
from pipeline.figures.classes import class_difference_figure, class_share_figure, eps_figure
from pipeline.figures.curves import LOSS, learning_figure
from pipeline.figures.rendering import matplotlib_style, png
from pipeline.figures.study_curves import (
    POINTS_TITLE,
    TOP1_TITLE,
    accuracy_curves,
    difference_curves,
    learning_panels,
)

_WIDTH = 640


class Picture:
    """A PNG file, which a notebook shows.

    Args:
        content: the file.
        width: at which it is shown, in CSS pixels; None for its own.
    """

    def __init__(self, content: bytes, *, width: int | None) -> None:
        self.content = content
        self._width = width

    def __repr__(self) -> str:
        return f"Picture({len(self.content) / 1000:.0f} kB)"

    def _repr_png_(self) -> tuple[str, dict[str, int]]:
        width = {} if self._width is None else {"width": self._width}
        return base64.b64encode(self.content).decode("ascii"), width

    def save(self, path: Path | str) -> Path:
        """Write the file.

        Raises:
            InputError: the name does not end in .png, or the file cannot be written.
        """
        file = Path(path)
        if file.suffix.lower() != ".png":
            raise InputError(f"{file}: its name must end in .png")
        with atomic_path(file) as temporary:
            temporary.write_bytes(self.content)
        return file


def picture(figure: Figure, *, width: int | None = _WIDTH, dpi: int = 150) -> Picture:
    """Return a matplotlib figure as a picture."""
    with matplotlib_style():
        return Picture(png(figure, dpi=dpi), width=width)


def image_grid(images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], captions: Sequence[str]) -> Picture:
    """Return images (H, W, 3) in rows of ten, each with its caption above."""
    return picture(pipeline.figures.rendering.image_grid(list(images), captions), width=None, dpi=100)


def class_map(
    coordinates: NDArray[np.float32],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    is_noise: NDArray[np.bool_] | None = None,
) -> Picture:
    """Return an embedding (N, 2), colored by class, with the noise in gray."""
    return picture(pipeline.figures.embeddings.class_map(coordinates, labels, class_names, is_noise), width=720)


def variance_kept(network: NetworkResults) -> Picture:
    """Return the share of the variance that the first principal components keep, in percent, against their number.

    Raises:
        InputError: the embedding was computed without PCA.
    """
    pca = network.reduce["pca"]
    if pca is None:
        raise InputError(f"{network.name}: its embedding uses all features, without PCA; there is nothing to show")
    ratios = pca["explained_variance_ratio_per_component"]
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(np.arange(1, len(ratios) + 1), 100 * np.cumsum(ratios), marker=".")
        axes.set(xlabel="principal components", ylabel="variance kept (%)", ylim=(0, 103))
    return picture(figure, width=560)


def dropped_share(networks: Sequence[NetworkResults]) -> Picture:
    """Return the share of the images that a threshold drops, with a mark at the chosen one."""
    figure = eps_figure(
        {network.name: (network.filter["curve"]["eps"], network.filter["curve"]["share"]) for network in networks},
        {
            network.name: (network.filter["eps"], float(network.is_noise.mean()))
            for network in networks
            if network.filter["eps"]
        },
        unit=f"threshold of {networks[0].scorer}",
    )
    return picture(figure)


def noise_by_class(networks: Sequence[NetworkResults], class_names: Sequence[str]) -> Picture:
    """Return the share of noise in each class, in percent."""
    shares = {}
    for network in networks:
        sizes = np.maximum(1, np.bincount(network.labels, minlength=len(class_names)))
        noise = np.bincount(network.labels[network.is_noise], minlength=len(class_names))
        shares[network.name] = (noise / sizes).tolist()
    return picture(class_share_figure(class_names, shares))


def accuracy(study: StudyResults) -> Picture:
    """Return top-1 in percent against the batch size, a line for each arm."""
    return picture(batch_figure(accuracy_curves(study.summary), y_title=TOP1_TITLE))


def training_loss(study: StudyResults) -> Picture:
    """Return the training loss in nats during training, a panel for each batch size."""
    panels = learning_panels(study.summary, "train_loss")
    return picture(learning_figure(panels, LOSS, x_axis=study.x_axis), width=720)


def differences(study: StudyResults) -> Picture:
    """Return filtered minus each control in percentage points, against the batch size."""
    return picture(batch_figure(difference_curves(study.summary), y_title=POINTS_TITLE, zero_line=True))


def class_differences(study: StudyResults) -> Picture:
    """Return filtered minus each control in percentage points, for each class and the worst one."""
    return picture(class_difference_figure(study.class_rows, study.class_differences))
