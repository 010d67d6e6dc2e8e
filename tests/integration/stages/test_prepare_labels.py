"""`prepare.label_file`: the labels of an annotator's file replace those of the data set."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.registry import CIFAR10, DATASETS, open_cifar
from pipeline.paths import DataPaths
from tests.fixtures.images import cifar10_archive, one_tree, run_prepare, split_tree, write_folder


def _labels(folder: Path, lines: dict[str, str]) -> str:
    path = folder / "annotator.csv"
    path.write_text("path,label\n" + "".join(f"{image},{name}\n" for image, name in lines.items()))
    return str(path)


def _names(data: DataPaths, split: str = "train") -> dict[str, str]:
    table = read_parquet(data.manifest(split)).to_pydict()
    return dict(zip(table["path"], table["label_name"], strict=True))


def _metrics(data: DataPaths) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads(data.prepare_metrics.read_text())
    return metrics


def test_the_manifest_of_a_folder_has_the_labels_of_the_file(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", split_tree(n_train=10))
    before = run_prepare(tmp_path, images)
    folders, pixels = _names(before), before.images("train").read_bytes()
    new_labels = {"train/cat/0.png": "dog", "train/cat/1.png": "cat", "train/dog/7.png": "cat"}
    data = run_prepare(tmp_path, images, label_file=_labels(tmp_path, new_labels))
    assert _names(data) == {**folders, **new_labels}
    assert data.images("train").read_bytes() == pixels
    assert _metrics(data)["n_relabelled"] == 2
    assert _metrics(data)["class_counts"]["train"] == {"cat": 10, "dog": 10}
    labels = load_prepared(data, folder=None).train.labels
    assert [("cat", "dog")[label] for label in labels] == list(_names(data).values())


def test_labels_of_the_digits_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits: dict[str, Any] = {"dataset": "digits", "image_size": 8, "test_size": 0.2}
    path, name = next(iter(_names(run_prepare(tmp_path, None, **digits)).items()))
    data = run_prepare(tmp_path, None, **digits, label_file=_labels(tmp_path, {path: "7" if name != "7" else "1"}))
    assert _names(data)[path] == ("7" if name != "7" else "1")
    assert _metrics(data)["n_relabelled"] == 1
    assert "annotator.csv: 1;" in capsys.readouterr().err.splitlines()[-1]


def test_labels_of_cifar_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    archive = cifar10_archive(tmp_path / "a.tar.gz", pixels, np.arange(120) % 10)
    monkeypatch.setitem(DATASETS, "cifar10", partial(open_cifar, replace(CIFAR10, sha256=sha256_of_file(archive))))
    labels = _labels(tmp_path, {"cifar10/train/00003": "truck"})
    data = run_prepare(tmp_path, archive, dataset="cifar10", image_size=32, label_file=labels)
    assert _names(data)["cifar10/train/00003"] == "truck"
    assert _metrics(data)["n_relabelled"] == 1


def test_the_test_split_does_not_depend_on_the_label_file(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", one_tree(n=40))
    before = run_prepare(tmp_path, images, test_size=0.25)
    test, train = _names(before, "test"), _names(before)
    new_labels = dict.fromkeys([path for path, name in train.items() if name == "cat"][:20], "dog")
    data = run_prepare(tmp_path, images, test_size=0.25, val_size=0.2, label_file=_labels(tmp_path, new_labels))
    assert _names(data, "test") == test
    assert list(_names(data)) == list(train)
    table = read_parquet(data.manifest("train"))
    val = Counter(
        name for name, flag in zip(*table.select(["label_name", "val"]).to_pydict().values(), strict=True) if flag
    )
    assert val == {"cat": 2, "dog": 10}


def test_unreadable_images_may_be_listed(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", {**split_tree(), "train/cat/1.png": b""})
    labels = _labels(tmp_path, {"train/cat/1.png": "dog", "train/cat/2.png": "dog"})
    assert _metrics(run_prepare(tmp_path, images, unreadable="skip", label_file=labels))["n_relabelled"] == 1


@pytest.mark.parametrize(
    ("new_labels", "expected"),
    [
        ({"train/cat/9.png": "dog"}, "annotator.csv: line 2: 'train/cat/9.png' "),
        ({f"train/cat/{row}.png": "dog" for row in range(4)}, "annotator.csv: class cat has 0 "),
    ],
    ids=["unknown path", "a class without images"],
)
def test_a_bad_file_stops_the_stage_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new_labels: dict[str, str], expected: str
) -> None:
    images = write_folder(tmp_path / "images", split_tree())
    with pytest.raises(SystemExit) as ended:
        run_prepare(tmp_path, images, label_file=_labels(tmp_path, new_labels))
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert expected in line
    assert not (tmp_path / "data/prepare/train.npy").exists()


def test_provenance_names_the_file_and_no_path_of_this_machine(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", split_tree())
    data = run_prepare(tmp_path, images, label_file=_labels(tmp_path, {"train/cat/0.png": "dog"}))
    record = data.provenance("prepare").read_text()
    assert json.loads(record)["parameters"]["label_file"] == "annotator.csv"
    assert str(tmp_path) not in record
