"""Near duplicates in the report: the pictures of pairs, and how many there are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from pipeline.figures.rendering import data_uri, image_grid, thumbnail
from pipeline.reporting.inputs import NetworkInputs, ReportInputs
from pipeline.stats.formatting import plural

KINDS = {
    "test": "of a training and a test image",
    "other_label": "of training images with different labels",
    "same_label": "of training images with one label",
}
"""Kinds of pairs, and their names."""


@dataclass(frozen=True, kw_only=True)
class PictureOfPair:
    """A pair of near duplicates: a training image, and another image.

    Attributes:
        sources: data URIs of both.
        paths, labels: of both.
        other_split: train or test.
        similarity: cosine of the features, -1 to 1.
    """

    sources: tuple[str, str]
    paths: tuple[str, str]
    labels: tuple[str, str]
    other_split: str
    similarity: float


def pairs_by_kind(pairs: pa.Table, n: int) -> dict[str, pa.Table]:
    """Return at most `n` pairs of each of `KINDS`, the least likely by chance first; kinds without pairs are left out.

    Args:
        pairs: near_duplicates.parquet.
    """
    in_test = pc.equal(pairs["other_split"], "test")
    same = pc.equal(pairs["label"], pairs["other_label"])
    in_train = pc.invert(in_test)
    masks = (in_test, pc.and_(in_train, pc.invert(same)), pc.and_(in_train, same))
    tables = {kind: pairs.filter(mask).slice(0, n) for kind, mask in zip(KINDS, masks, strict=True)}
    return {kind: table for kind, table in tables.items() if len(table)}


def pair_pictures(network: NetworkInputs, inputs: ReportInputs) -> dict[str, list[PictureOfPair]]:
    """Return the pictures for the page by kind, at most half of `report.gallery_images` pairs of each."""
    if network.duplicates is None:
        return {}
    shown = pairs_by_kind(network.duplicates, inputs.params.report.gallery_images // 2)
    return {kind: [_picture(row, inputs) for row in table.to_pylist()] for kind, table in shown.items()}


def _picture(row: dict[str, Any], inputs: ReportInputs) -> PictureOfPair:
    first, second = (data_uri(*thumbnail(image)) for image in _images(row, inputs))
    return PictureOfPair(
        sources=(first, second),
        paths=(row["path"], row["other_path"]),
        labels=(row["label_name"], row["other_label_name"]),
        other_split=row["other_split"],
        similarity=row["similarity"],
    )


def _images(row: dict[str, Any], inputs: ReportInputs) -> Iterator[np.ndarray]:
    other = inputs.data.test if row["other_split"] == "test" else inputs.data.train
    yield np.asarray(inputs.data.train.images[row["sample_id"]])
    yield np.asarray(other.images[row["other_sample_id"]])


def duplicates_figure(network: NetworkInputs, inputs: ReportInputs) -> Figure | None:
    """Return the pairs as one figure, five in a row; None without pairs."""
    if network.duplicates is None or not len(network.duplicates):
        return None
    shown = pairs_by_kind(network.duplicates, inputs.params.report.gallery_images // 2)
    images: list[np.ndarray] = []
    captions: list[str] = []
    for row in pa.concat_tables(shown.values()).to_pylist():
        images += _images(row, inputs)
        captions += [f"train\n{row['label_name']}", f"{row['other_split']}\n{row['other_label_name']}"]
    return image_grid(images, captions)


def duplicates_sentences(counts: Mapping[str, Any]) -> list[str]:
    """Return what the report says of a network's near duplicates, from the counts in the filter's metrics."""
    with_test, n_test = counts["n_test_with_training"], counts["n_test"]
    same, other = counts["n_training_pairs_same_label"], counts["n_training_pairs_other_label"]
    return [
        f"{with_test:,} of {plural(n_test, 'test image')} ({with_test / n_test:.2%}) nearly equal a training image.",
        f"{plural(same, 'pair')} of training images with one label and {other:,} with different labels nearly equal.",
        f"The filter drops {plural(counts['n_dropped'], 'training image')} for it.",
    ]
