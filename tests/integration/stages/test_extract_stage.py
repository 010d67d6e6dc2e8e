"""`extract` writes the same features from one process and from two that a user started with torchrun."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray

from pipeline.features import extract as module
from pipeline.models import build_network
from pipeline.paths import DataPaths
from pipeline.training.weights import load_trained, save_trained
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import (
    FLOAT32_ROUNDING,
    NAMES,
    TINY,
    assert_rows_near,
    bright_images,
    command,
    run,
    stage,
    write_project,
)

ROWS = {"train": 60, "test": 22}


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    paths = write_project(tmp_path)
    cropped = replace(TINY, format=replace(TINY.format, crop_size=14))
    save_trained(paths.extractor(NETWORK), build_network(NETWORK, len(NAMES), stem="imagenet", seed=0), cropped, NAMES)
    return paths


def _written(data: DataPaths, split: str) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float64]]]:
    features = np.load(data.features(NETWORK, split))
    table = pyarrow.parquet.read_table(data.predictions(NETWORK, split))
    return features, {name: table[name].to_numpy() for name in table.column_names}


def test_rows_are_samples(data: DataPaths, tmp_path: Path) -> None:
    assert stage("extract", tmp_path) == 0
    for split, n in ROWS.items():
        features, predictions = _written(data, split)
        assert features.shape == (n, 512)
        assert features.dtype == np.float32
        columns = ["sample_id", "predicted", "confidence", *(["fold"] if split == "train" else [])]
        assert list(predictions) == columns
        assert predictions["sample_id"].tolist() == list(range(n))
        images, _ = bright_images(n, seed=0 if split == "train" else 1)
        probabilities = load_trained(data.extractor(NETWORK)).predict_proba(images)
        assert predictions["predicted"].tolist() == probabilities.argmax(1).tolist()
        np.testing.assert_allclose(predictions["confidence"], probabilities.max(1), rtol=FLOAT32_ROUNDING)


def test_out_of_memory_names_the_setting(
    data: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def features(*_: object, **__: object) -> None:
        torch.empty(2**50, dtype=torch.uint8)

    monkeypatch.setattr(module, "_features", features)
    assert stage("extract", tmp_path) == 2
    error = printed_error(capfd.readouterr().err)
    assert error.key == "extract.batch_size"
    assert "256" in str(error).split()
    assert not data.features(NETWORK, "train").exists()


@pytest.mark.slow
def test_two_ranks_give_the_features_of_one(data: DataPaths, tmp_path: Path) -> None:
    assert stage("extract", tmp_path) == 0
    alone = {split: _written(data, split) for split in ROWS}
    done = run(command("extract", tmp_path, ranks=2))
    assert done.returncode == 0, done.stderr
    for split in ROWS:
        features, predictions = _written(data, split)
        assert_rows_near(features, alone[split][0])
        assert predictions["predicted"].tolist() == alone[split][1]["predicted"].tolist()
        np.testing.assert_allclose(predictions["confidence"], alone[split][1]["confidence"], rtol=FLOAT32_ROUNDING)
    assert not list(tmp_path.rglob("*.tmp"))


def test_equal_runs_are_equal_bytes(data: DataPaths, tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        assert stage("extract", tmp_path) == 0
        files = sorted((data.root / "extract").iterdir())
        written.append([(file.name, file.read_bytes()) for file in files])
        shutil.rmtree(tmp_path / "work")
    assert written[0] == written[1]


def test_a_failure_leaves_the_earlier_files(data: DataPaths, tmp_path: Path) -> None:
    assert stage("extract", tmp_path) == 0
    before = data.features(NETWORK).read_bytes()
    data.extractor(NETWORK).write_bytes(b"")
    assert stage("extract", tmp_path) == 2
    assert data.features(NETWORK).read_bytes() == before


def test_the_file_of_a_killed_run_is_removed(data: DataPaths, tmp_path: Path) -> None:
    left = data.features(NETWORK).with_name(".resnet18.npy.4194305.tmp")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert stage("extract", tmp_path) == 0
    assert not left.exists()
