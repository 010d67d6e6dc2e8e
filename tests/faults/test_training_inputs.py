"""What is wrong with the input of a training stage is said in one line, with exit code 2 and no traceback."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torchvision
from loopback import serving
from made_up import NETWORK
from made_up_training import (
    NAMES,
    TINY,
    bright_images,
    build_resnet,
    stage,
    write_imagenet_weights,
    write_kept,
    write_project,
)
from ruamel.yaml import YAML

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.models import build
from pipeline.paths import DataPaths
from pipeline.training.weights import save_trained

Break = Callable[[DataPaths], Any]


@pytest.fixture(scope="module")
def prototype(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound project, with an extractor, to be copied and broken."""
    folder = tmp_path_factory.mktemp("sound")
    data = write_project(folder, study={"arms": ["full"], "seeds": [0]})
    save_trained(data.extractor(NETWORK), build(NETWORK, len(NAMES), stem="imagenet", seed=0), TINY, NAMES)
    return folder


@pytest.fixture
def project(prototype: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prototype, tmp_path / "project")


@pytest.fixture
def filtering(project: Path) -> Path:
    """The project, with a study that needs the filter."""
    path, yaml = project / "params.yaml", YAML()
    tree = yaml.load(path)
    tree["studies"]["tiny"]["arms"] = ["full", "filtered"]
    yaml.dump(tree, path)
    return project


def assert_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], said: str, *, item: str | None = None
) -> None:
    """The stage ends with exit code 2 and the one line `error: ...`, in which the pattern `said` is found."""
    capsys.readouterr()
    assert stage(name, folder, item) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert re.search(said, err), err


def _relabel(data: DataPaths, labels: Any) -> None:
    table = read_parquet(data.manifest("train"))
    write_parquet(data.manifest("train"), table.set_column(table.schema.get_field_index("label"), "label", labels))


def _metrics(data: DataPaths, **changes: Any) -> None:
    metrics = {**read_json(data.prepare_metrics), **changes}
    write_json(data.prepare_metrics, {key: value for key, value in metrics.items() if value is not None})


_PREPARED: dict[str, tuple[Break, str]] = {
    "no images": (lambda data: data.images("train").unlink(), r"prepare/train.npy: missing"),
    "no manifest": (lambda data: data.manifest("test").unlink(), r"prepare/test.parquet: missing"),
    "no metrics": (lambda data: data.prepare_metrics.unlink(), r"prepare/metrics.json: missing"),
    "truncated images": (
        lambda data: data.images("train").write_bytes(data.images("train").read_bytes()[:5000]),
        r"prepare/train.npy: not a sound .npy file",
    ),
    "text for images": (lambda data: data.images("test").write_text("x"), r"prepare/test.npy: not a sound .npy file"),
    "text for a table": (lambda data: data.manifest("train").write_text("x"), r"prepare/train.parquet: damaged"),
    "float images": (
        lambda data: write_array(data.images("train"), bright_images(60)[0].astype(np.float32)),
        r"prepare/train.npy: holds float32",
    ),
    "too few images": (
        lambda data: write_array(data.images("train"), bright_images(59)[0]),
        r"prepare/train.npy: has 59 rows, its manifest 60",
    ),
    "images of another size": (
        lambda data: write_array(data.images("test"), bright_images(22, size=12)[0]),
        r"prepare/test.npy: images of \(12, 12, 3\)",
    ),
    "a label of no class": (lambda data: _relabel(data, pa.array([4] * 60)), r"train.parquet: its labels are not"),
    "a missing label": (lambda data: _relabel(data, pa.array([None, *[0] * 59])), r"train.parquet: its labels are not"),
    "labels in words": (lambda data: _relabel(data, pa.array(["ash"] * 60)), r"train.parquet: its labels are not"),
    "no mean": (lambda data: _metrics(data, mean=None), r"metrics.json: has no key mean"),
    "broken metrics": (lambda data: data.prepare_metrics.write_text("{"), r"metrics.json: not readable as JSON"),
    "metrics of another kind": (lambda data: data.prepare_metrics.write_text("[]"), r"metrics.json: has no key"),
}


# One reader serves all three stages: two of its faults are enough for the others.
@pytest.mark.parametrize(
    ("name", "what"),
    [
        *(("train", what) for what in _PREPARED),
        *((name, what) for name in ("finetune", "extract") for what in ("no manifest", "too few images")),
    ],
)
def test_prepared_images(project: Path, capsys: pytest.CaptureFixture[str], name: str, what: str) -> None:
    change, said = _PREPARED[what]
    change(DataPaths(root=project / "data"))
    assert_refused(name, project, capsys, said)


def _kept(data: DataPaths, text: str) -> None:
    data.kept(NETWORK).write_text(f"sample_id,path,label_name\n{text}")


_KEPT: dict[str, tuple[Break, str]] = {
    "missing": (lambda data: data.kept(NETWORK).unlink(), "missing; run `dvc repro`"),
    "empty": (lambda data: data.kept(NETWORK).write_text(""), "not readable as CSV"),
    "nothing kept": (lambda data: _kept(data, ""), "does not fit the 60 training images"),
    "a row too high": (lambda data: _kept(data, "60,train/ash/00060.png,ash\n"), "does not fit the 60 training images"),
    "a negative row": (lambda data: _kept(data, "-1,train/ash/00000.png,ash\n"), "does not fit the 60 training images"),
    "a row twice": (lambda data: _kept(data, "0,train/ash/00000.png,ash\n" * 2), "does not fit the 60 training images"),
    "another image": (lambda data: _kept(data, "0,train/ash/00004.png,ash\n"), "does not fit the 60 training images"),
    "no number": (lambda data: _kept(data, "one,train/ash/00000.png,ash\n"), "not readable as CSV"),
    "no value": (lambda data: _kept(data, ",train/ash/00000.png,ash\n0,x,ash\n"), "does not fit|not readable"),
    "other columns": (lambda data: data.kept(NETWORK).write_text("id,path\n0,x\n"), "columns"),
    "binary": (lambda data: data.kept(NETWORK).write_bytes(b"\xff\xfe\x00" * 50), "not readable as CSV|columns"),
    "a larger preparation": (lambda data: write_kept(data, np.arange(90) % 10 > 0), "does not fit the 60"),
}


@pytest.mark.parametrize("what", _KEPT)
def test_kept_images(filtering: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    change, said = _KEPT[what]
    change(DataPaths(root=filtering / "data"))
    assert_refused("train", filtering, capsys, f"filter/{NETWORK}/kept.csv: .*({said})")


_FINETUNE: dict[str, tuple[dict[str, Any], str]] = {
    "batch above N": ({"batch_size": 61}, "finetune.batch_size: 61 is more than the 60 training images"),
    "no such file": ({"weights": "no/such-{network}.pth"}, "no/such-resnet18.pth: no such weights file"),
    "a divergent rate": (
        {"learning_rate": 1e30, "schedule": {"name": "constant"}},
        r"finetune.learning_rate: 1e\+30 makes the loss of resnet18 infinite; lower it",
    ),
    "a rate that diverges with the last step": (
        {"learning_rate": 1e30, "schedule": {"name": "constant"}, "budget": {"steps": 1}},
        r"finetune.learning_rate: 1e\+30 makes the loss",
    ),
    "no budget": ({"budget": {"steps": 0}}, "finetune.budget: must be more than 0"),
    "nesterov without momentum": (
        {"optimizer": {"name": "sgd", "momentum": 0.0, "nesterov": True}},
        "finetune.optimizer: nesterov needs a momentum above 0",
    ),
    "workers that do not divide": (
        {"workers": 2, "simulated_workers": 4, "batch_size": 6},
        "finetune.batch_size: 6 does not split into 4",
    ),
    "processes that do not divide": (
        {"workers": 3, "simulated_workers": 4},
        r"finetune.workers: 3 does not divide simulated_workers 4; use one of \[1, 2, 4\]",
    ),
}


@pytest.mark.parametrize("what", _FINETUNE)
def test_finetuning(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    section, said = _FINETUNE[what]
    data = write_project(tmp_path, finetune=section)
    assert_refused("finetune", tmp_path, capsys, said)
    assert not data.extractor(NETWORK).exists()
    assert not data.finetune_metrics(NETWORK).exists()


def test_crops_larger_than_what_was_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parameters allow it; the images on disk are from before `image_size` grew."""
    crop = {"augmentation": {"crop_size": 24}}
    write_project(tmp_path, prepare={"image_size": 32}, finetune=crop, train=crop)
    for name in ("finetune", "train"):
        assert_refused(
            name, tmp_path, capsys, "augmentation.crop_size: 24 is larger than the prepared images of 16 pixels"
        )


def test_weights_of_another_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, finetune={"weights": str(tmp_path / "w.pth")})
    torch.save(build("resnet34", 4, stem="imagenet", seed=0).state_dict(), tmp_path / "w.pth")
    assert_refused("finetune", tmp_path, capsys, r"w\.pth: tensor layer1\.2\.bn1\.bias does not belong to this network")
    torch.save(build(NETWORK, 4, stem="cifar", seed=0).state_dict(), tmp_path / "w.pth")
    assert_refused("finetune", tmp_path, capsys, r"w\.pth: tensor conv1.weight is \(64, 3, 3, 3\)")


class _Code:
    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._sentinel,)


def test_weights_with_code_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, finetune={"weights": str(tmp_path / "w.pth")})
    torch.save({"conv1.weight": _Code(tmp_path / "ran")}, tmp_path / "w.pth")
    assert_refused("finetune", tmp_path, capsys, r"w\.pth: .*pickled code, which is never run")
    assert not (tmp_path / "ran").exists()


def test_no_network_to_download_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights = write_imagenet_weights(tmp_path / "server")
    with serving(weights.parent) as root:
        pass  # and gone again

    class _Entry:
        class IMAGENET1K_V1:  # noqa: N801 - torchvision's name
            url = f"{root}/{weights.name}"

    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda network: _Entry)
    write_project(tmp_path, finetune={"weights": "imagenet"})
    place = tmp_path / "torch" / "hub" / "checkpoints" / weights.name
    assert_refused("finetune", tmp_path, capsys, f"cannot be downloaded .* put the file at {re.escape(str(place))}")


def _extractor(data: DataPaths, network: str = NETWORK, *, names: tuple[str, ...] = NAMES, size: int = 16) -> None:
    settings = replace(TINY, network=network, format=replace(TINY.format, image_size=size, crop_size=size))
    save_trained(data.extractor(NETWORK), build(network, len(names), stem="imagenet", seed=0), settings, names)


_EXTRACTORS: dict[str, tuple[Break, str]] = {
    "missing": (lambda data: data.extractor(NETWORK).unlink(), "no such weights file"),
    "empty": (lambda data: data.extractor(NETWORK).write_bytes(b""), "is empty"),
    "text": (lambda data: data.extractor(NETWORK).write_text("weights, honestly"), "weights file|state dict"),
    "truncated": (
        lambda data: data.extractor(NETWORK).write_bytes(data.extractor(NETWORK).read_bytes()[:100_000]),
        "damaged weights file",
    ),
    "torchvision's": (
        lambda data: torch.save(torchvision.models.resnet18(num_classes=4).state_dict(), data.extractor(NETWORK)),
        "is not a network trained here",
    ),
    "another network": (lambda data: _extractor(data, "resnet34"), "its network is resnet34, needed is resnet18"),
    "other classes": (lambda data: _extractor(data, names=("a", "b", "c", "d")), "its class_names is"),
    "another image size": (lambda data: _extractor(data, size=12), "its image_size is 12, needed is 16"),
}


@pytest.mark.parametrize("what", _EXTRACTORS)
def test_extractors(project: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    change, said = _EXTRACTORS[what]
    data = DataPaths(root=project / "data")
    change(data)
    assert_refused("extract", project, capsys, rf"finetune/{NETWORK}\.pt: .*({said})")
    assert not data.features(NETWORK).exists()


def test_features_that_are_not_finite(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=project / "data")
    model = build_resnet()
    torch.nn.init.constant_(model.backbone.bn1.bias, float("nan"))
    save_trained(data.extractor(NETWORK), model, TINY, NAMES)
    assert_refused(
        "extract", project, capsys, "features: the network gives NaN or infinity; lower finetune.learning_rate"
    )
    assert not list((data.root / "extract").iterdir())


def test_no_room_for_the_features(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert_refused("extract", project, capsys, r"extract/resnet18.npy: needs .* GB and the disk has .* free")
    assert not list((DataPaths(root=project / "data").root / "extract").iterdir())


def test_a_damaged_entry_of_the_ledger(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage("train", project) == 0
    (entry,) = (project / "work" / "cells").glob("[0-9a-f]*")
    (entry / "correct.npy").write_bytes(b"")
    assert_refused(
        "train", project, capsys, f"{re.escape(str(entry))}: damaged entry; delete this folder and run again"
    )
    shutil.rmtree(entry)
    assert stage("train", project) == 0


@pytest.mark.parametrize(("name", "argument"), [("train", "study"), ("finetune", "network"), ("extract", "network")])
def test_unknown_items(project: Path, capsys: pytest.CaptureFixture[str], name: str, argument: str) -> None:
    assert_refused(name, project, capsys, f"--{argument} another: not in .*params.yaml; it has", item="another")
