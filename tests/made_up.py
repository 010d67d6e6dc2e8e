"""Small made-up artefacts, as the stages before would have written them."""

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ruamel.yaml import YAML

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.tables import write_parquet
from pipeline.paths import DataPaths

ROOT = Path(__file__).parents[1]
NETWORK = "resnet18"


def class_blobs(
    rng: np.random.Generator, n_classes: int, per_class: int, dimensions: int, spread: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features (N, D) float32 of one Gaussian blob a class, and labels (N,), classes in turn."""
    labels = np.tile(np.arange(n_classes), per_class)
    centres = rng.normal(scale=5, size=(n_classes, dimensions))
    features = centres[labels] + rng.normal(scale=spread, size=(len(labels), dimensions))
    return features.astype(np.float32), labels


def write_params(folder: Path, **sections: Mapping[str, Any]) -> Path:
    """tests/params.yaml in `folder`, with keys of some sections replaced; None removes a key."""
    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load((ROOT / "tests" / "params.yaml").read_text())
    for section, keys in sections.items():
        tree.setdefault(section, {}).update(keys)
        tree[section] = {key: value for key, value in tree[section].items() if value is not None}
    path = folder / "params.yaml"
    with path.open("w") as file:
        yaml.dump(tree, file)
    return path


def name_networks(path: Path, networks: Sequence[str]) -> None:
    """Other `networks` in the parameter file `path`; the studies take the first one's filter."""
    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load(path.read_text())
    tree["networks"] = list(networks)
    for study in tree["studies"].values():
        study |= {"filter_network": networks[0], "needs": f"filter/{networks[0]}"}
    with path.open("w") as file:
        yaml.dump(tree, file)


def write_manifest(
    data: DataPaths,
    split: str,
    labels: NDArray[np.int64],
    *,
    names: Sequence[str] | None = None,
    paths: Sequence[str] | None = None,
) -> None:
    """data/prepare/<split>.parquet, and the names of the classes; each image's sha256 is that of its path."""
    names = names or [f"class{label}" for label in range(int(labels.max()) + 1)]
    paths = paths or [f"{split}/{names[label]}/{row:05}.png" for row, label in enumerate(labels)]
    # Whole metrics of a made-up project stay as they are.
    if split == "train" and not (data.prepare_metrics.exists() and "image_size" in read_json(data.prepare_metrics)):
        write_json(data.prepare_metrics, {"class_names": list(names)})
    write_parquet(
        data.manifest(split),
        pa.table(
            {
                "sample_id": np.arange(len(labels)),
                "path": list(paths),
                "label": labels,
                "label_name": [names[label] for label in labels],
                "sha256": [sha256_of(path) for path in paths],
            }
        ),
    )


def sha256_of(path: str) -> str:
    """The hash that `write_manifest` gives an image."""
    return hashlib.sha256(path.encode()).hexdigest()


def write_features(data: DataPaths, train: NDArray[np.float32], test: NDArray[np.float32]) -> None:
    """data/extract/<network>[.test].npy."""
    write_array(data.features(NETWORK), train)
    write_array(data.features(NETWORK, "test"), test)


def write_predictions(data: DataPaths, labels: NDArray[np.int64]) -> None:
    """data/extract/<network>.parquet and .probabilities.npy: every prediction is right, and 90 % sure."""
    confidence = np.full(len(labels), 0.9, dtype=np.float32)
    others = int(labels.max())
    probabilities = np.full((len(labels), others + 1), 0.1 / max(1, others), dtype=np.float32)
    probabilities[np.arange(len(labels)), labels] = 0.9 if others else 1
    write_array(data.probabilities(NETWORK), probabilities)
    write_array(data.training_confidence(NETWORK), probabilities[np.arange(len(labels)), labels] / 2)
    table = {"sample_id": np.arange(len(labels)), "predicted": labels, "confidence": confidence}
    write_parquet(data.predictions(NETWORK), pa.table(table))


def write_embedding(
    data: DataPaths, coordinates: NDArray[np.float32], neighbours: Sequence[Sequence[int]] | None = None
) -> None:
    """All of data/reduce/ that `filter` reads; each image's neighbours are the two after it, unless given.

    The principal components are the places on the map.
    """
    n = len(coordinates)
    neighbours = neighbours or [[(row + 1) % n, (row + 2) % n] for row in range(n)]
    distances = [[float(rank) for rank, _ in enumerate(row)] for row in neighbours]
    table = {
        "sample_id": np.arange(n),
        "x": np.ascontiguousarray(coordinates[:, 0]),
        "y": np.ascontiguousarray(coordinates[:, 1]),
        "neighbours": pa.array(neighbours, pa.list_(pa.int32())),
        "distances": pa.array(distances, pa.list_(pa.float32())),
    }
    write_parquet(data.embedding(NETWORK), pa.table(table))
    write_array(data.maps(NETWORK), coordinates[None].astype(np.float32))
    write_array(data.components(NETWORK), coordinates.astype(np.float32))


def stage_arguments(folder: Path) -> list[str]:
    """A stage's command line for the parameters, artefacts and logs in `folder`."""
    files = {"--params": folder / "params.yaml", "--data": folder / "data", "--work": folder / "work"}
    return ["--network", NETWORK, *(str(part) for pair in files.items() for part in pair)]


def run_process(stage: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m pipeline.stages.<stage>` as DVC would."""
    command = [sys.executable, "-m", f"pipeline.stages.{stage}", *stage_arguments(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
