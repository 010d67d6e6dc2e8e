"""Out-of-fold extractors from `finetune` to `extract`: predictions of networks that did not train on the image."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray

from pipeline.artifacts.files import read_json, write_array
from pipeline.datasets.splits import assign_folds
from pipeline.paths import DataPaths, WorkPaths
from pipeline.training.weights import load_fold_networks, load_trained
from tests.fixtures.interrupted_study import HOOKS, resumed_steps
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK, write_manifest
from tests.fixtures.training import (
    FLOAT32_ROUNDING,
    NAMES,
    assert_rows_near,
    bright_images,
    command,
    run,
    stage,
    write_imagenet_weights,
    write_project,
)

N = 60
MEMORIZING: Mapping[str, Any] = {
    "budget": {"steps": 30},
    "optimizer": {"name": "adamw"},
    "learning_rate": 0.002,
    "weight_decay": 0.0,
    "augmentation": {},
}
TWO_STEPS: Mapping[str, Any] = {"folds": 3, "seed": 4, "budget": {"steps": 2}}


def _both(folder: Path) -> None:
    assert stage("finetune", folder) == 0
    assert stage("extract", folder) == 0


def _expected_folds(count: int, seed: int) -> NDArray[np.int32]:
    labels = np.arange(N) % len(NAMES)
    paths = [f"train/{NAMES[label]}/{row:05}.png" for row, label in enumerate(labels)]
    return assign_folds(paths, labels, count, seed=seed, contents=paths)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an extractor of three folds."""
    folder = tmp_path_factory.mktemp("three")
    write_project(folder, finetune=TWO_STEPS)
    _both(folder)
    return folder


def _data(folder: Path) -> DataPaths:
    return DataPaths(root=folder / "data")


def _table(path: Path) -> dict[str, NDArray[Any]]:
    table = pyarrow.parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


@pytest.mark.slow
def test_one_file_holds_the_networks_and_one_their_metrics(three: Path) -> None:
    data, (images, labels) = _data(three), bright_images(22, seed=1)
    extractor = load_fold_networks(data.extractor(NETWORK))
    assert extractor.folds is not None
    np.testing.assert_array_equal(extractor.folds, _expected_folds(3, seed=4))
    metrics = json.loads(data.finetune_metrics(NETWORK).read_text())
    shares = [(np.array(network.predict(images)) == np.array(NAMES)[labels]).mean() for network in extractor.networks]
    assert [fold["top1"] for fold in metrics["folds"]] == pytest.approx(shares)
    assert [fold["n_train"] for fold in metrics["folds"]] == [N - 20] * 3
    for key in ("top1", "balanced_accuracy", "train_loss", "test_loss"):
        assert metrics[key] == pytest.approx(np.mean([fold[key] for fold in metrics["folds"]]))
    first = load_trained(data.extractor(NETWORK)).predict_proba(images)
    np.testing.assert_array_equal(first, extractor.networks[0].predict_proba(images))
    assert not (three / "work/checkpoints").exists()


@pytest.mark.slow
def test_each_training_image_is_predicted_by_its_folds_network(three: Path) -> None:
    data, (images, labels) = _data(three), bright_images(N)
    extractor = load_fold_networks(data.extractor(NETWORK))
    assert extractor.folds is not None
    probabilities = np.stack([network.predict_proba(images) for network in extractor.networks])
    expected = probabilities[extractor.folds, np.arange(N)]
    sure = np.load(data.probabilities(NETWORK))
    assert (sure.dtype, sure.shape) == (np.float32, (N, len(NAMES)))
    assert_rows_near(sure, expected)
    np.testing.assert_allclose(sure.sum(1), 1, atol=1e-6)
    table = _table(data.predictions(NETWORK))
    assert table["fold"].dtype == np.int32
    np.testing.assert_array_equal(table["fold"], extractor.folds)
    np.testing.assert_array_equal(table["predicted"], sure.argmax(1))
    np.testing.assert_array_equal(table["confidence"], sure.max(1))
    metrics = json.loads(data.extract_metrics(NETWORK).read_text())
    assert metrics["folds"] == 3
    assert metrics["train_top1"] == pytest.approx((sure.argmax(1) == labels).mean())
    assert len(metrics["aligned_variance"]) == 2


@pytest.mark.slow
def test_test_images_have_the_features_of_the_first_network(three: Path) -> None:
    data, (images, _) = _data(three), bright_images(22, seed=1)
    extractor = load_fold_networks(data.extractor(NETWORK))
    expected = np.mean([network.predict_proba(images) for network in extractor.networks], axis=0)
    table = _table(data.predictions(NETWORK, "test"))
    assert list(table) == ["sample_id", "predicted", "confidence"]
    np.testing.assert_array_equal(table["predicted"], expected.argmax(1))
    np.testing.assert_allclose(table["confidence"], expected.max(1), rtol=FLOAT32_ROUNDING)


@pytest.mark.slow
def test_two_ranks_give_the_rows_of_one(three: Path) -> None:
    data = _data(three)
    features, sure = np.load(data.features(NETWORK)), np.load(data.probabilities(NETWORK))
    tables = [_table(data.predictions(NETWORK, split)) for split in ("train", "test")]
    done = run(command("extract", three, ranks=2))
    assert done.returncode == 0, done.stderr
    # With fewer images than features, the fit of some directions depends on digits that differ.
    np.testing.assert_allclose(np.load(data.features(NETWORK)), features, rtol=0.01, atol=0.01 * features.std())
    assert_rows_near(np.load(data.probabilities(NETWORK)), sure)
    for before, split in zip(tables, ("train", "test"), strict=True):
        after = _table(data.predictions(NETWORK, split))
        np.testing.assert_array_equal(after["predicted"], before["predicted"])
        np.testing.assert_allclose(after["confidence"], before["confidence"], rtol=FLOAT32_ROUNDING)


@pytest.mark.slow
def test_a_kill_in_the_second_fold_loses_no_finished_one(tmp_path: Path) -> None:
    """The kill comes after the fold's last step, before its network is cached: it resumes from its checkpoint."""
    keys = {"folds": 2, "budget": {"steps": 5}, "checkpoint": {"steps": 2}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        write_project(folder, finetune=keys)
    assert run(command("finetune", whole)).returncode == 0
    # The check of the room takes two file operations, and keeping a network five.
    fault = run(command("finetune", killed), environ={"FAULT": "SIGKILL self /finished/ 7", "PYTHONPATH": str(HOOKS)})
    assert fault.returncode == -signal.SIGKILL, fault.stderr
    kept = list(WorkPaths(root=killed / "work").file_cache(f"finetune@{NETWORK}").glob("*/step-*.pt"))
    assert len(kept) == 1
    again = run(command("finetune", killed))
    assert again.returncode == 0, again.stderr
    assert f"finetune@{NETWORK}: network 1 of 2: finished before" in again.stderr
    assert f"finetune@{NETWORK}: network 2 of 2; trained in " in again.stderr
    assert resumed_steps(again.stderr) == [4]
    for file in (DataPaths.extractor, DataPaths.finetune_metrics):
        assert file(_data(killed), NETWORK).read_bytes() == file(_data(whole), NETWORK).read_bytes()
    assert not (killed / "work" / "checkpoints" / f"finetune@{NETWORK}").exists()
    records = [
        read_json(WorkPaths(root=folder / "work").resources(f"finetune@{NETWORK}")) for folder in (whole, killed)
    ]
    assert [record["joules"]["gpu"] for record in records] == [None if torch.cuda.is_available() else 0.0, None]


@pytest.mark.slow
def test_wrong_labels_are_improbable_out_of_fold_not_in_sample(tmp_path: Path) -> None:
    """Every sixth image has the label of the next class."""
    wrong, true = np.arange(N) % 6 == 5, np.arange(N) % len(NAMES)
    noise = np.random.default_rng(0).integers(0, 130, (N, 16, 16, 3))
    images = (noise + 40 * true[:, None, None, None]).astype(np.uint8)
    labels = np.where(wrong, (true + 1) % len(NAMES), true)
    confidence = {}
    for folds in (1, 2):
        folder = tmp_path / str(folds)
        folder.mkdir()
        data = write_project(folder, finetune={"folds": folds, **MEMORIZING})
        write_array(data.images("train"), images)
        write_manifest(data, "train", labels, names=NAMES)
        _both(folder)
        confidence[folds] = np.load(data.probabilities(NETWORK))[np.arange(N), labels]
    assert confidence[1][wrong].mean() > 0.8
    assert confidence[2][wrong].mean() < 0.3
    assert confidence[2][~wrong].mean() > 2 * confidence[2][wrong].mean()


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"folds": 16}, "finetune.folds"),
        ({"folds": 61}, "finetune.folds"),
        ({"folds": 2, "batch_size": 32}, "finetune.batch_size"),
    ],
)
def test_impossible_folds_are_refused(
    keys: dict[str, Any], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, finetune=keys)
    assert stage("finetune", tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == key


def _write_digests(data: DataPaths, digests: list[str]) -> None:
    """Replace the SHA-256 of the training images; images of equal ones are copies."""
    manifest = pyarrow.parquet.read_table(data.manifest("train"))
    column = manifest.column_names.index("sha256")
    pyarrow.parquet.write_table(manifest.set_column(column, "sha256", [digests]), data.manifest("train"))


def test_a_fold_of_copies_alone_is_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies join the fold of the first image; an extractor with an empty fold could not be read."""
    data = write_project(tmp_path, finetune=TWO_STEPS)
    folds = _expected_folds(3, seed=4)
    digests = np.array(pyarrow.parquet.read_table(data.manifest("train"))["sha256"].to_pylist())
    digests[folds == (folds[0] + 1) % 3] = digests[0]
    _write_digests(data, digests.tolist())
    assert stage("finetune", tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == "finetune.folds"


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_a_class_of_copies_alone_is_refused_before_training(
    trainable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its images are in one fold, and the network of that fold would not know the class."""
    keys = {"trainable": trainable, "weights": str(write_imagenet_weights(tmp_path / "weights"))}
    data = write_project(tmp_path, finetune={**TWO_STEPS, **keys})
    manifest = pyarrow.parquet.read_table(data.manifest("train"))
    rows = zip(manifest["sha256"].to_pylist(), manifest["label_name"].to_pylist(), strict=True)
    digests = ["0" * 64 if label == "cedar" else digest for digest, label in rows]
    _write_digests(data, digests)
    assert stage("finetune", tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "finetune.folds"
    assert "class cedar" in str(error)


@pytest.mark.slow
def test_folds_of_other_images_are_refused(three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_project(tmp_path, finetune=TWO_STEPS)
    data.extractor(NETWORK).parent.mkdir()
    data.extractor(NETWORK).write_bytes(_data(three).extractor(NETWORK).read_bytes())
    images, labels = bright_images(N - 1)
    np.save(data.images("train"), images)
    write_manifest(data, "train", labels, names=NAMES)
    assert stage("extract", tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == str(data.extractor(NETWORK))
