"""Data of the app, read from data/ and read again when a stage has replaced a file."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides
from pipeline.artifacts.prepared import planted_note, read_true_labels
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import filter_inputs, map_inputs
from pipeline.artifacts.tables import list_column, read_parquet
from pipeline.errors import InputError
from pipeline.filtering.inputs import input_files, load_network_data
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs
from viz.artifacts import FilterMetrics, PrepareMetrics, read_typed
from viz.cache import StampedCache, files_stamp, read_consistently

_COLUMNS = (
    "sample_id", "path", "sha256", "label", "predicted", "confidence", "x", "y", "cluster", "is_noise", "eps", "score",
    "reason", "neighbours", "keep",
)  # fmt: skip
_PAIR_COLUMNS = ("sample_id", "other_split", "other_sample_id")
# Points of a million images take 0.3 GB; values of a scorer, or radii of a class, 8 bytes per image.
_MAX_CACHE_BYTES = 2**30
# A preview takes 17 bytes per image, and one move of a control uses it several times.
_MAX_PREVIEW_BYTES = 2**27
# Of these the decisions of the filter are known, for what has changed.
_MAX_GENERATIONS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Output of the filter for one network's N training images, row = sample_id.

    Attributes:
        network: name.
        paths, sha256: of the image files; overrides refer to both, so that they stay valid after `prepare`.
        coordinates: (N, 2) in the embedding.
        labels: (N,) int64 indices into `class_names`.
        predicted, confidence: (N,) class that the fine-tuned network predicts, and its probability, 0 to 1: the
            suggested label.
        clusters: (N,) int32 numbered from 0 within each class, noise -1.
        is_noise: (N,) decision of the filter.
        thresholds: (N,) in the unit of the scorer; values of dropped images exceed them.
        scores: (N,) 0 to 1, above 1/2 exactly for noise.
        reasons: (N,) texts.
        kept: (N,) decision of the filter, with the overrides of that run.
        neighbors: (N, k) sample_ids, nearest first.
        scorer: name and options of the filter's scorer.
        eps: threshold in the unit of the scorer; None if it differs between classes.
        class_names: of the labels.
        dataset: name in params.yaml, if known.
        true_labels: (N,) int64 if labels were changed on purpose, else None.
        duplicate_pairs: (P, 2) int64 rows of near duplicates, the most similar first, of which the filter drops the
            redundant ones; rows from N on are test images. No pair if it drops none.
        images: uint8 (N, H, W, 3).
        images_stamp: changes whenever the file of `images` is replaced.
        stamp: changes whenever one of the files is replaced.
    """

    network: str
    paths: pa.ChunkedArray
    sha256: pa.ChunkedArray
    coordinates: NDArray[np.float64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    clusters: NDArray[np.int32]
    is_noise: NDArray[np.bool_]
    thresholds: NDArray[np.float64]
    scores: NDArray[np.float64]
    reasons: pa.ChunkedArray
    kept: NDArray[np.bool_]
    neighbors: NDArray[np.int64]
    scorer: Mapping[str, Any]
    eps: float | None
    class_names: tuple[str, ...]
    dataset: str | None = None
    true_labels: NDArray[np.int64] | None = None
    duplicate_pairs: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    images: NDArray[np.uint8]
    images_stamp: str
    stamp: str

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, row: int) -> str:
        """Return the class name of an image."""
        return self.class_names[int(self.labels[row])]

    @cached_property
    def planted(self) -> NDArray[np.bool_]:
        """(N,) whether the label was changed on purpose."""
        none = np.zeros(len(self), dtype=np.bool_)
        return none if self.true_labels is None else self.true_labels != self.labels

    @property
    def planted_note(self) -> str | None:
        """Note with the number of labels changed on purpose; None if there are none."""
        return None if self.true_labels is None else planted_note(int(self.planted.sum()))

    @property
    def generation(self) -> str:
        """Network and stamp, which identify the rows of a page."""
        return f"{self.network} {self.stamp}"

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Path -> row."""
        return {path: row for row, path in enumerate(self.paths.to_pylist())}

    @cached_property
    def classes(self) -> Mapping[int, int]:
        """Label -> number of images, for classes with images."""
        return dict(zip(*(part.tolist() for part in np.unique(self.labels, return_counts=True)), strict=True))


class Source:
    """Reader of the artifacts of one data folder, with caches. It is thread-safe."""

    def __init__(self, data: DataPaths) -> None:
        self.data = data
        self.cache = StampedCache(_MAX_CACHE_BYTES)
        self.previews = StampedCache(_MAX_PREVIEW_BYTES)
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[pa.ChunkedArray, NDArray[np.bool_]]] = {}

    def points(self, network: str) -> Points:
        """Return the network's points as currently on disk.

        Raises:
            InputError: the network is unknown; a file is missing, damaged, not what its stage wrote, or does not fit
                the others.
        """
        # The name becomes part of file names.
        if not re.fullmatch(r"(timm/)?[A-Za-z0-9_-]{1,64}(\.[a-z0-9_]{1,64})?(-r[0-9]{1,2})?", network):
            raise InputError(f"network: {network[:64]!r} is not a network; choose one of params.yaml")
        files = _files(self.data, network)
        # The data may be newer than this stamp. Then the next call reads again.
        points = self.cache.get(
            ("points", network),
            files_stamp(files),
            lambda: read_consistently(files, lambda: _read_points(self.data, network))[1],
        )
        with self._lock:
            self._kept[points.generation] = points.sha256, points.kept
            while len(self._kept) > _MAX_GENERATIONS:
                del self._kept[next(iter(self._kept))]
        return points

    def kept_before(self, generation: str, points: Points) -> NDArray[np.bool_] | None:
        """Return what the filter kept (N,) in an earlier generation of these images; None if that is not known."""
        with self._lock:
            sha256, kept = self._kept.get(generation, (None, None))
        return kept if sha256 is not None and sha256.equals(points.sha256) else None

    def classes(self) -> list[tuple[int, str]]:
        """Return label and name of each class with training images; empty before `prepare` has run."""
        try:
            names = read_typed(self.data.prepare_metrics, PrepareMetrics).class_names
            labels = np.unique(read_parquet(self.data.manifest("train"), ["label"])["label"].to_numpy()).tolist()
        except InputError:
            return []
        return [(label, names[label]) for label in labels if 0 <= label < len(names)]

    def overrides(self, points: Points) -> dict[int, Override]:
        """Return row -> override of the image.

        Raises:
            InputError: the file of overrides is damaged or names unknown images.
        """
        file = self.data.overrides
        return self.cache.get(
            ("overrides", points.network), self.decisions_stamp(points), lambda: _read_overrides(file, points)
        )

    def decisions_stamp(self, points: Points) -> str:
        """Return a stamp that changes whenever a file of the points, or the file of overrides, is replaced."""
        return f"{points.stamp} {self.overrides_stamp()}"

    def overrides_stamp(self) -> str:
        """Return a stamp that changes whenever the file of overrides is replaced."""
        return files_stamp([self.data.overrides])

    def scorer_inputs(self, points: Points) -> ScorerInputs:
        """Return the inputs of all scorers.

        Raises:
            InputError: a file is missing, damaged, or does not fit the others and the points.
        """
        network = points.network
        records = [self.data.provenance(stage, network) for stage in ("finetune", "extract", "reduce")]
        files = [*input_files(self.data, network), *records]
        stamp = f"{points.stamp} {files_stamp(files)}"
        return self.cache.get(
            ("scorer inputs", network),
            stamp,
            lambda: read_consistently(files, lambda: _read_scorer_inputs(self.data, points))[1],
        )

    def image(self, sample_id: int, stamp: str | None = None) -> NDArray[np.uint8] | None:
        """Return an image, uint8 (H, W, 3), or None if there is no such training image.

        Args:
            sample_id: of the image.
            stamp: `Points.images_stamp` that the file must have; None for any.

        Raises:
            InputError: the array of images is missing, damaged or has another stamp.
        """
        path = self.data.images("train")
        opened, images = self.cache.get(
            "images",
            files_stamp([path]),
            lambda: read_consistently([path], lambda: open_array(path, dtype=np.uint8, ndim=4)),
        )
        if stamp not in (None, opened):
            raise InputError(f"{path}: has been replaced since the page was loaded; reload the page")
        return np.asarray(images[sample_id]) if 0 <= sample_id < len(images) else None


def _read_overrides(file: Path, points: Points) -> dict[int, Override]:
    overrides = read_overrides(file) if file.exists() else []
    if not overrides:
        return {}
    return locate_overrides(
        overrides, file=file, paths=points.paths.to_pylist(), sha256=points.sha256.to_pylist(),
        class_names=points.class_names,
    )  # fmt: skip


def _read_scorer_inputs(data: DataPaths, points: Points) -> ScorerInputs:
    loaded = load_network_data(data, points.network)
    assert loaded.scorer_inputs.embeddings is not None
    same = (
        loaded.images["sha256"].equals(points.sha256)
        and np.array_equal(loaded.scorer_inputs.embeddings[0], points.coordinates)
        and np.array_equal(loaded.images["predicted"].to_numpy(), points.predicted)
    )
    if not same:
        file = data.points(points.network)
        raise InputError(f"{file}: is older than the inputs of the filter, or a stage is running; run `dvc repro`")
    check_with_note(data, filter_inputs(points.network, data))
    return loaded.scorer_inputs


def _files(data: DataPaths, network: str) -> tuple[Path, ...]:
    return (
        data.points(network), data.filter_metrics(network), data.images("train"), data.manifest("train"),
        data.prepare_metrics, data.near_duplicates(network), data.provenance("prepare"),
        data.provenance("filter", network),
    )  # fmt: skip


def _read_points(data: DataPaths, network: str) -> Points:
    path = data.points(network)
    table, filtering = read_parquet(path, _COLUMNS), read_typed(data.filter_metrics(network), FilterMetrics)
    manifest = read_parquet(data.manifest("train"), ["sha256"])
    n = len(table)
    images = open_array(data.images("train"), dtype=np.uint8, ndim=4)
    prepared = read_typed(data.prepare_metrics, PrepareMetrics)
    names = prepared.class_names
    if len(images) != n or not np.array_equal(table["sample_id"].to_numpy(), np.arange(n)):
        raise InputError(f"{path}: its {n} rows do not match the {len(images)} training images; run `dvc repro`")
    if not table["sha256"].combine_chunks().equals(manifest["sha256"].combine_chunks()):
        raise InputError(f"{path}: has other images than {data.manifest('train')}; run `dvc repro`")
    labels, predicted = (table[column].to_numpy().astype(np.int64) for column in ("label", "predicted"))
    neighbors: NDArray[np.int64] = list_column(table, "neighbours", path).astype(np.int64)
    for column, values, limit in (
        ("label", labels, len(names)),
        ("predicted", predicted, len(names)),
        ("neighbours", neighbors, n),
    ):
        if n == 0 or values.min(initial=0) < 0 or values.max(initial=0) >= limit:
            raise InputError(f"{path}: its column {column} does not fit {data.prepare_metrics}; run `dvc repro`")
    _check_scores(table, path)
    thresholds = table["eps"].to_numpy()
    if filtering.eps is not None and (thresholds != filtering.eps).any():
        file = data.filter_metrics(network)
        raise InputError(
            f"{path}: belongs to another run of the filter than {file}; a stage is running, or run `dvc repro`"
        )
    points = Points(
        network=network,
        paths=table["path"],
        sha256=table["sha256"],
        coordinates=np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()]).astype(np.float64),
        labels=labels,
        predicted=predicted,
        confidence=table["confidence"].to_numpy().astype(np.float64),
        clusters=table["cluster"].to_numpy().astype(np.int32),
        is_noise=table["is_noise"].to_numpy(),
        thresholds=thresholds,
        scores=table["score"].to_numpy(),
        reasons=table["reason"],
        kept=table["keep"].to_numpy(),
        neighbors=neighbors,
        scorer=filtering.scorer,
        eps=filtering.eps,
        class_names=names,
        dataset=prepared.dataset,
        true_labels=_true_labels(data, names),
        duplicate_pairs=_duplicate_pairs(data.near_duplicates(network), n)
        if filtering.drops_near_duplicates
        else np.empty((0, 2), dtype=np.int64),
        images=images,
        images_stamp=files_stamp([data.images("train")]),
        stamp=files_stamp(_files(data, network)),
    )
    # Last: what the files contradict says more than a hash.
    check_with_note(data, map_inputs(network, data))
    return points


def _true_labels(data: DataPaths, names: Sequence[str]) -> NDArray[np.int64] | None:
    true_labels = read_true_labels(data)
    if true_labels is not None and not (true_labels.min() >= 0 and true_labels.max() < len(names)):
        raise InputError(f"{data.manifest('train')}: has true labels without a class; run `dvc repro --force prepare`")
    return true_labels


def _duplicate_pairs(path: Path, n: int) -> NDArray[np.int64]:
    table = read_parquet(path, _PAIR_COLUMNS)
    first, second = (table[column].to_numpy().astype(np.int64) for column in ("sample_id", "other_sample_id"))
    in_test = np.array(table["other_split"].to_pylist()) == "test"
    of_training = np.concatenate([first, second[~in_test]])
    if (of_training >= n).any() or (np.concatenate([first, second]) < 0).any():
        raise InputError(f"{path}: has pairs of unknown images; run `dvc repro`")
    return np.column_stack([first, np.where(in_test, n + second, second)])


def _check_scores(table: pa.Table, path: Path) -> None:
    for column in ("x", "y", "confidence", "score"):
        if not np.isfinite(table[column].to_numpy()).all():
            raise InputError(f"{path}: its column {column} has values that are not finite; run `dvc repro`")
    if not np.array_equal(table["score"].to_numpy() > 0.5, table["is_noise"].to_numpy()):
        raise InputError(f"{path}: its columns score and is_noise disagree; run `dvc repro`")
