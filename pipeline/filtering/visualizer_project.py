"""Write images that were filtered outside a project for the visualizer: a folder with params.yaml and data/."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ruamel.yaml import YAML

from pipeline.artifacts.files import atomic_path, write_array, write_json
from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.artifacts.tables import list_array, protect_cells, write_csv, write_parquet
from pipeline.config.extractors import is_timm
from pipeline.config.params import check_params
from pipeline.errors import InputError
from pipeline.filtering.tables import kept_and_dropped
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs

PICTURE_SIDE = 96
"""Side in pixels of the pictures that the visualizer shows."""

_SCHEDULE = {"name": "cosine"}
_OPTIMIZER = {"name": "sgd", "momentum": 0.9, "nesterov": True}
_MANIFEST = ("sample_id", "path", "label", "label_name", "sha256")


@dataclass(frozen=True, kw_only=True, eq=False)
class VisualizerProject:
    """Filtered images of one network, N of them.

    Attributes:
        parameters: tree of params.yaml, see `project_parameters`.
        network: the name of the network there.
        class_names: one per class.
        images: uint8 (N, H, W, 3).
        inputs: of the scorers: embeddings, components, neighbors and probabilities must be there.
        points: as `points_table` returns them, with all columns.
        metrics: as `filter_metrics` returns them.
        command: that filtered the images, for a comment in params.yaml.
    """

    parameters: Mapping[str, Any]
    network: str
    class_names: Sequence[str]
    images: NDArray[np.uint8]
    inputs: ScorerInputs
    points: pa.Table
    metrics: Mapping[str, Any]
    command: str


def params_file(folder: Path) -> Path:
    """Return the parameter file of a project."""
    return folder / "params.yaml"


def data_paths(folder: Path) -> DataPaths:
    """Return the files in data/ of a project."""
    return DataPaths(root=folder / "data")


def check_project_folder(folder: Path) -> None:
    """Check that a folder is missing, empty, or written by `write_project`.

    Raises:
        InputError: it is not.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; the visualizer's files need a folder of this name")
    if folder.is_dir() and any(folder.iterdir()) and not params_file(folder).is_file():
        raise InputError(f"{folder}: has other files; the visualizer's files need an empty folder of this name")


def project_parameters(
    network: str, path: str, *, reduce: Mapping[str, Any], filter_: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the tree of a valid params.yaml. The visualizer reads a part of it; no stage uses the rest.

    Args:
        network: whose features were filtered.
        path: where the images are.
        reduce, filter_: the sections.
        source: of the values, for messages.

    Raises:
        InputError: a value is not allowed.
    """
    recipe = {"optimizer": _OPTIMIZER, "schedule": _SCHEDULE, "decay_norm_and_bias": False, "augmentation": {}}
    pretrained = {"weights": "pretrained", "trainable": "head"} if is_timm(network) else {"weights": "none"}
    tree = {
        "prepare": {"dataset": "image_folder", "path": path, "image_size": PICTURE_SIDE},
        "networks": [network],
        "finetune": {
            **recipe, **pretrained, "folds": 5, "stem": "imagenet", "batch_size": 64, "learning_rate": 0.02,
            "weight_decay": 5e-4, "budget": {"epochs": 10},
        },
        "extract": {},
        "reduce": dict(reduce),
        "filter": dict(filter_),
        "train": {**recipe, "stem": "imagenet", "simulated_workers": 1},
        "studies": {
            "look": {
                "filter_network": network, "needs": f"filter/{network}", "models": ["resnet18"],
                "arms": ["full", "filtered", "random"], "batch_sizes": [64], "learning_rates": [0.02],
                "weight_decays": [5e-4], "seeds": [0], "budget": {"epochs": 10},
            }
        },
        "report": {"margin": 0.5, "primary": "random"},
    }  # fmt: skip
    check_params(tree, source=source)
    return tree


def write_project(folder: Path, project: VisualizerProject, *, overrides: Iterable[Override] = ()) -> None:
    """Write params.yaml and data/ of the visualizer; decisions in data/overrides.csv stay.

    Args:
        overrides: decisions to begin with, where there is no data/overrides.csv.

    Raises:
        InputError: the folder has other files, or the disk is full.
    """
    check_project_folder(folder)
    data, network, points, inputs = data_paths(folder), project.network, project.points, project.inputs
    n = len(points)
    # First, so that a folder that is written in part is recognized.
    with atomic_path(params_file(folder)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(f"# Written by `{project.command}` for the visualizer. No stage used it.\n")
        YAML(typ="safe", pure=True).dump(project.parameters, file)
    assert inputs.embeddings is not None, "the visualizer shows an embedding"
    assert inputs.components is not None, "the visualizer tries scorers that read them"
    assert inputs.neighbors is not None, "the visualizer shows neighbors"
    assert inputs.probabilities is not None, "the visualizer shows suggested labels"
    write_array(data.images("train"), project.images)
    write_parquet(data.manifest("train"), points.select(_MANIFEST))
    metrics = {"class_names": list(project.class_names), "image_size": project.images.shape[1]}
    write_json(data.prepare_metrics, metrics)
    # NaN: the network did not train on these images.
    write_array(data.training_confidence(network), np.full(n, np.nan, dtype=np.float32))
    write_array(data.probabilities(network), inputs.probabilities)
    predictions = points.select(["sample_id", "predicted", "confidence"])
    write_parquet(data.predictions(network), predictions.append_column("fold", pa.array(np.zeros(n, dtype=np.int32))))
    write_array(data.components(network), inputs.components)
    write_array(data.embeddings(network), inputs.embeddings)
    neighbors = list_array(inputs.neighbors.astype(np.int32))
    write_parquet(data.embedding(network), pa.table({"sample_id": np.arange(n), "neighbours": neighbors}))
    write_parquet(data.points(network), points)
    kept, dropped = kept_and_dropped(points)
    write_csv(data.kept(network), protect_cells(kept))
    write_csv(data.dropped(network), protect_cells(dropped))
    write_json(data.filter_metrics(network), project.metrics)
    if not data.overrides.exists():
        write_overrides(data.overrides, overrides)
