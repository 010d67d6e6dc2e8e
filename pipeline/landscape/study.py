"""The networks of a study whose weights were kept, each measured once."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.artifacts.code import code_digest
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.prepared import ImageFiles, PreparedSplit
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.landscape.measure import DISTANCES, Measurement, measure
from pipeline.training.fingerprint import this_machine
from pipeline.training.images import evaluation_images
from pipeline.training.settings import ImageFormat
from pipeline.training.weights import load_trained

_OF_RUN = (
    "study", "fingerprint", "model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay", "seed",
)  # fmt: skip

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("study", "fingerprint", "model", "arm", "filter_network")),
        ("batch_size", pa.int64()),
        *((name, pa.float64()) for name in ("learning_rate", "weight_decay")),
        ("seed", pa.int64()),
        ("weights_sha256", pa.string()),
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
        ids: (n,) rows of the training split, whose loss it is.
        directions: slices of each network.
        seed: of the directions and of the power iteration.
    """

    ids: NDArray[np.int64]
    directions: int
    seed: int


class NetworkMeasurer:
    """Measures networks by their weights' files, and remembers them in a folder.

    Args:
        split: the training images.
        data_digest: of the images and labels of both splits.
        folder: of what was measured, a file a network; changed weights, images, methods, code or machines are new
            ones.
    """

    def __init__(
        self, split: PreparedSplit, method: Method, *, data_digest: str, folder: Path, device: torch.device
    ) -> None:
        self._split, self._method, self._device, self._folder = split, method, device, folder
        self._labels = torch.from_numpy(split.labels[method.ids]).to(device)
        self._images = cache(self._load_images)
        self._decides = {
            "data": data_digest,
            "ids": hashlib.sha256(method.ids.tobytes()).hexdigest(),
            "directions": method.directions,
            "seed": method.seed,
            "code": code_digest("pipeline.landscape.measure"),
            "machine": this_machine(device),
        }

    def row(self, run: Mapping[str, Any], weights: Path) -> dict[str, Any]:
        """The network of one run as a row of `SCHEMA`.

        Raises:
            InputError: the file is no trained network.
        """
        digest = sha256_of_file(weights)
        found = self._measured(weights, digest)
        return {
            **{name: run[name] for name in _OF_RUN},
            "weights_sha256": digest,
            "n_images": len(self._method.ids),
            "measuring_seed": self._method.seed,
            "distances": DISTANCES.tolist(),
            **found,
        }

    def _measured(self, weights: Path, digest: str) -> dict[str, Any]:
        key = json.dumps([digest, self._decides], sort_keys=True)
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        if not path.exists():
            trained = load_trained(weights, self._device)
            images = self._images(trained.format)
            method = self._method
            found = measure(trained.model, images, self._labels, directions=method.directions, seed=method.seed)
            write_json(path, _values(found))
        values: dict[str, Any] = read_json(path)
        return values

    def _load_images(self, image_format: ImageFormat) -> Tensor:
        """(n, 3, C, C) on the device."""
        source, rows = self._split.source, self._method.ids
        if not isinstance(source, ImageFiles):
            source, rows = source[rows], np.arange(len(rows))
        images = evaluation_images(source, image_format, self._device)
        with images.prefetch([(rows, None)]):
            return images.evaluation_batch(rows)


def measured_rows(
    runs: Sequence[Mapping[str, Any]],
    weights_of: Callable[[str], Path],
    measurer: NetworkMeasurer,
    done: Callable[[], None],
) -> list[dict[str, Any]]:
    """A row of `SCHEMA` for each finished run whose weights are there, in the order of `runs`.

    Args:
        runs: rows of data/train/<study>.parquet.
        weights_of: fingerprint -> file.
        done: is called after each network.
    """
    rows = []
    for run in runs:
        if run["status"] == "finished" and (weights := weights_of(run["fingerprint"])).exists():
            rows.append(measurer.row(run, weights))
            done()
    return rows


def _values(found: Measurement) -> dict[str, Any]:
    return {
        "loss": found.loss,
        "top_eigenvalue": found.top.value if found.top.converged else None,
        "residual": found.top.residual,
        "products": found.top.products,
        "converged": found.top.converged,
        "rise": found.rise,
        "slices": found.slices.tolist(),
    }
