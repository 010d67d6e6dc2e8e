"""Measure the loss landscape of each network of a study whose weights were saved, once per network."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.prepared import ImageFiles, PreparedSplit
from pipeline.artifacts.provenance import code_digest, sha256_of_file
from pipeline.errors import InputError
from pipeline.landscape.curvature import DISTANCES, LandscapeMeasurement, measure, random_rows
from pipeline.training.evaluation import evaluation_images
from pipeline.training.run_key import worker_machine_info
from pipeline.training.settings import ImageFormat
from pipeline.training.weights import check_weights_path, load_trained

_RUN_FIELDS = (
    "study", "fingerprint", "model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay", "seed",
)  # fmt: skip

SPLITS = ("train", "test")
"""Splits whose images give the loss. Only the full arm has seen all images of `train`; no arm has seen `test`."""

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("study", "fingerprint", "model", "arm", "filter_network")),
        ("batch_size", pa.int64()),
        *((name, pa.float64()) for name in ("learning_rate", "weight_decay")),
        ("seed", pa.int64()),
        *((name, pa.string()) for name in ("weights_sha256", "split")),
        *((name, pa.int64()) for name in ("n_images", "measuring_seed")),
        *((name, pa.float64()) for name in ("loss", "top_eigenvalue", "residual")),
        ("products", pa.int64()),
        ("converged", pa.bool_()),
        ("rise", pa.float64()),
        ("distances", pa.list_(pa.float64())),
        ("slices", pa.list_(pa.list_(pa.float64()))),
    ]
)
"""Columns of data/landscape/<study>.parquet; losses in nats, distances in norms of the filters."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The method of measurement, equal for all networks.

    Attributes:
        images: number of images of each split.
        directions: slices per network.
        seed: of the choice of images, the directions and the first vector of the eigenvalue's iteration.
    """

    images: int
    directions: int
    seed: int


class NetworkMeasurer:
    """Measure networks by their weight files, and cache the results in a folder.

    Args:
        splits: by name; the loss of each is measured.
        data_digest: of the images and labels of both splits.
        folder: of the cache, one file per network and split. The key covers weights, images, method, code, SciPy
            and machine.
    """

    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        method: Method,
        *,
        data_digest: str,
        folder: Path,
        device: torch.device,
    ) -> None:
        self._splits, self._method, self._device, self._folder = splits, method, device, folder
        self._load = cache(self._load_uncached)
        self._key_values = {
            "data": data_digest,
            **asdict(method),
            "code": code_digest("pipeline.landscape.curvature"),
            "machine": worker_machine_info(device, torch.get_num_threads()),
            "scipy": metadata.version("scipy"),
        }

    def rows(self, run: Mapping[str, Any], weights: Path) -> list[dict[str, Any]]:
        """Return the network of one run as rows of `SCHEMA`, one for each split.

        Raises:
            InputError: the file is not a trained network, or a cached result is damaged.
        """
        check_weights_path(weights)
        digest = sha256_of_file(weights)
        return [
            {
                **{name: run[name] for name in _RUN_FIELDS},
                "weights_sha256": digest,
                "split": split,
                "n_images": self._method.images,
                "measuring_seed": self._method.seed,
                "distances": DISTANCES.tolist(),
                **self._measured(weights, digest, split),
            }
            for split in self._splits
        ]

    def _measured(self, weights: Path, digest: str, split: str) -> dict[str, Any]:
        key = json.dumps([digest, split, self._key_values], sort_keys=True)
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        if not path.exists():
            trained = load_trained(weights, self._device)
            images, labels = self._load(split, trained.format)
            method = self._method
            with distributed.float32_arithmetic(tf32=False):
                measurement = measure(trained.model, images, labels, directions=method.directions, seed=method.seed)
            write_json(path, _values(measurement))
        return _recorded(path, self._method.directions)

    def _load_uncached(self, split: str, image_format: ImageFormat) -> tuple[Tensor, Tensor]:
        """Return images (n, 3, C, C) and labels (n,) on the device."""
        images_and_labels = self._splits[split]
        rows = random_rows(len(images_and_labels.labels), self._method.images, self._method.seed)
        source, labels = images_and_labels.source, torch.from_numpy(images_and_labels.labels[rows])
        if not isinstance(source, ImageFiles):
            source, rows = source[rows], np.arange(len(rows))
        images = evaluation_images(source, image_format, self._device)
        with images.prefetch([(rows, None)]):
            return images.evaluation_batch(rows), labels.to(self._device)


def measured_rows(
    runs: Sequence[Mapping[str, Any]],
    weights_path: Callable[[str], Path],
    measurer: NetworkMeasurer,
    on_done: Callable[[], None],
) -> list[dict[str, Any]]:
    """Return rows of `SCHEMA` for each run, in the order of `runs`.

    Args:
        runs: rows of data/train/<study>.parquet whose weights exist.
        weights_path: fingerprint -> file.
        on_done: called after each network.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        rows += measurer.rows(run, weights_path(run["fingerprint"]))
        on_done()
    return rows


def _values(measurement: LandscapeMeasurement) -> dict[str, Any]:
    return {
        "loss": measurement.loss,
        "top_eigenvalue": measurement.top.value,
        "residual": measurement.top.residual,
        "products": measurement.top.products,
        "converged": measurement.top.converged,
        "rise": measurement.rise,
        "slices": measurement.slices.tolist(),
    }


def _recorded(path: Path, directions: int) -> dict[str, Any]:
    """Return what `_values` wrote; numbers that are not finite were written as null."""
    number = float | None
    kinds: dict[str, Any] = {
        "loss": number, "top_eigenvalue": number, "residual": number, "products": int, "converged": bool,
        "rise": number, "slices": list,
    }  # fmt: skip
    with suppress(InputError, TypeError, AttributeError):  # JSON of any kind
        values: dict[str, Any] = read_json(path)
        fits = values.keys() == kinds.keys() and all(isinstance(values[key], kinds[key]) for key in kinds)
        fits = fits and [len(losses) for losses in values["slices"]] == [len(DISTANCES)] * directions
        if fits and all(isinstance(loss, number) for losses in values["slices"] for loss in losses):
            return values
    raise InputError(f"{path}: not a measured landscape; delete it and run the same command again")
