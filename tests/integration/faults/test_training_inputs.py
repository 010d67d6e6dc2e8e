"""Bad input of a training stage: exit code 2, one line, and no traceback."""

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
from ruamel.yaml import YAML

from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.models import build_network
from pipeline.paths import DataPaths
from pipeline.training.weights import save_trained
from tests.fixtures.golden import check_golden
from tests.fixtures.loopback import serving
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.slow import quick_first
from tests.fixtures.training import (
    NAMES,
    TINY,
    bright_images,
    build_resnet,
    stage,
    write_imagenet_weights,
    write_kept,
    write_project,
)

Break = Callable[[DataPaths], Any]


@pytest.fixture(scope="module")
def prototype(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid project with an extractor, which tests copy and break."""
    folder = tmp_path_factory.mktemp("sound")
    data = write_project(folder, study={"arms": ["full"], "seeds": [0]})
    save_trained(data.extractor(NETWORK), build_network(NETWORK, len(NAMES), stem="imagenet", seed=0), TINY, NAMES)
    return folder


@pytest.fixture
def project(prototype: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prototype, tmp_path / "project")


@pytest.fixture
def filtering(project: Path) -> Path:
    """The project with a study that needs the filter."""
    path, yaml = project / "params.yaml", YAML()
    tree = yaml.load(path)
    tree["studies"]["tiny"]["arms"] = ["full", "filtered"]
    yaml.dump(tree, path)
    return project


def assert_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], key: str, *, item: str | None = None
) -> str:
    """Check for exit code 2 and one line that names `key`, which is a key or a file of data/; return the line."""
    capsys.readouterr()
    assert stage(name, folder, item) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    error = printed_error(err)
    assert error.key.removeprefix(f"{folder / 'data'}/") == key
    return str(error)


def _relabel(data: DataPaths, labels: Any) -> None:
    table = read_parquet(data.manifest("train"))
    write_parquet(data.manifest("train"), table.set_column(table.schema.get_field_index("label"), "label", labels))


def _metrics(data: DataPaths, **changes: Any) -> None:
    metrics = {**read_json(data.prepare_metrics), **changes}
    write_json(data.prepare_metrics, {key: value for key, value in metrics.items() if value is not None})


_PREPARED: dict[str, tuple[Break, str]] = {
    "no images": (lambda data: data.images("train").unlink(), "prepare/train.npy"),
    "no manifest": (lambda data: data.manifest("test").unlink(), "prepare/test.parquet"),
    "no metrics": (lambda data: data.prepare_metrics.unlink(), "prepare/metrics.json"),
    "truncated images": (
        lambda data: data.images("train").write_bytes(data.images("train").read_bytes()[:5000]),
        "prepare/train.npy",
    ),
    "text for images": (lambda data: data.images("test").write_text("x"), "prepare/test.npy"),
    "text for a table": (lambda data: data.manifest("train").write_text("x"), "prepare/train.parquet"),
    "float images": (
        lambda data: write_array(data.images("train"), bright_images(60)[0].astype(np.float32)),
        "prepare/train.npy",
    ),
    "too few images": (
        lambda data: write_array(data.images("train"), bright_images(59)[0]),
        "prepare/train.npy",
    ),
    "images of another size": (
        lambda data: write_array(data.images("test"), bright_images(22, size=12)[0]),
        "prepare/test.npy",
    ),
    "a label of no class": (lambda data: _relabel(data, pa.array([4] * 60)), "prepare/train.parquet"),
    "a missing label": (lambda data: _relabel(data, pa.array([None, *[0] * 59])), "prepare/train.parquet"),
    "labels in words": (lambda data: _relabel(data, pa.array(["ash"] * 60)), "prepare/train.parquet"),
    "no mean": (lambda data: _metrics(data, mean=None), "prepare/metrics.json"),
    "broken metrics": (lambda data: data.prepare_metrics.write_text("{"), "prepare/metrics.json"),
    "metrics of another kind": (lambda data: data.prepare_metrics.write_text("[]"), "prepare/metrics.json"),
}


# All three stages use one reader: two of its faults are enough for the other stages.
@pytest.mark.parametrize(
    ("name", "what"),
    [
        *quick_first(4, [("train", what) for what in _PREPARED]),
        *quick_first(
            1, [(name, what) for what in ("no manifest", "too few images") for name in ("finetune", "extract")]
        ),
    ],
)
def test_prepared_images(project: Path, capsys: pytest.CaptureFixture[str], name: str, what: str) -> None:
    change, file = _PREPARED[what]
    change(DataPaths(root=project / "data"))
    assert_refused(name, project, capsys, file)


def _kept(data: DataPaths, text: str) -> None:
    data.kept(NETWORK).write_text(f"sample_id,path,label_name\n{text}")


_KEPT: dict[str, Break] = {
    "missing": lambda data: data.kept(NETWORK).unlink(),
    "empty": lambda data: data.kept(NETWORK).write_text(""),
    "nothing kept": lambda data: _kept(data, ""),
    "a row too high": lambda data: _kept(data, "60,train/ash/00060.png,ash\n"),
    "a negative row": lambda data: _kept(data, "-1,train/ash/00000.png,ash\n"),
    "a row twice": lambda data: _kept(data, "0,train/ash/00000.png,ash\n" * 2),
    "another image": lambda data: _kept(data, "0,train/ash/00004.png,ash\n"),
    "no number": lambda data: _kept(data, "one,train/ash/00000.png,ash\n"),
    "no value": lambda data: _kept(data, ",train/ash/00000.png,ash\n0,x,ash\n"),
    "other columns": lambda data: data.kept(NETWORK).write_text("id,path\n0,x\n"),
    "binary": lambda data: data.kept(NETWORK).write_bytes(b"\xff\xfe\x00" * 50),
    "a larger preparation": lambda data: write_kept(data, np.arange(90) % 10 > 0),
}


@pytest.mark.parametrize("what", quick_first(3, _KEPT))
def test_kept_images(filtering: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    _KEPT[what](DataPaths(root=filtering / "data"))
    assert_refused("train", filtering, capsys, f"filter/{NETWORK}/kept.csv")


_FINETUNE: dict[str, tuple[dict[str, Any], str]] = {
    "batch above N": ({"batch_size": 61}, "finetune.batch_size"),
    "no such file": ({"weights": "no/such-{network}.pth"}, "no/such-resnet18.pth"),
    "a divergent rate": (
        {"learning_rate": 1e30, "schedule": {"name": "constant"}},
        "finetune.learning_rate",
    ),
    "a rate that diverges with the last step": (
        {"learning_rate": 1e30, "schedule": {"name": "constant"}, "budget": {"steps": 1}},
        "finetune.learning_rate",
    ),
    "no budget": ({"budget": {"steps": 0}}, "params.yaml: finetune.budget"),
    "nesterov without momentum": (
        {"optimizer": {"name": "sgd", "momentum": 0.0, "nesterov": True}},
        "params.yaml: finetune.optimizer",
    ),
    "workers that do not divide": (
        {"workers": 2, "simulated_workers": 4, "batch_size": 6},
        "params.yaml: finetune.batch_size",
    ),
    "processes that do not divide": (
        {"workers": 3, "simulated_workers": 4},
        "params.yaml: finetune.workers",
    ),
}


@pytest.mark.parametrize("what", quick_first(2, _FINETUNE))
def test_finetuning(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    section, keys = _FINETUNE[what]
    data = write_project(tmp_path, finetune=section)
    file, colon, key = keys.rpartition(": ")
    said = assert_refused("finetune", tmp_path, capsys, str(tmp_path / file) if colon else key)
    assert said.removeprefix(f"{tmp_path}/").startswith(f"{keys}: ")
    assert "; " in said or "must be" in said, "a fix"
    assert not data.extractor(NETWORK).exists()
    assert not data.finetune_metrics(NETWORK).exists()


def test_crops_larger_than_what_was_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parameters are valid, but the images on disk have the earlier, smaller `image_size`."""
    crop = {"augmentation": {"crop_size": 24}}
    write_project(tmp_path, prepare={"image_size": 32}, finetune=crop, train=crop)
    for name in ("finetune", "train"):
        assert_refused(name, tmp_path, capsys, "augmentation.crop_size")


@pytest.mark.slow
def test_weights_of_another_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, finetune={"weights": str(tmp_path / "w.pth")})
    torch.save(build_network("resnet34", 4, stem="imagenet", seed=0).state_dict(), tmp_path / "w.pth")
    lines = [assert_refused("finetune", tmp_path, capsys, str(tmp_path / "w.pth"))]
    torch.save(build_network(NETWORK, 4, stem="cifar", seed=0).state_dict(), tmp_path / "w.pth")
    lines.append(assert_refused("finetune", tmp_path, capsys, str(tmp_path / "w.pth")))
    text = "".join(
        f"{case} -> {line}\n"
        for case, line in zip(("weights of another network", "weights of another stem"), lines, strict=True)
    )
    check_golden("weights_errors.txt", text.replace(str(tmp_path), "FOLDER"))


class _Code:
    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._sentinel,)


def test_weights_with_code_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, finetune={"weights": str(tmp_path / "w.pth")})
    torch.save({"conv1.weight": _Code(tmp_path / "ran")}, tmp_path / "w.pth")
    assert_refused("finetune", tmp_path, capsys, str(tmp_path / "w.pth"))
    assert not (tmp_path / "ran").exists()


def test_no_network_to_download_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights = write_imagenet_weights(tmp_path / "server")
    with serving(weights.parent) as root:
        pass  # the server has ended

    class _Entry:
        class IMAGENET1K_V1:  # noqa: N801 - torchvision's name
            url = f"{root}/{weights.name}"

    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda network: _Entry)
    write_project(tmp_path, finetune={"weights": "imagenet"})
    path = tmp_path / "torch" / "hub" / "checkpoints" / weights.name
    assert f" {path}, " in assert_refused("finetune", tmp_path, capsys, _Entry.IMAGENET1K_V1.url)


def _extractor(data: DataPaths, network: str = NETWORK, *, names: tuple[str, ...] = NAMES, size: int = 16) -> None:
    settings = replace(TINY, network=network, format=replace(TINY.format, image_size=size, crop_size=size))
    save_trained(data.extractor(NETWORK), build_network(network, len(names), stem="imagenet", seed=0), settings, names)


_EXTRACTORS: dict[str, Break] = {
    "missing": lambda data: data.extractor(NETWORK).unlink(),
    "empty": lambda data: data.extractor(NETWORK).write_bytes(b""),
    "text": lambda data: data.extractor(NETWORK).write_text("weights, honestly"),
    "truncated": lambda data: data.extractor(NETWORK).write_bytes(data.extractor(NETWORK).read_bytes()[:100_000]),
    "torchvision's": lambda data: torch.save(
        torchvision.models.resnet18(num_classes=4).state_dict(), data.extractor(NETWORK)
    ),
    "another network": lambda data: _extractor(data, "resnet34"),
    "other classes": lambda data: _extractor(data, names=("a", "b", "c", "d")),
    "another image size": lambda data: _extractor(data, size=12),
}


@pytest.mark.parametrize("what", quick_first(2, _EXTRACTORS))
def test_extractors(project: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    data = DataPaths(root=project / "data")
    _EXTRACTORS[what](data)
    assert_refused("extract", project, capsys, f"finetune/{NETWORK}.pt")
    assert not data.features(NETWORK).exists()


def test_features_that_are_not_finite(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=project / "data")
    for bias, named in ((3e38, "features"), (float("nan"), f"finetune/{NETWORK}.pt")):
        model = build_resnet()
        torch.nn.init.constant_(model.backbone.bn1.bias, bias)
        save_trained(data.extractor(NETWORK), model, TINY, NAMES)
        assert_refused("extract", project, capsys, named)
        assert not list((data.root / "extract").iterdir())


def test_no_room_for_the_features(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert_refused("extract", project, capsys, "extract/resnet18.npy")
    assert not list((DataPaths(root=project / "data").root / "extract").iterdir())


def test_a_damaged_entry_of_the_ledger_is_set_aside(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage("train", project) == 0
    (entry,) = (project / "work" / "cells").glob("[0-9a-f]*")
    whole = (entry / "correct.npy").read_bytes()
    (entry / "correct.npy").write_bytes(b"")
    capsys.readouterr()
    assert stage("train", project) == 0
    assert str(entry) in capsys.readouterr().err
    assert (entry / "correct.npy").read_bytes() == whole
    assert (entry.parent / "set-aside").is_dir()


@pytest.mark.parametrize(("name", "argument"), [("train", "study"), ("finetune", "network"), ("extract", "network")])
def test_unknown_items(project: Path, capsys: pytest.CaptureFixture[str], name: str, argument: str) -> None:
    assert_refused(name, project, capsys, f"--{argument} another", item="another")
