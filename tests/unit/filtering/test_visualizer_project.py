"""Folders that the visualizer opens: where they may be written, and their parameters."""

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from pipeline.artifacts.tables import read_csv, restore_cells
from pipeline.config.extractors import Architecture
from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.apply import FilterContext, apply_filter
from pipeline.filtering.tables import filter_metrics, points_table
from pipeline.filtering.visualizer_project import (
    VisualizerProject,
    check_project_folder,
    data_paths,
    project_parameters,
    write_project,
)
from pipeline.runs.arm_rows import KEPT_COLUMNS
from pipeline.scoring.base import ScorerInputs

_FILTER = {"scorer": {"name": "margin"}, "drop_fraction": 0.1}


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match=str(folder)):
            check_project_folder(folder)
    check_project_folder(tmp_path / "new")


@pytest.mark.parametrize("network", [*get_args(Architecture), "timm/vit_small_patch14_dinov2.lvd142m", "resnet18-r3"])
def test_parameters_of_every_network_are_valid(network: str) -> None:
    tree = project_parameters(network, "photos", reduce={"n_neighbors": 7}, filter_=_FILTER, source="x")
    assert (tree["networks"], tree["reduce"], tree["filter"]) == ([network], {"n_neighbors": 7}, _FILTER)


def test_other_networks_are_refused() -> None:
    with pytest.raises(InputError, match=r"^--network: networks") as refused:
        project_parameters("../clip", "photos", reduce={}, filter_=_FILTER, source="--network")
    assert "../clip" in str(refused.value)


def test_names_that_a_spreadsheet_would_run_are_read_as_they_were(tmp_path: Path) -> None:
    n, names = 6, ["=1+1", "'quoted'"]
    labels = np.arange(n) % 2
    probabilities = np.eye(2, dtype=np.float32)[labels]
    inputs = ScorerInputs(
        labels=labels,
        embeddings=np.zeros((1, n, 2), dtype=np.float32),
        components=np.zeros((n, 2), dtype=np.float32),
        neighbors=np.zeros((n, 1), dtype=np.int32),
        probabilities=probabilities,
    )
    config, context = (
        FilterConfig.model_validate(_FILTER),
        FilterContext(network="resnet18", class_names=names, overrides={}),
    )
    sieved = apply_filter(inputs, config, context)
    paths = [f"'{names[label]}/{row}.png" for row, label in enumerate(labels)]
    images = pa.table(
        {
            "sample_id": np.arange(n), "path": paths, "sha256": ["0" * 64] * n, "label": labels,
            "label_name": [names[label] for label in labels], "predicted": labels, "confidence": probabilities.max(1),
        }
    )  # fmt: skip
    project = VisualizerProject(
        parameters=project_parameters("resnet18", "photos", reduce={"n_neighbors": 1}, filter_=_FILTER, source="x"),
        network="resnet18", class_names=names, images=np.zeros((n, 8, 8, 3), dtype=np.uint8), inputs=inputs,
        points=points_table(images, inputs, sieved, names), metrics=filter_metrics(inputs, sieved, config, context),
        command="x",
    )  # fmt: skip
    write_project(tmp_path / "look", project)
    kept = read_csv(data_paths(tmp_path / "look").kept("resnet18"), KEPT_COLUMNS)
    assert not any(text.startswith("=") for text in kept["label_name"].to_pylist())
    restored, rows = restore_cells(kept), np.flatnonzero(sieved.keep).tolist()
    assert restored["path"].to_pylist() == [paths[row] for row in rows]
    assert restored["label_name"].to_pylist() == [names[labels[row]] for row in rows]
