"""The networks of a study whose weights were kept, each measured once."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
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
from pipeline.landscape.curvature import DISTANCES, LandscapeMeasurement, measure, random_rows
from pipeline.training.evaluation import evaluation_images
from pipeline.training.run_key import worker_machine_info
from pipeline.training.settings import ImageFormat
from pipeline.training.weights import load_trained

_RUN_FIELDS = (
    "study", "fingerprint", "model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay", "seed",
)  # fmt: skip

SPLITS = ("train", "test")
"""Whose images give the loss: some of the first only the full arm has seen, the others none has."""

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
"""Of data/landscape/<study>.parquet; losses in nats, distances in norms of the filters."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How all networks are measured.

    Attributes:
        images: how many of each split give its loss.
        directions: slices of each network.
        seed: of the choice of images, the directions and the first vector of the eigenvalue's iteration.
    """

    images: int
    directions: int
    seed: int


class NetworkMeasurer:
    """Measures networks by their weights' files, and remembers them in a folder.

    Args:
        splits: by name; the loss of each is measured.
        data_digest: of the images and labels of both splits.
        folder: of what was measured, a file a network; changed weights, images, methods, code or machines are new
            ones.
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
        self._decides = {
            "data": data_digest,
            **asdict(method),
            "code": code_digest("pipeline.landscape.curvature"),
            "machine": worker_machine_info(device, torch.get_num_threads()),
        }

    def rows(self, run: Mapping[str, Any], weights: Path) -> list[dict[str, Any]]:
        """The network of one run as rows of `SCHEMA`, one for each split.

        Raises:
            InputError: the file is no trained network.
        """
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
        key = json.dumps([digest, split, self._decides], sort_keys=True)
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        if not path.exists():
            trained = load_trained(weights, self._device)
            images, labels = self._load(split, trained.format)
            method = self._method
            with distributed.float32_arithmetic(tf32=False):
                found = measure(trained.model, images, labels, directions=method.directions, seed=method.seed)
            write_json(path, _values(found))
        values: dict[str, Any] = read_json(path)
        return values

    def _load_uncached(self, split: str, image_format: ImageFormat) -> tuple[Tensor, Tensor]:
        """(n, 3, C, C) and (n,) on the device."""
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
    weights_of: Callable[[str], Path],
    measurer: NetworkMeasurer,
    done: Callable[[], None],
) -> list[dict[str, Any]]:
    """Rows of `SCHEMA` for each finished run whose weights are there, in the order of `runs`.

    Args:
        runs: rows of data/train/<study>.parquet.
        weights_of: fingerprint -> file.
        done: is called after each network.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        if run["status"] == "finished" and (weights := weights_of(run["fingerprint"])).exists():
            rows += measurer.rows(run, weights)
            done()
    return rows


def _values(found: LandscapeMeasurement) -> dict[str, Any]:
    return {
        "loss": found.loss,
        "top_eigenvalue": found.top.value,
        "residual": found.top.residual,
        "products": found.top.products,
        "converged": found.top.converged,
        "rise": found.rise,
        "slices": found.slices.tolist(),
    }
