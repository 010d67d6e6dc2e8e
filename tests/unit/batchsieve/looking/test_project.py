"""The visualizer opens the result of `look`, and decisions outlive the next look."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from batchsieve import Look, look
from batchsieve.looking.project import write_look
from pipeline.artifacts.overrides import Override, read_overrides, write_overrides
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.looking import colored
from viz.data import Source
from viz.filter_settings import FilterSettings, preview_filter

_NETWORK = "timm/tf_efficientnet_lite0.in1k"


@pytest.fixture(scope="module")
def result() -> Look:
    images, labels = colored()
    labels[[4, 20]] = "blue", "red"
    return dataclasses.replace(look(images, labels, features=images.mean(axis=(1, 2))), extractor=_NETWORK)


def test_the_visualizer_shows_the_same_suspects(result: Look, tmp_path: Path) -> None:
    write_look(result, tmp_path / "look")
    assert load_params(tmp_path / "look" / "params.yaml").networks == (_NETWORK,)
    source = Source(DataPaths(root=tmp_path / "look" / "data"))
    points = source.points(_NETWORK)
    assert set(np.flatnonzero(points.predicted != points.labels)) == set(result.suspects().tolist())
    np.testing.assert_array_equal(points.coordinates, result.coordinates)
    assert set(np.argsort(-points.scores)[:2]) == {4, 20}
    # Another scorer can be tried there.
    preview = preview_filter(source, points, FilterSettings())
    assert (~preview.keep).sum() == (~points.kept).sum()
    assert source.scorer_inputs(points).probabilities is not None


def test_decisions_stay_when_the_folder_is_written_again(result: Look, tmp_path: Path) -> None:
    write_look(result, tmp_path)
    data = DataPaths(root=tmp_path / "data")
    path, sha256 = str(result.path[7]), str(result.sha256[7])
    decided = Override(path=path, sha256=sha256, decision="drop", note="", timestamp="", line=2)
    write_overrides(data.overrides, [decided])
    write_look(result, tmp_path)
    assert [override.path for override in read_overrides(data.overrides)] == ["7"]
    assert not Source(data).points(_NETWORK).kept[7]
