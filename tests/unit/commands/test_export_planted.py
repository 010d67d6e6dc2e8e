"""`batchsieve export` of labels that were changed on purpose: every file states it, or the note next to it does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from safetensors import safe_open

from pipeline.artifacts.files import read_json, write_json
from pipeline.config.params import load_params
from pipeline.models import build_network
from pipeline.paths import DataPaths
from pipeline.training.weights import save_trained
from tests.fixtures.exporting import export, write_decided_project
from tests.fixtures.records import record
from tests.fixtures.report import write_study
from tests.fixtures.training import NAMES, TINY

_COLUMN = "labels_changed_on_purpose"
_NOTE = "labels changed on purpose: 3"
_LISTS = {"kept.npy", "kept.txt", "dropped.npy", "dropped.txt"}


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"top1": 0.5, "balanced_accuracy": 0.5, "model": "small_cnn"}


def _plant(project: Path, n_planted: int | None) -> None:
    data = DataPaths(root=project / "data")
    write_json(data.prepare_metrics, {**read_json(data.prepare_metrics), "n_planted": n_planted})
    record(data, "prepare")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With three changed labels and a trained network."""
    project = write_decided_project(tmp_path)
    data, params = DataPaths(root=project / "data"), load_params(project / "params.yaml")
    study = next(iter(params.studies))
    data.provenance("train", study).parent.mkdir(parents=True, exist_ok=True)
    write_study(data, params, study, _outcome)
    model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=0)
    save_trained(data.trained_weights(study), model, replace(TINY, network="small_cnn"), NAMES)
    record(data, "train", study)
    _plant(project, 3)
    return project


def _states_it(file: Path, out: Path) -> bool:
    match file.suffix:
        case ".csv":
            return set(pyarrow.csv.read_csv(file)[_COLUMN].to_pylist()) == {3}
        case ".parquet":
            return set(pyarrow.parquet.read_table(file, partitioning=None)[_COLUMN].to_pylist()) == {3}
        case ".json":
            return bool(json.loads(file.read_text())[_COLUMN] == 3)
        case ".safetensors":
            with safe_open(file, framework="np") as tensors:
                return bool(tensors.metadata() == {_COLUMN: "3"})
        case ".pt":
            return _states_it(file.with_name("config.json"), out)
    if file.name in _LISTS:
        return _NOTE in (out / "README.txt").read_text()
    return _NOTE in file.read_text()


def test_every_file_of_an_export_states_changed_labels(project: Path) -> None:
    out = export(project)
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    assert [str(file.relative_to(out)) for file in files if not _states_it(file, out)] == []
    names = {file.name for file in files}
    assert names >= {"metadata.csv", "test-00000-of-00001.parquet", "best.pt", "README.md", "README.txt", *_LISTS}
    assert (out / "dropped/data/train-00000-of-00001.parquet") in files
    assert np.load(out / "kept.npy").dtype == np.int64


def test_an_export_without_changed_labels_has_no_note(project: Path) -> None:
    """Nor that of an earlier export."""
    export(project)
    _plant(project, None)
    out = export(project, "--force")
    assert not (out / "README.txt").exists()
    for file in out.rglob("*"):
        assert not file.is_file() or b"on_purpose" not in file.read_bytes()
        assert not file.is_file() or b"on purpose" not in file.read_bytes()
