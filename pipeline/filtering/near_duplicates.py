"""Near duplicates of the training images: find them for the stage, list them, and choose those to drop."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.overrides import Override
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.reduction.near_duplicates import (
    MAX_CHANCE_PAIRS,
    MIN_PIXEL_CORRELATION,
    PASSES,
    NearDuplicates,
    near_duplicates,
)
from pipeline.run_log import RunLog
from pipeline.scoring.decision import redundant_rows

_IMAGE_COLUMNS = ("path", "label", "label_name")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingDuplicates:
    """Near duplicates of N training images, among themselves and among M test images.

    Attributes:
        found: pairs of rows, test images from N on; each pair has a training image.
        train, test: path, label and label_name of all images.
    """

    found: NearDuplicates
    train: pa.Table
    test: pa.Table

    def path(self, row: int) -> str:
        """Return the path of a row of `found`."""
        n = len(self.train)
        path: str = (self.train if row < n else self.test)["path"][row if row < n else row - n].as_py()
        return path

    def describe(self, row: int) -> str:
        """Return a phrase that names the image of a row of `found`, for the reason of its near duplicate."""
        split = "training" if row < len(self.train) else "test"
        return f"near duplicate of the {split} image {self.path(row)}"


def find_duplicates(data: DataPaths, network: str, log: RunLog) -> TrainingDuplicates:
    """Find the near duplicates of the training images by one network's features and the prepared pictures.

    With folds, the first network gives the features of all images, since those of two networks differ.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others.
    """
    manifests = {split: read_parquet(data.manifest(split), _IMAGE_COLUMNS) for split in ("train", "test")}
    images, features = {}, {}
    for split, manifest in manifests.items():
        images[split] = open_array(data.images(split), dtype=np.uint8, ndim=4, rows=len(manifest))
        features[split] = open_array(data.features(network, split), dtype=np.float32, ndim=2, rows=len(manifest))
    by_network = open_array(data.features_by_network(network), dtype=np.float32, ndim=3)
    if len(by_network):
        if by_network.shape[1:] != features["train"].shape:
            file = data.features_by_network(network)
            raise InputError(f"{file}: shape {by_network.shape}; delete it and run `dvc repro`")
        features["train"] = by_network[0]
    steps = PASSES * sum(map(len, manifests.values()))
    with log.progress("near duplicates", steps, "comparisons") as bar:
        found = near_duplicates(
            features["train"],
            images["train"],
            test_features=features["test"],
            test_images=images["test"],
            report=bar.update,
        )
    # Training images have the smaller rows, so that one of them is the first of its pair.
    has_train = found.pairs[:, 0] < len(manifests["train"])
    return TrainingDuplicates(found=found.select(np.flatnonzero(has_train)), **manifests)


def redundant_images(
    duplicates: TrainingDuplicates,
    keep: NDArray[np.bool_],
    scores: NDArray[np.float64],
    overrides: Mapping[int, Override],
) -> dict[int, int]:
    """Return the training images to drop: row -> the row that it nearly equals; see `redundant_rows`.

    Args:
        keep: (N,) the filter's decision.
        scores: (N,) of the filter; of a pair the less suspect image stays.
        overrides: row -> a person's decision.
    """
    kept = {row for row, override in overrides.items() if override.keeps}
    return redundant_rows(duplicates.found.pairs, keep, scores, decided=overrides, kept_by_hand=kept)


def duplicates_table(duplicates: TrainingDuplicates | None) -> pa.Table:
    """Build near_duplicates.parquet, one row per pair, the least likely by chance first; None gives no rows."""
    if duplicates is None:
        return _SCHEMA.empty_table()
    found, n = duplicates.found, len(duplicates.train)
    first, second = found.pairs.T
    in_test = second >= n
    everything = pa.concat_tables([duplicates.train, duplicates.test])
    columns: dict[str, Any] = {"sample_id": first}
    for name in _IMAGE_COLUMNS:
        columns[name] = everything[name].take(first).combine_chunks()
    columns["other_split"] = np.where(in_test, "test", "train").tolist()
    columns["other_sample_id"] = np.where(in_test, second - n, second)
    for name in _IMAGE_COLUMNS:
        columns[f"other_{name}"] = everything[name].take(second).combine_chunks()
    columns["similarity"] = found.similarity
    columns["pixel_correlation"] = found.pixel_correlation
    columns["chance_pairs"] = found.chance_pairs
    return pa.table(columns, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [
        ("sample_id", pa.int64()),
        ("path", pa.string()),
        ("label", pa.int64()),
        ("label_name", pa.string()),
        ("other_split", pa.string()),
        ("other_sample_id", pa.int64()),
        ("other_path", pa.string()),
        ("other_label", pa.int64()),
        ("other_label_name", pa.string()),
        ("similarity", pa.float32()),
        ("pixel_correlation", pa.float32()),
        ("chance_pairs", pa.float64()),
    ]
)


def duplicates_metrics(duplicates: TrainingDuplicates, n_dropped: int) -> dict[str, Any]:
    """Return the entry `near_duplicates` of metrics.json: counts, 0 and up, and the settings of the rule.

    Args:
        n_dropped: training images that the filter drops as near duplicates.
    """
    found, n = duplicates.found, len(duplicates.train)
    labels = np.concatenate([duplicates.train["label"].to_numpy(), duplicates.test["label"].to_numpy()])
    first, second = found.pairs.T
    in_test, same = second >= n, labels[first] == labels[second]
    return {
        "n_pairs": len(first),
        "n_test": len(duplicates.test),
        "n_test_with_training": len(np.unique(second[in_test])),
        "n_training_with_test": len(np.unique(first[in_test])),
        "n_training_pairs_same_label": int((~in_test & same).sum()),
        "n_training_pairs_other_label": int((~in_test & ~same).sum()),
        "n_dropped": n_dropped,
        "n_candidates": found.n_candidates,
        "intrinsic_dimension": found.dimension,
        "max_chance_pairs": MAX_CHANCE_PAIRS,
        "min_pixel_correlation": MIN_PIXEL_CORRELATION,
        "search": found.search,
    }


def duplicates_sentence(metrics: Mapping[str, Any]) -> str:
    """Return the counts of `duplicates_metrics` as a sentence."""
    n_test, found = metrics["n_test"], metrics["n_test_with_training"]
    return (
        f"{found} of {n_test} test images ({found / n_test:.2%}) nearly equal one of {metrics['n_training_with_test']} "
        f"training images; {metrics['n_training_pairs_same_label']} pairs of training images with one label nearly "
        f"equal each other, {metrics['n_training_pairs_other_label']} with different labels; {metrics['n_dropped']} "
        "training images dropped"
    )
