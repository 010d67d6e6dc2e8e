"""`filter` lists near duplicates, drops the redundant ones, and the report shows them; without the key it does not."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts.files import read_json, write_array
from pipeline.artifacts.overrides import COLUMNS
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from pipeline.stages.filter import filter_images
from pipeline.stages.harness import run_stage
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.progress import progress_of, show_every_update
from tests.fixtures.projects import (
    NETWORK,
    class_blobs,
    sha256_of,
    stage_arguments,
    write_embedding,
    write_features,
    write_manifest,
    write_params,
    write_predictions,
)

_TRAIN, _TEST = 200, 60
# Training images 150, 151 and 152 show the same as training images 10, 11 and 12, test image 5 as training image 20.
_COPIES = {150: 10, 151: 11, 152: 12}
_NEAR_TEST, _OF_TEST = 20, 5


def _project(folder: Path, *, by_hand: tuple[str, ...] = (), folds: int = 0, **keys: Any) -> DataPaths:
    """Write what the filter reads: four classes, in which copies differ by little from their originals."""
    data = DataPaths(root=folder / "data")
    rng = np.random.default_rng(0)
    features, labels = class_blobs(rng, n_classes=4, per_class=(_TRAIN + _TEST) // 4, dimensions=8)
    images = rng.integers(256, size=(len(features), 8, 8, 3), dtype=np.uint8)
    for copy, original in {**_COPIES, _TRAIN + _OF_TEST: _NEAR_TEST}.items():
        features[copy] = features[original] * np.float32(1.0001)
        features[copy, 0] += np.float32(1e-4)
        images[copy] = images[original]
    splits = {"train": slice(0, _TRAIN), "test": slice(_TRAIN, None)}
    for split, rows in splits.items():
        write_manifest(data, split, labels[rows], names=["a", "b", "c", "d"])
        write_array(data.images(split), images[rows])
    write_predictions(data, labels[:_TRAIN])
    write_embedding(data, features[:_TRAIN, :2])
    write_features(data, features[:_TRAIN], features[_TRAIN:])
    if folds:
        # The features of each image by its own network say nothing; those of the first network are comparable.
        write_array(data.features(NETWORK), rng.normal(size=(_TRAIN, 8)).astype(np.float32))
        others = rng.normal(size=(folds - 1, _TRAIN, 8)).astype(np.float32)
        write_array(data.features_by_network(NETWORK), np.concatenate([features[None, :_TRAIN], others]))
    with data.overrides.open("w", newline="") as file:
        kept = [(path, sha256_of(path), "keep", "", "", "") for path in by_hand]
        csv.writer(file).writerows([COLUMNS, *kept])
    scorer = {"name": "self_confidence"}
    write_params(folder, filter={"scorer": scorer, "drop_fraction": None, "threshold": 0.95, **keys})
    return data


def _run(folder: Path) -> None:
    run_stage("filter", filter_images, item="network", argv=stage_arguments(folder))


def _dropped(data: DataPaths) -> dict[int, str]:
    with data.dropped(NETWORK).open(newline="") as file:
        return {int(row["sample_id"]): row["reason"] for row in csv.DictReader(file)}


def _pairs(data: DataPaths) -> set[tuple[int, str, int]]:
    rows = read_parquet(data.near_duplicates(NETWORK)).to_pylist()
    return {(row["sample_id"], row["other_split"], row["other_sample_id"]) for row in rows}


_ALL = {(original, "train", copy) for copy, original in _COPIES.items()} | {(_NEAR_TEST, "test", _OF_TEST)}


@pytest.mark.parametrize("folds", [0, 2])
def test_report_lists_the_pairs_and_drops_none(tmp_path: Path, folds: int) -> None:
    data = _project(tmp_path, near_duplicates="report", folds=folds)
    _run(tmp_path)
    assert _pairs(data) == _ALL
    assert _dropped(data) == {}
    counts = read_json(data.filter_metrics(NETWORK))["near_duplicates"]
    assert (counts["n_pairs"], counts["n_test_with_training"], counts["n_dropped"]) == (4, 1, 0)
    assert counts["n_training_pairs_same_label"] + counts["n_training_pairs_other_label"] == 3
    inputs = read_json(data.provenance("filter", NETWORK))["inputs"]
    assert any(name.endswith("test.npy") for name in inputs)


def test_drop_removes_what_a_test_image_shows_and_one_of_each_pair(tmp_path: Path) -> None:
    data = _project(tmp_path, near_duplicates="drop")
    names = read_parquet(data.manifest("train"))["path"].to_pylist()
    _run(tmp_path)
    dropped = _dropped(data)
    assert set(dropped) == {*_COPIES, _NEAR_TEST}
    test_name = read_parquet(data.manifest("test"))["path"][_OF_TEST].as_py()
    assert dropped[_NEAR_TEST].startswith(f"near duplicate of the test image {test_name}; ")
    assert dropped[150].startswith(f"near duplicate of the training image {names[10]}; ")
    points = read_parquet(data.points(NETWORK))
    assert not points["is_noise"].to_numpy().any()
    np.testing.assert_array_equal(np.flatnonzero(points["near_duplicate"].to_numpy()), sorted(dropped))
    np.testing.assert_array_equal(np.flatnonzero(~points["keep"].to_numpy()), sorted(dropped))
    assert read_json(data.filter_metrics(NETWORK))["near_duplicates"]["n_dropped"] == 4


def test_decisions_by_hand_come_first(tmp_path: Path) -> None:
    names = read_parquet(_project(tmp_path).manifest("train"))["path"].to_pylist()
    data = _project(tmp_path, near_duplicates="drop", by_hand=(names[150], names[_NEAR_TEST]))
    _run(tmp_path)
    assert set(_dropped(data)) == {10, 151, 152}


def test_without_the_key_nothing_is_searched(tmp_path: Path) -> None:
    data = _project(tmp_path)
    data.features(NETWORK, "test").unlink()
    _run(tmp_path)
    assert (_pairs(data), _dropped(data)) == (set(), {})
    assert "near_duplicate" not in read_parquet(data.points(NETWORK)).column_names
    assert read_json(data.filter_metrics(NETWORK))["near_duplicates"] is None


def test_images_and_classes_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_every_update(monkeypatch)
    dbscan = {"name": "dbscan", "min_samples": 3}
    _project(tmp_path, near_duplicates="report", scorer=dbscan, drop_fraction=0.1, threshold=None)
    _run(tmp_path)
    shown, n = progress_of(capsys.readouterr().err), _TRAIN + _TEST
    assert shown.pop("near duplicates") == [(n, 2 * n, "comparisons"), (2 * n, 2 * n, "comparisons")]
    assert set(shown) == {f"filter@{NETWORK}"}
    assert shown[f"filter@{NETWORK}"][:4] == [(done, 4, "classes") for done in range(1, 5)]
    log = (tmp_path / "work" / "logs" / f"filter@{NETWORK}.log").read_text()
    assert f"near duplicates: {2 * n} comparisons in " in log
    assert f"filter@{NETWORK}: 4 classes in " in log


def test_features_of_other_images_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path, near_duplicates="report")
    write_array(data.features(NETWORK, "test"), np.zeros((3, 8), dtype=np.float32))
    with pytest.raises(SystemExit) as stopped:
        _run(tmp_path)
    assert stopped.value.code == 2
    error = str(printed_error(capsys.readouterr().err))
    assert "dvc repro" in error
    assert str(data.features(NETWORK, "test")) in error
