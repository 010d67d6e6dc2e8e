"""`finetune` trains an extractor from scratch, from a file and from ImageNet, on one process and on two."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision

from pipeline.artifacts.files import write_array
from pipeline.artifacts.metrics import read_dynamics
from pipeline.paths import DataPaths, WorkPaths
from pipeline.training.checkpointing import Checkpoints
from pipeline.training.state import IMAGENET_MEAN, IMAGENET_STD
from pipeline.training.weights import load_trained
from tests.fixtures.loopback import serving
from tests.fixtures.projects import NETWORK, name_networks, write_manifest
from tests.fixtures.training import (
    NAMES,
    as_resnet,
    bright_images,
    command,
    run,
    stage,
    write_imagenet_weights,
    write_project,
)


def _metrics(data: DataPaths) -> dict[str, object]:
    metrics: dict[str, object] = json.loads(data.finetune_metrics(NETWORK).read_text())
    return metrics


def test_metrics_are_those_of_the_saved_network(tmp_path: Path) -> None:
    data = write_project(tmp_path)
    assert stage("finetune", tmp_path) == 0
    metrics = _metrics(data)
    images, labels = bright_images(22, seed=1)
    network = load_trained(data.extractor(NETWORK))
    right = np.array(network.predict(images)) == np.array(NAMES)[labels]
    recalls = {name: right[labels == label].mean() for label, name in enumerate(NAMES)}
    assert metrics["top1"] == pytest.approx(right.mean())
    assert metrics["recall_per_class"] == pytest.approx(recalls)
    assert metrics["balanced_accuracy"] == pytest.approx(np.mean(list(recalls.values())))
    assert metrics["settings"]["steps"] == 2  # type: ignore[index]
    assert network.format.mean == (0.44,) * 3


def test_a_class_without_test_images_has_no_recall(tmp_path: Path) -> None:
    """A folder test/ may lack a class of train/."""
    data = write_project(tmp_path)
    images, labels = bright_images(22, seed=1)
    write_array(data.images("test"), images[labels < 3])
    write_manifest(data, "test", labels[labels < 3], names=NAMES)
    assert stage("finetune", tmp_path) == 0
    recalls = _metrics(data)["recall_per_class"]
    assert [name for name, recall in recalls.items() if recall is None] == [NAMES[3]]  # type: ignore[attr-defined]


def test_equal_runs_are_equal_bytes(tmp_path: Path) -> None:
    data = write_project(tmp_path)
    files = [data.extractor(NETWORK), data.finetune_metrics(NETWORK), data.provenance("finetune", NETWORK)]
    files.append(data.training_dynamics(NETWORK))
    written = []
    for _ in range(2):
        assert stage("finetune", tmp_path) == 0
        written.append([file.read_bytes() for file in files])
        for file in files:
            file.unlink()
        shutil.rmtree(tmp_path / "work")
    assert written[0] == written[1]


def test_a_finished_extractor_leaves_no_checkpoints(tmp_path: Path) -> None:
    write_project(tmp_path, finetune={"checkpoint": {"steps": 1}})
    work = WorkPaths(root=tmp_path / "work")
    for owner in (f"finetune@{NETWORK}", "finetune@resnet34", "train@tiny"):
        folder = work.checkpoints(owner) / "of-settings-given-up"
        Checkpoints(folder).save(1, {})
        os.utime(folder, (0, 0))
    assert stage("finetune", tmp_path) == 0
    assert {path.name for path in (work.root / "checkpoints").iterdir()} == {"finetune@resnet34", "train@tiny"}


@pytest.mark.slow
def test_separable_images_are_learned(tmp_path: Path) -> None:
    data = write_project(tmp_path, finetune={"budget": {"steps": 30}})
    assert stage("finetune", tmp_path) == 0
    assert _metrics(data)["top1"] >= 0.9  # type: ignore[operator]


@pytest.mark.slow
def test_a_resnet9_is_an_extractor_and_records_its_training(tmp_path: Path) -> None:
    data = write_project(tmp_path, finetune={"budget": {"steps": 60}, "learning_rate": 0.05, "ema_decay": 0.9})
    name_networks(tmp_path / "params.yaml", ["resnet9"])
    assert stage("finetune", tmp_path, "resnet9") == stage("extract", tmp_path, "resnet9") == 0
    n = len(np.load(data.images("train"), mmap_mode="r"))
    features = np.load(data.features("resnet9"))
    assert features.shape == (n, 128)
    assert features.std() > 0
    assert json.loads(data.finetune_metrics("resnet9").read_text())["top1"] >= 0.9
    dynamics = read_dynamics(data.training_dynamics("resnet9"), n)
    assert dynamics is not None
    margin, forgetting = dynamics
    assert (margin > 0).mean() > 0.9
    assert (forgetting == np.rint(forgetting)).all()
    assert np.isfinite(forgetting).mean() > 0.9


def test_imagenet_weights_through_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate of 0, the saved backbone and its normalization are those of the download."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights = write_imagenet_weights(tmp_path / "server")
    still = {"learning_rate": 1e-30, "weight_decay": 0.0}
    data = write_project(tmp_path, finetune={"weights": "imagenet", "normalization": "imagenet", **still})
    with serving(weights.parent) as root:
        entry = SimpleNamespace(IMAGENET1K_V1=SimpleNamespace(url=f"{root}/{weights.name}"))
        monkeypatch.setattr(torchvision.models, "get_model_weights", lambda network: entry)
        assert stage("finetune", tmp_path) == 0
    network = load_trained(data.extractor(NETWORK))
    theirs = torch.load(weights, weights_only=True)
    assert torch.equal(as_resnet(network.model).backbone.layer3[1].conv2.weight, theirs["layer3.1.conv2.weight"])
    assert (network.format.mean, network.format.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert as_resnet(network.model).backbone.fc.out_features == len(NAMES)
    assert _metrics(data)["weights"] == "imagenet"


@pytest.mark.slow
def test_weights_of_this_project_are_loaded(tmp_path: Path) -> None:
    data = write_project(tmp_path)
    assert stage("finetune", tmp_path) == 0
    first = tmp_path / "first-resnet18.pt"
    data.extractor(NETWORK).rename(first)
    still = {"weights": str(tmp_path / "first-{network}.pt"), "learning_rate": 1e-30}
    write_project(tmp_path, finetune=still)
    assert stage("finetune", tmp_path) == 0
    before, after = (as_resnet(load_trained(path).model).backbone for path in (first, data.extractor(NETWORK)))
    assert torch.equal(before.conv1.weight, after.conv1.weight)
    assert not torch.equal(before.fc.weight, after.fc.weight)


@pytest.mark.slow
def test_a_replicate_is_the_run_of_the_next_seed(tmp_path: Path) -> None:
    """The bits are equal, and `{network}` in a path is the architecture of the replicate."""
    data = write_project(tmp_path, finetune={"weights": "none", "seed": 5})
    assert stage("finetune", tmp_path) == 0
    again = data.extractor(NETWORK).rename(tmp_path / f"first-{NETWORK}.pt").read_bytes()
    data = write_project(tmp_path, finetune={"weights": "none", "seed": 3})
    name_networks(tmp_path / "params.yaml", [f"{NETWORK}-r2"])
    assert stage("finetune", tmp_path, f"{NETWORK}-r2") == 0
    assert data.extractor(f"{NETWORK}-r2").read_bytes() == again
    write_project(tmp_path, finetune={"weights": str(tmp_path / "first-{network}.pt")})
    name_networks(tmp_path / "params.yaml", [f"{NETWORK}-r1"])
    assert stage("finetune", tmp_path, f"{NETWORK}-r1") == 0


@pytest.mark.slow
def test_two_processes_share_one_file_of_imagenet_weights(tmp_path: Path) -> None:
    """The stage starts torchrun; the file is where a user without internet access puts it."""
    weights = write_imagenet_weights(tmp_path / "server")
    given = {"weights": str(weights), "normalization": "imagenet", "workers": 2, "simulated_workers": 2}
    data = write_project(tmp_path, finetune=given)
    done = run(command("finetune", tmp_path))
    assert done.returncode == 0, done.stderr
    assert load_trained(data.extractor(NETWORK)).class_names == NAMES
    assert not list(tmp_path.rglob("*.tmp"))
