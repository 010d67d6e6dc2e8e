"""Labels that are wrong on purpose: how many, which, and the words in which every output says so."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths

TRUE_LABEL = "true_label"
"""Column of data/prepare/train.parquet, int64, only where labels were planted."""

PLANTED_COLUMN = "labels_changed_on_purpose"
"""Column of tables for people: in every row, how many of all training labels were changed on purpose."""


def planted_note(n_planted: int) -> str:
    """The words that stand in reports, pages, figures and logs."""
    return f"labels changed on purpose: {n_planted:,}"


def count_planted(data: DataPaths, among: NDArray[np.bool_] | None = None) -> int | None:
    """How many training labels `prepare` changed on purpose; None where it changed none.

    Args:
        among: (N,) the training images to count; None for all. A part needs the manifest too.

    Raises:
        InputError: a file of `prepare` is missing or damaged.
    """
    n_planted: int | None = read_json(data.prepare_metrics).get("n_planted")
    if n_planted is None or among is None:
        return n_planted
    return int((_read_wrong(data, n_planted)[1] & among).sum()) or None


def read_true_labels(data: DataPaths) -> NDArray[np.int64] | None:
    """(N,) of the training images, for what reports on a filter; None where no label was changed on purpose.

    No stage that makes a result may call this: only the report, the visualizer and benchmarks do.

    Raises:
        InputError: the manifest is missing or damaged, or not of the metrics of `prepare`.
    """
    n_planted = count_planted(data)
    return None if n_planted is None else _read_wrong(data, n_planted)[0]


def _read_wrong(data: DataPaths, n_planted: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(N,) true labels, and (N,) whether the label is another one, as `n_planted` of them are."""
    file = data.manifest("train")
    manifest = read_parquet(file, {"label": pa.int64(), TRUE_LABEL: pa.int64()})
    true_labels: NDArray[np.int64] = manifest[TRUE_LABEL].to_numpy()
    wrong: NDArray[np.bool_] = true_labels != manifest["label"].to_numpy()
    if (n_wrong := int(wrong.sum())) != n_planted:
        raise InputError(
            f"{file}: {n_wrong} labels differ from their {TRUE_LABEL}, and {data.prepare_metrics} says {n_planted}; "
            "run `dvc repro --force prepare`"
        )
    return true_labels, wrong
