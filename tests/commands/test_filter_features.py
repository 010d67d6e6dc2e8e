"""The filter on features made elsewhere."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import class_blobs, write_params
from sklearn.metrics import roc_auc_score

from pipeline.__main__ import main
from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.tables import read_parquet

_N = 240
_NAMES = ["cat", "dog", "yak"]


def _write(folder: Path, *, dtype: str = "float32", **filter_keys: Any) -> tuple[list[str], np.ndarray]:
    """Three blobs, every 20th row with another's label; returns the command line and which rows those are."""
    features, labels = class_blobs(np.random.default_rng(0), n_classes=3, per_class=_N // 3, dimensions=12)
    planted = np.arange(_N) % 20 == 0
    labels = np.where(planted, (labels + 1) % 3, labels)
    np.save(folder / "f.npy", features.astype(dtype))
    with (folder / "y.csv").open("w", newline="") as file:
        rows = [(f"image {row}.png", _NAMES[label]) for row, label in enumerate(labels)]
        csv.writer(file).writerows([("path", "label"), *rows])
    tsne = {"perplexity": 10.0, "early_exaggeration_iter": 50, "n_iter": 100, "n_jobs": 1}
    reduce = {"pca": {"n_components": 5}, "tsne": tsne}
    params = write_params(folder, reduce=reduce, filter={"drop_share": 0.05, **filter_keys})
    files = {"--features": "f.npy", "--labels": "y.csv", "--out": "out"}
    named = [part for option, name in files.items() for part in (option, str(folder / name))]
    return ["filter-features", "--params", str(params), *named], planted


@pytest.mark.parametrize("scorer", [{"name": "knn_agreement"}, {"name": "self_confidence"}, {"name": "dbscan"}])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wrong_labels_are_found_and_listed(tmp_path: Path, scorer: dict[str, Any], dtype: str) -> None:
    command, planted = _write(tmp_path, dtype=dtype, scorer=scorer)
    assert main(command) == 0
    points = read_parquet(tmp_path / "out/points.parquet")
    assert roc_auc_score(planted, points["score"].to_numpy()) > 0.95
    with (tmp_path / "out/dropped.csv").open(newline="") as file:
        dropped = list(csv.DictReader(file))
    assert {row["path"] for row in dropped} <= set(points["path"].to_pylist())
    metrics = read_json(tmp_path / "out/metrics.json")
    assert len(dropped) == metrics["n_total"] - metrics["n_kept"] == round(0.05 * _N)
    assert set(metrics["classes"]) == set(_NAMES)
    probe = "linear probe, 5-fold cross-validated"
    assert metrics["probabilities"] == (probe if scorer["name"] == "self_confidence" else None)


def test_without_labels_what_lies_alone_is_found(tmp_path: Path) -> None:
    command, _ = _write(tmp_path, scorer={"name": "knn_distance"})
    features = np.load(tmp_path / "f.npy")
    alone = np.arange(_N) % 40 == 0
    features[alone] = np.random.default_rng(1).normal(scale=30, size=(alone.sum(), 12))
    np.save(tmp_path / "f.npy", features)
    at = command.index("--labels")
    assert main(command[:at] + command[at + 2 :]) == 0
    points = read_parquet(tmp_path / "out/points.parquet")
    assert roc_auc_score(alone, points["score"].to_numpy()) > 0.95
    assert set(points["label_name"].to_pylist()) == {"all"}
    assert "path" not in points.column_names


def test_probabilities_may_be_given(tmp_path: Path) -> None:
    command, planted = _write(tmp_path, scorer={"name": "self_confidence"})
    with (tmp_path / "y.csv").open(newline="") as file:
        labels = [_NAMES.index(row["label"]) for row in csv.DictReader(file)]
    probabilities = np.full((_N, 3), 0.1, dtype=np.float32)
    probabilities[np.arange(_N), np.where(planted, (np.array(labels) + 1) % 3, labels)] = 0.8
    np.save(tmp_path / "p.npy", probabilities)
    assert main([*command, "--probabilities", str(tmp_path / "p.npy")]) == 0
    assert read_json(tmp_path / "out/metrics.json")["probabilities"] == "given"
    assert read_parquet(tmp_path / "out/points.parquet")["is_noise"].to_numpy()[planted].all()


def test_runs_repeat(tmp_path: Path) -> None:
    command, _ = _write(tmp_path)
    written = []
    for _ in range(2):
        assert main(command) == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert written[0] == written[1]


def _bad_shape(folder: Path) -> None:
    np.save(folder / "f.npy", np.zeros(7, dtype=np.float32))


def _whole_numbers(folder: Path) -> None:
    np.save(folder / "f.npy", np.zeros((_N, 3), dtype=np.int64))


def _nan(folder: Path) -> None:
    features = np.load(folder / "f.npy")
    features[3, 1] = np.nan
    np.save(folder / "f.npy", features)


def _not_an_array(folder: Path) -> None:
    (folder / "f.npy").write_text("no array")


def _pickle(folder: Path) -> None:
    np.save(folder / "f.npy", np.array([{}], dtype=object), allow_pickle=True)


def _fewer_labels(folder: Path) -> None:
    lines = (folder / "y.csv").read_text().splitlines()
    (folder / "y.csv").write_text("\n".join(lines[:-1]))


def _other_columns(folder: Path) -> None:
    (folder / "y.csv").write_text("name,class\na,b\n")


def _empty_label(folder: Path) -> None:
    (folder / "y.csv").write_text((folder / "y.csv").read_text().replace("image 4.png,dog", "image 4.png,"))


def _missing(folder: Path) -> None:
    (folder / "f.npy").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_bad_shape, "f.npy: is float32 (7,); give floats of shape (N, D)"),
        (_whole_numbers, "f.npy: is int64 (240, 3); give floats"),
        (_nan, "f.npy: row 3 holds NaN"),
        (_not_an_array, "f.npy: not a sound .npy file"),
        (_pickle, "f.npy: not a sound .npy file"),
        (_fewer_labels, "y.csv: has 239 rows for 240 rows of features"),
        (_other_columns, "y.csv: has the columns ['name', 'class']; give a column label"),
        (_empty_label, "y.csv: line 6 has no label"),
        (_missing, "f.npy: no such file"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, message: str) -> None:
    command, _ = _write(tmp_path)
    spoil(tmp_path)
    assert main(command) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert message in error[0]
