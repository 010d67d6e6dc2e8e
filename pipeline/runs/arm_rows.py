"""The images and labels that each run of a study trains on, from the output of the filter."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.arms import arm_mask
from pipeline.artifacts.prepared import PLANTED_COLUMN, PreparedData
from pipeline.artifacts.tables import read_csv, read_parquet, restore_cells
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.runs.grid import RunSpec

KEPT_COLUMNS = {"sample_id": pa.int64(), "path": pa.string(), "label_name": pa.string()}
"""Columns of kept.csv; label_name is after overrides."""

_SUGGESTIONS = {
    "path": pa.string(),
    "keep": pa.bool_(),
    "corrected_label": pa.int64(),
    "suggested_label": pa.int64(),
    "suggested_probability": pa.float32(),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainRows:
    """The images and labels that a run trains on.

    Attributes:
        mask: (N,) bool, the training images.
        labels: (N,) int64; of images outside the mask they have no meaning.
    """

    mask: NDArray[np.bool_]
    labels: NDArray[np.int64]

    def changed(self, original: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the images, (N,) bool, that the run trains on with another label than the `original` one (N,)."""
        return np.asarray(self.mask & (self.labels != original))


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterDecisions:
    """The decisions of one network's filter, and of manual overrides, on the training images.

    Attributes:
        keep: (N,) bool, after overrides.
        labels: (N,) int64, after overrides.
        suggested: (N,) int64, the suggested labels; None where no run needs them.
        probability: (N,) float32 of the suggested labels, 0 to 1.
    """

    keep: NDArray[np.bool_]
    labels: NDArray[np.int64]
    suggested: NDArray[np.int64] | None = None
    probability: NDArray[np.float32] | None = None
    _relabeled: dict[float, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)

    def relabeled(self, above: float | None) -> NDArray[np.int64]:
        """Return the labels (N,) of the arm `relabeled`.

        Args:
            above: dropped images get the suggested label if its probability is higher; None: only overrides change
                labels.
        """
        if above is None:
            return self.labels
        assert self.suggested is not None
        assert self.probability is not None
        # All runs of a study share the array.
        if above not in self._relabeled:
            self._relabeled[above] = np.where(~self.keep & (self.probability > above), self.suggested, self.labels)
        return self._relabeled[above]


def read_decisions(data: DataPaths, prepared: PreparedData, network: str, *, suggestions: bool) -> FilterDecisions:
    """Read the filter's kept.csv, and its points.parquet if `suggestions` are needed.

    Raises:
        InputError: a table is missing, damaged, or does not fit the training images.
    """
    path, original = data.kept(network), prepared.train.labels
    kept = restore_cells(read_csv(path, KEPT_COLUMNS, optional=[PLANTED_COLUMN]))
    ids = kept["sample_id"].to_numpy()
    images = read_parquet(data.manifest("train"), ["path"])["path"]
    in_range = len(ids) > 0 and ids.dtype.kind == "i" and ids.min() >= 0 and ids.max() < len(original)
    # Rows of a table for another preparation may exist and refer to other images.
    if not in_range or len(np.unique(ids)) < len(ids) or kept["path"].to_pylist() != images.take(ids).to_pylist():
        raise InputError(f"{path}: does not fit the {len(original)} training images; run `dvc repro`")
    keep, labels = np.zeros(len(original), dtype=np.bool_), original.copy()
    keep[ids] = True
    labels[ids] = _label_indices(path, kept["label_name"].to_pylist(), prepared.class_names)
    if not suggestions:
        return FilterDecisions(keep=keep, labels=labels)
    path = data.points(network)
    points = read_parquet(path, _SUGGESTIONS)
    same = (
        points["path"].to_pylist() == images.to_pylist()
        and np.array_equal(points["keep"].to_numpy(), keep)
        and np.array_equal(points["corrected_label"].to_numpy(), labels)
    )
    suggested = points["suggested_label"].to_numpy()
    if not same or suggested.min() < 0 or suggested.max() >= len(prepared.class_names):
        raise InputError(f"{path}: does not fit {data.kept(network)}; run `dvc repro`")
    probability = points["suggested_probability"].to_numpy()
    return FilterDecisions(keep=keep, labels=labels, suggested=suggested, probability=probability)


def _label_indices(path: Path, names: list[str], class_names: tuple[str, ...]) -> list[int]:
    indices = {name: index for index, name in enumerate(class_names)}
    unknown = next((name for name in names if name not in indices), None)
    if unknown is not None:
        raise InputError(f"{path}: label {unknown!r} is not a class of this data set; run `dvc repro`")
    return [indices[name] for name in names]


def train_rows(spec: RunSpec, labels: NDArray[np.int64], decisions: Mapping[str, FilterDecisions]) -> TrainRows:
    """Return the images and labels that a run trains on.

    `full` and the random arms keep the labels of the data: they are the baseline of the filter and of overrides.

    Args:
        labels: (N,) of the data, before the filter and overrides.
        decisions: by filter network; the arm `full` needs none.
    """
    if spec.arm == "full":
        return TrainRows(mask=np.ones(len(labels), dtype=np.bool_), labels=labels)
    of_filter = decisions[spec.filter_network]
    replicate = list(decisions).index(spec.filter_network)
    mask = arm_mask(spec.arm, labels, of_filter.keep, seed=spec.settings.seed, draw=replicate)
    match spec.arm:
        case "filtered":
            return TrainRows(mask=mask, labels=of_filter.labels)
        case "relabeled":
            return TrainRows(mask=mask, labels=of_filter.relabeled(spec.relabel_above))
        case _:
            return TrainRows(mask=mask, labels=labels)


def check_replicates_differ(keep: Mapping[str, NDArray[np.bool_]], study: str) -> None:
    """Check that no two filters keep the same images: they would count as independent replicates.

    Args:
        keep: (N,) bool by filter network.
        study: name, for the message.
    """
    for left, right in itertools.combinations(keep, 2):
        if np.array_equal(keep[left], keep[right]):
            raise InputError(
                f"studies.{study}.filter_replicates: {left} and {right} keep the same images, so they are not "
                "replicates; lower filter_replicates, or use a scorer or an extractor with random parts"
            )
