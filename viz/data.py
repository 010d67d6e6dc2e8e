"""What the app shows, read from data/ and read again when a stage has replaced a file."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.arrays import open_array
from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.overrides import locate_overrides, read_overrides
from pipeline.artifacts.tables import list_column, read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.selection.dbscan import ROUNDING, release_radii_by_class

_COLUMNS = ("sample_id", "path", "sha256", "label", "predicted", "x", "y", "score", "reason", "neighbours", "keep")
# Of (network, min_samples): 8 bytes an image each.
_MOST_REMEMBERED = 64

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """One network's training images, row = sample_id.

    Attributes:
        coordinates: (N, 2) places on the map.
        labels: (N,) int64.
        predicted: (N,) the class that the fine-tuned network sees.
        score: (N,) 0 to 1, above 1/2 exactly for noise.
        keep: (N,) the filter's decision as written, human decisions included.
        by_hand: sample_id -> whether a person keeps it.
        neighbours: (N, k) sample_ids, nearest first.
        noise_share: share of the images that the filter itself would drop, 0 to 1.
        scorer: what the filter looked at.
        eps: radius that it used, in map units; None unless it was DBSCAN on the map with one radius.
        stamp: differs whenever one of the files has been replaced.
    """

    coordinates: NDArray[np.float64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    score: NDArray[np.float64]
    reason: pa.ChunkedArray
    keep: NDArray[np.bool_]
    by_hand: dict[int, bool]
    neighbours: NDArray[np.int64]
    noise_share: float
    scorer: str
    eps: float | None
    class_names: tuple[str, ...]
    images: NDArray[np.uint8]
    stamp: str


class Source:
    """The artefacts of one data folder. Safe to use from several threads."""

    def __init__(self, data: DataPaths) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._cache: dict[tuple[Any, ...], Any] = {}

    def points(self, network: str) -> Points:
        """The network's points as they are on the disk now.

        Raises:
            InputError: a file is missing, damaged, or does not fit the others.
        """
        data = self._data
        files = (
            data.points(network),
            data.filter_metrics(network),
            data.images("train"),
            data.prepare_metrics,
            data.overrides,
        )
        stamp = "-".join(_stamp(file) for file in files)
        return self._once(("points", network), stamp, lambda: _read_points(data, network, stamp))

    def radii(self, network: str, min_samples: int) -> NDArray[np.float64]:
        """(N,) eps from which on each image is not noise; computed once per network and `min_samples`."""
        points = self.points(network)
        return self._once(
            ("radii", network, min_samples),
            points.stamp,
            lambda: release_radii_by_class(points.coordinates, points.labels, min_samples=min_samples),
        )

    def image(self, sample_id: int) -> NDArray[np.uint8] | None:
        """uint8 (H, W, 3); None if there is no such training image.

        Raises:
            InputError: the array of images is missing or damaged.
        """
        path = self._data.images("train")
        images = self._once(("images",), _stamp(path), lambda: open_array(path, dtype=np.uint8, ndim=4))
        return np.asarray(images[sample_id]) if 0 <= sample_id < len(images) else None

    def _once(self, key: tuple[Any, ...], stamp: str, make: Callable[[], _T]) -> _T:
        """What `make` gave for this stamp; one stamp per key is remembered."""
        with self._lock:
            remembered = self._cache.pop(key, None)
            if remembered is None or remembered[0] != stamp:
                remembered = stamp, make()
            self._cache[key] = remembered
            while len(self._cache) > _MOST_REMEMBERED:
                del self._cache[next(iter(self._cache))]
            value: _T = remembered[1]
            return value


def live_keep(points: Points, radii: NDArray[np.float64], eps: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What the filter would do at `eps`: (kept, noise), each (N,). Human decisions overrule noise, as there."""
    # A radius that equals eps up to rounding is reached, as DBSCAN has it.
    noise = radii > eps * (1 + ROUNDING)
    keep = ~noise
    if points.by_hand:
        keep[list(points.by_hand)] = list(points.by_hand.values())
    return keep, noise


def _read_points(data: DataPaths, network: str, stamp: str) -> Points:
    path = data.points(network)
    table, metrics = read_parquet(path, _COLUMNS), read_json(data.filter_metrics(network))
    n = len(table)
    images = open_array(data.images("train"), dtype=np.uint8, ndim=4)
    names = read_json(data.prepare_metrics).get("class_names", [])
    if len(images) != n or not np.array_equal(table["sample_id"].to_numpy(), np.arange(n)):
        raise InputError(f"{path}: its {n} rows are not those of the {len(images)} training images; run `dvc repro`")
    labels, predicted = (table[column].to_numpy().astype(np.int64) for column in ("label", "predicted"))
    neighbours: NDArray[np.int64] = list_column(table, "neighbours", path).astype(np.int64)
    for column, values, limit in (
        ("label", labels, len(names)),
        ("predicted", predicted, len(names)),
        ("neighbours", neighbours, n),
    ):
        if n == 0 or values.min(initial=0) < 0 or values.max(initial=0) >= limit:
            raise InputError(f"{path}: its column {column} does not fit {data.prepare_metrics}; run `dvc repro`")
    overrides = read_overrides(data.overrides) if data.overrides.exists() else []
    located = locate_overrides(
        overrides, file=data.overrides, paths=table["path"].to_pylist(), sha256=table["sha256"].to_pylist()
    )
    scorer = metrics["settings"]["scorer"]
    coordinates = np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()]).astype(np.float64)
    return Points(
        coordinates=coordinates,
        labels=labels,
        predicted=predicted,
        score=table["score"].to_numpy(),
        reason=table["reason"],
        keep=table["keep"].to_numpy(),
        by_hand={row: override.decision == "keep" for row, override in located.items()},
        neighbours=neighbours,
        noise_share=float(metrics["achieved_share"]),
        scorer=scorer["name"],
        eps=metrics["eps"] if scorer["name"] == "dbscan" and scorer["space"] == "map" else None,
        class_names=tuple(names),
        images=images,
        stamp=stamp,
    )


def _stamp(path: Path) -> str:
    """Changes when a stage replaces the file; "0" while it is missing."""
    try:
        status = path.stat()
    except OSError:
        return "0"
    return f"{status.st_ino:x}.{status.st_mtime_ns:x}.{status.st_size:x}"
