"""`prepare` from parameters to files."""

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.decode import decode_image
from pipeline.datasets.image_set import SPLITS
from pipeline.datasets.registry import CIFAR10, DATASETS, open_cifar
from pipeline.paths import DataPaths
from tests.fixtures.hub_folders import clone
from tests.fixtures.images import cifar10_archive, gray_16_bit, photo, run_prepare, split_tree, write_folder, write_tar

_FILES = {"train.npy", "test.npy", "train.parquet", "test.parquet", "metrics.json", "provenance.json"}


def _metrics(data: DataPaths) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads(data.prepare_metrics.read_text())
    return metrics


def _bytes(data: DataPaths) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.prepare_metrics.parent.iterdir()}


def test_image_folder(tmp_path: Path) -> None:
    files = split_tree(n_train=10, n_test=2)
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", files))
    assert set(_bytes(data)) == _FILES
    for split, n in (("train", 20), ("test", 4)):
        table = read_parquet(data.manifest(split)).to_pydict()
        assert table["sample_id"] == list(range(n))
        assert table["path"] == sorted(name for name in files if name.startswith(split))
        assert table["label_name"] == [path.split("/")[1] for path in table["path"]]
        assert table["label"] == [["cat", "dog"].index(name) for name in table["label_name"]]
        assert table["sha256"] == [hashlib.sha256(files[path]).hexdigest() for path in table["path"]]
        for row, path in enumerate(table["path"]):
            expected = decode_image(files[path], 8, max_megapixels=1)
            np.testing.assert_array_equal(np.load(data.images(split))[row], expected)
    train = read_parquet(data.manifest("train")).to_pydict()
    assert [
        sum(val for val, label in zip(train["val"], train["label"], strict=True) if label == k) for k in (0, 1)
    ] == [
        1,
        1,
    ]


def test_column_types(tmp_path: Path) -> None:
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", split_tree()))
    types = {"sample_id": "int64", "path": "string", "label": "int64", "label_name": "string", "sha256": "string"}
    for split, extra in (("train", {"val": "bool"}), ("test", {})):
        schema = read_parquet(data.manifest(split)).schema
        assert {field.name: str(field.type) for field in schema} == {**types, **extra}


def test_metrics(tmp_path: Path) -> None:
    files = split_tree(classes=("dog", "ape"), n_train=10, n_test=3)
    files["train/dog/0.png"] = files["train/ape/9.png"]
    files["test/dog/2.png"] = files["train/ape/9.png"]
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", files))
    metrics = _metrics(data)
    pixels = np.load(data.images("train")) / 255
    np.testing.assert_allclose(metrics.pop("mean"), pixels.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(metrics.pop("std"), pixels.std(axis=(0, 1, 2)))
    assert metrics == {
        "dataset": "image_folder",
        "class_names": ["ape", "dog"],
        "n_train": 20,
        "n_test": 6,
        "n_val": 2,
        "image_size": 8,
        "files_in": None,
        "n_relabelled": None,
        "n_planted": None,
        "class_counts": {"train": {"ape": 10, "dog": 10}, "test": {"ape": 3, "dog": 3}},
        "duplicates": {
            "within_train": {"count": 1, "pairs": [["train/ape/9.png", "train/dog/0.png"]]},
            "within_test": {"count": 0, "pairs": []},
            "across": {"count": 1, "pairs": [["train/ape/9.png", "test/dog/2.png"]]},
        },
        "unreadable": [],
    }


def test_later_stages_can_read_it(tmp_path: Path) -> None:
    prepared = load_prepared(run_prepare(tmp_path, write_folder(tmp_path / "images", split_tree())), folder=None)
    assert prepared.class_names == ("cat", "dog")
    assert prepared.image_size == 8
    assert prepared.train.images.shape == (8, 8, 8, 3)


def test_provenance_names_the_outputs_and_no_path_of_this_machine(tmp_path: Path) -> None:
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", split_tree()))
    record = json.loads(data.provenance("prepare").read_text())
    assert record["parameters"]["path"] == "images"
    assert record["outputs"] == {
        path.name: sha256_of_file(path)
        for path in (*map(data.images, SPLITS), *map(data.manifest, SPLITS), data.prepare_metrics)
    }


def test_equal_inputs_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and its archive give equal bytes, also when the second run replaces the files of the first."""
    files = split_tree()
    results = []
    for number, path in enumerate((write_folder(tmp_path / "0/images", files), write_tar(tmp_path / "images", files))):
        folder = tmp_path / f"project{number}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        data = DataPaths(root=Path("data"))
        for _ in range(2):
            run_prepare(Path(), path)
            results.append(_bytes(data))
    assert set(results[0]) == _FILES
    assert results[0] == results[1] == results[2] == results[3]


def test_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_prepare(tmp_path, None, dataset="digits", image_size=16, test_size=0.2)
    metrics = _metrics(data)
    assert metrics["n_train"] + metrics["n_test"] == 1797
    assert np.load(data.images("train"), mmap_mode="r").shape == (metrics["n_train"], 16, 16, 3)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"prepare: digits: {metrics['n_train']} training images")
    assert "images_per_s" in json.loads((tmp_path / "work/resources/prepare.json").read_text())


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    archive = cifar10_archive(tmp_path / "a.tar.gz", pixels, np.arange(120) % 10)
    monkeypatch.setitem(DATASETS, "cifar10", partial(open_cifar, replace(CIFAR10, sha256=sha256_of_file(archive))))
    data = run_prepare(tmp_path, archive, dataset="cifar10", image_size=32)
    np.testing.assert_array_equal(np.load(data.images("train")), pixels[:100])
    np.testing.assert_array_equal(np.load(data.images("test")), pixels[100:])
    table = read_parquet(data.manifest("test")).to_pydict()
    assert table["label_name"][0] == "airplane"
    assert table["sha256"][0] == hashlib.sha256(pixels[100].tobytes()).hexdigest()


def test_skipped_files_are_listed(tmp_path: Path) -> None:
    files = {**split_tree(), "train/cat/1.png": b"", "train/dog/x.txt": b"text"}
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", files), unreadable="skip")
    assert _metrics(data)["unreadable"] == [
        {"path": "train/cat/1.png", "reason": "empty file"},
        {"path": "train/dog/x.txt", "reason": "not an image of a known format"},
    ]
    table = read_parquet(data.manifest("train")).to_pydict()
    assert "train/cat/1.png" not in table["path"]
    assert len(table["path"]) == 7 == len(np.load(data.images("train")))
    assert table["sample_id"] == list(range(7))


@pytest.mark.parametrize(("others", "printed"), [({}, True), ({"train/cat/9.png": gray_16_bit(9, 4096)}, False)])
def test_dark_16_bit_images_print_one_line(
    others: dict[str, bytes], printed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dark = {name: gray_16_bit(seed, 1023 - seed) for seed, name in enumerate(split_tree())}
    photos = {"test/cat/9.png": photo(1)}
    run_prepare(tmp_path, write_folder(tmp_path / "images", dark | photos | others))
    lines = [line for line in capsys.readouterr().err.splitlines() if "16-bit" in line]
    assert len(lines) == printed
    assert not printed or " 1,023 of 65,535" in lines[0]


def test_the_seed_moves_val_and_nothing_else(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "images", split_tree(n_train=30))
    data = run_prepare(tmp_path, path, seed=0)
    first, pixels = read_parquet(data.manifest("train")), data.images("train").read_bytes()
    run_prepare(tmp_path, path, seed=1)
    second = read_parquet(data.manifest("train"))
    assert first["val"] != second["val"]
    assert first.drop_columns("val") == second.drop_columns("val")
    assert data.images("train").read_bytes() == pixels


def test_val_share(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "images", split_tree(n_train=30))
    data = run_prepare(tmp_path, path, val_size=0.5)
    assert sum(read_parquet(data.manifest("train"))["val"].to_pylist()) == _metrics(data)["n_val"] == 30


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "prepare"
    folder.mkdir(parents=True)
    (folder / ".train.npy.999999999.tmp").write_bytes(b"part")
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", split_tree()))
    assert set(_bytes(data)) == _FILES


def test_a_larger_image_size_enlarges(tmp_path: Path) -> None:
    files = {name: photo(seed, size=(5, 40)) for seed, name in enumerate(split_tree())}
    data = run_prepare(tmp_path, write_folder(tmp_path / "images", files), image_size=24)
    assert np.load(data.images("test")).shape == (4, 24, 24, 3)


def test_parquet_shards_of_a_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stage says how it read the folder."""
    root = clone(tmp_path / "hub")
    data = run_prepare(tmp_path, root)
    assert "3 Parquet shards, images in the column image" in capsys.readouterr().err
    assert read_parquet(data.manifest("train"))["label_name"].to_pylist() == ["cat", "dog"] * 4
    assert load_prepared(data, folder=None).train.images.shape == (8, 8, 8, 3)
