"""The quality of the data in the report: planted wrong labels, and near duplicates.

Of planted labels it says how many each filter detects, and the gain of training on the rest. Of near duplicates it has
the pictures of pairs, and how many there are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.artifacts.prepared import planted_note
from pipeline.figures.rendering import data_uri, image_grid, thumbnail
from pipeline.reporting.inputs import NetworkInputs, ReportInputs
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import p_equals, p_value, percent, plural, points, points_interval

_CONTROL_WORDS = {
    "full": "all images",
    "random": "as many random images of each class",
    "random_uniform": "as many random images",
    "relabeled": "all images with changed labels",
}

KINDS = {
    "test": "of a training and a test image",
    "other_label": "of training images with different labels",
    "same_label": "of training images with one label",
}
"""Kinds of pairs, and their names."""


class SummarySentence(NamedTuple):
    """A sentence in two parts: the result, and its basis."""

    headline: str
    rest: str

    def __str__(self) -> str:
        return self.headline + self.rest


def planted_summary(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return one entry if wrong labels were planted, else an empty list; counts are of training images."""
    if inputs.true_labels is None:
        return []
    wrong = inputs.true_labels != inputs.data.train.labels
    noise = inputs.params.prepare.plant_label_noise
    return [
        {
            "n": int(wrong.sum()),
            "n_train": len(wrong),
            "kind": noise and noise.kind,
            "networks": [{"name": network.name, **detection(network, wrong)} for network in inputs.networks],
        }
    ]


def detection(network: NetworkInputs, wrong: NDArray[np.bool_]) -> dict[str, Any]:
    """Count the wrong labels (N,) among the images that a network's filter drops.

    Returns:
        n_dropped: number of dropped images.
        n_found: number of wrong labels among them.
        by_chance: mean number that a random choice of as many images of each class finds.
        recall: share of the wrong labels that is dropped, 0 to 1.
        precision: share of the dropped images that is wrong, 0 to 1; None if no image is dropped.
    """
    dropped = ~network.keep
    n_class, n_wrong, n_class_dropped = (
        np.bincount(network.labels[rows], minlength=int(network.labels.max()) + 1)
        for rows in (slice(None), wrong, dropped)
    )
    n_dropped, n_found = int(dropped.sum()), int((dropped & wrong).sum())
    return {
        "n_dropped": n_dropped,
        "n_found": n_found,
        "by_chance": float((n_class_dropped * n_wrong / np.maximum(n_class, 1)).sum()),
        "recall": n_found / int(wrong.sum()),
        "precision": n_found / n_dropped if n_dropped else None,
    }


def planted_headline(planted: Mapping[str, Any]) -> str:
    """Return `Labels changed on purpose: 144 of 1,438 training labels (symmetric); test labels are unchanged.`"""
    note, kind = planted_note(planted["n"]), f" ({planted['kind']})" if planted["kind"] else ""
    return f"{note.capitalize()} of {planted['n_train']:,} training labels{kind}; test labels are unchanged."


def planted_sentences(planted: Mapping[str, Any], studies: Sequence[Mapping[str, Any]]) -> list[SummarySentence]:
    """Return what each filter detects, then each study's result of training on the rest, primary comparison first."""
    detected = [_detection_sentence(network, planted["n"]) for network in planted["networks"]]
    return [*detected, *(statement for study in studies for statement in _gains(study))]


def _detection_sentence(network: Mapping[str, Any], n_wrong: int) -> SummarySentence:
    n_dropped = network["n_dropped"]
    headline = f"{network['n_found']:,} of the {n_wrong:,} wrong labels found"
    if not n_dropped:
        return SummarySentence(headline, f": {network['name']} drops no image.")
    return SummarySentence(
        headline,
        f" ({percent(network['recall'], 1)} %) among the {plural(n_dropped, 'image')} that {network['name']} drops, of "
        f"which {percent(network['precision'], 1)} % are wrong. A random choice of as many images of each "
        f"class finds {network['by_chance']:.1f} on average.",
    )


def _gains(study: Mapping[str, Any]) -> Iterator[SummarySentence]:
    for row in study["pooled"]:
        if not row["verdict"]:
            continue
        estimate, verdict = Estimate(**row["estimate"]), row["verdict"]
        seeds = f"{plural(verdict['seeds'], 'seed')}, {plural(row['settings'], 'setting')}"
        confidence = "" if estimate.low is None else f"{100 * (1 - study['plan']['alpha']):g} % interval "
        tests = verdict["p"]
        p_values = f"; {p_equals(tests['t'])} (t), {p_value(tests['sign_flip'])} (sign flips)" if tests else ""
        yield SummarySentence(
            f"{points(estimate.mean)} percentage points of test top-1, {verdict['outcome']}:",
            f" training on the rest instead of {_CONTROL_WORDS[row['control']]} (study {study['name']}; "
            f"{confidence}{points_interval(estimate)}; {seeds}{p_values}).",
        )


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
    """Return the pairs as one figure, five in a row; None without pairs, or if `report.gallery_images` is 1."""
    if network.duplicates is None:
        return None
    shown = pairs_by_kind(network.duplicates, inputs.params.report.gallery_images // 2)
    if not shown:
        return None
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
