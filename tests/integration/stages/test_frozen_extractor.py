"""`finetune.trainable: head`: a frozen pretrained backbone, and a logistic regression for a head."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pipeline.artifacts.files import write_array
from pipeline.features import frozen
from pipeline.paths import DataPaths
from pipeline.training.weights import TrainedNetwork, load_fold_networks
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK, write_manifest
from tests.fixtures.training import (
    NAMES,
    as_resnet,
    assert_rows_near,
    bright_images,
    command,
    run,
    stage,
    write_imagenet_weights,
    write_project,
)

N = 60


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_imagenet_weights(tmp_path_factory.mktemp("server") / "weights")


def _project(folder: Path, weights: Path, **keys: Any) -> DataPaths:
    """Write images so noisy that a classifier is right on all training images, and wrong on some others."""
    data = write_project(folder, finetune={"weights": str(weights), "trainable": "head", **keys})
    for split, n in (("train", N), ("test", 22)):
        write_array(data.images(split), _noisy_images(n))
    return data


def _noisy_images(n: int) -> NDArray[np.uint8]:
    return (np.random.default_rng(n).integers(0, 200, (n, 16, 16, 3)) + bright_images(n)[0] // 8).astype(np.uint8)


def _features(network: TrainedNetwork, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    normalized = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.44) / 0.27
    with torch.inference_mode():
        return network.model.features(normalized).double().numpy()


def test_out_of_memory_names_the_setting(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frozen, "extract_features", lambda *_, **__: torch.empty(2**50, dtype=torch.uint8))
    _project(tmp_path, weights, eval_batch_size=77)
    assert stage("finetune", tmp_path) == 2
    error = printed_error(capfd.readouterr().err)
    assert error.key == "finetune.eval_batch_size"
    assert "77" in str(error).split()


def test_the_backbone_is_unchanged_and_the_fitted_head_predicts(weights: Path, tmp_path: Path) -> None:
    data = _project(tmp_path, weights, folds=2)
    assert stage("finetune", tmp_path) == 0
    extractor, theirs = load_fold_networks(data.extractor(NETWORK)), torch.load(weights, weights_only=True)
    images, labels, test = _noisy_images(N), np.arange(N) % len(NAMES), _noisy_images(22)
    assert extractor.folds is not None
    losses = []
    for fold, network in enumerate(extractor.networks):
        own = as_resnet(network.model).backbone.state_dict()
        backbone = [name for name in theirs if not name.startswith("fc.")]
        assert all(torch.equal(own[name], theirs[name]) for name in backbone)
        rows = extractor.folds != fold
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        features = _features(network, images)
        model.fit(features[rows], labels[rows])
        for some in (images, test):
            expected = model.predict_proba(_features(network, some))
            # Two solvers, each of which stops near the optimum.
            np.testing.assert_allclose(network.predict_proba(some), expected, atol=2e-3)
            clear = np.diff(np.sort(expected)[:, -2:]).ravel() > 1e-2
            np.testing.assert_array_equal(network.predict_proba(some).argmax(1)[clear], expected.argmax(1)[clear])
        losses.append(-np.log(model.predict_proba(features[rows])[np.arange(rows.sum()), labels[rows]]).mean())
        # All training images are classified correctly, the others are not.
        right = network.predict_proba(images).argmax(1) == labels
        assert right[rows].mean() > right[~rows].mean() + 0.2
    metrics = json.loads(data.finetune_metrics(NETWORK).read_text())
    assert [fold["train_loss"] for fold in metrics["folds"]] == pytest.approx(losses, rel=0.02)
    assert metrics["trained"] == "head"
    assert "optimizer" not in metrics["settings"]


@pytest.mark.slow
def test_folds_of_one_backbone_have_its_features(weights: Path, tmp_path: Path) -> None:
    """The features of all folds are equal, so that alignment changes nothing."""
    written = []
    for folds in (1, 3):
        folder = tmp_path / str(folds)
        folder.mkdir()
        data = _project(folder, weights, folds=folds)
        assert stage("finetune", folder) == 0
        assert stage("extract", folder) == 0
        written.append(np.load(data.features(NETWORK)))
    assert_rows_near(written[1], written[0])
    aligned = json.loads(data.extract_metrics(NETWORK).read_text())["aligned_variance"]
    assert aligned == pytest.approx([1, 1])


@pytest.mark.slow
def test_keys_of_the_optimizer_change_nothing(weights: Path, tmp_path: Path) -> None:
    written = []
    for keys in (
        {},
        {"batch_size": 1000, "budget": {"steps": 900}, "learning_rate": 1e30, "augmentation": {"flip": True}},
    ):
        data = _project(tmp_path, weights, **keys)
        assert stage("finetune", tmp_path) == 0
        written.append(data.extractor(NETWORK).read_bytes())
    assert written[0] == written[1]


@pytest.mark.slow
def test_two_ranks_fit_the_head_of_one(weights: Path, tmp_path: Path) -> None:
    data = _project(tmp_path, weights, simulated_workers=2)
    assert stage("finetune", tmp_path) == 0
    alone, test = load_fold_networks(data.extractor(NETWORK)).networks[0], _noisy_images(22)
    done = run(command("finetune", tmp_path, ranks=2))
    assert done.returncode == 0, done.stderr
    together = load_fold_networks(data.extractor(NETWORK)).networks[0]
    # The solver stops near the optimum, elsewhere for sums in another order.
    np.testing.assert_allclose(together.predict_proba(test), alone.predict_proba(test), atol=1e-3)


def test_a_class_without_images_is_refused(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path, weights)
    write_manifest(data, "train", np.arange(N) % 3, names=NAMES)
    assert stage("finetune", tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "finetune.trainable"
    assert re.findall(r"\[.*\]", str(error)) == ["[20, 20, 20, 0]"]
