"""Projects of earlier versions have no training dynamics: they open, and scorers that need them name the stage."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.artifacts.metrics import write_dynamics
from pipeline.errors import InputError
from pipeline.filtering.inputs import input_files, load_network_data
from pipeline.paths import DataPaths
from pipeline.scoring.registry import check_scorer
from tests.fixtures.projects import NETWORK, write_embedding, write_manifest, write_predictions


def _project(folder: Path) -> DataPaths:
    data, labels = DataPaths(root=folder / "data"), np.arange(8) % 2
    write_manifest(data, "train", labels)
    write_predictions(data, labels)
    write_embedding(data, np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32))
    return data


def test_a_project_of_an_earlier_version_opens(tmp_path: Path) -> None:
    data = _project(tmp_path)
    loaded = load_network_data(data, NETWORK)
    assert loaded.scorer_inputs.training_margin is None
    assert all(path.exists() for path in input_files(data, NETWORK))
    check_scorer(loaded.scorer_inputs, {"name": "mean_confidence"}, loaded.class_names, "filter.scorer")
    for name in ("aum", "forgetting"):
        with pytest.raises(InputError) as raised:
            check_scorer(loaded.scorer_inputs, {"name": name}, loaded.class_names, "filter.scorer")
        assert raised.value.key == "filter.scorer"
        assert "dvc repro --force finetune" in str(raised.value)


def test_dynamics_are_read(tmp_path: Path) -> None:
    data = _project(tmp_path)
    n = len(load_network_data(data, NETWORK).images)
    margin = np.linspace(-1, 1, n, dtype=np.float32)
    write_dynamics(data.training_dynamics(NETWORK), margin, np.full(n, 2, dtype=np.float32))
    inputs = load_network_data(data, NETWORK).scorer_inputs
    assert inputs.training_margin is not None
    assert inputs.training_forgetting is not None
    np.testing.assert_array_equal(inputs.training_margin, margin)
    assert inputs.training_forgetting.tolist() == [2] * n
    assert data.training_dynamics(NETWORK) in input_files(data, NETWORK)
