"""The filter on external features."""

import csv
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json
from pipeline.artifacts.tables import read_parquet
from pipeline.commands import filter_features
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import class_blobs, write_params

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
    params = write_params(folder, reduce=reduce, filter={"drop_fraction": 0.05, **filter_keys})
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
    metrics = read_json(tmp_path / "out/metrics.json")
    assert (metrics["probabilities"], metrics["probe"]) == ("given", None)
    assert metrics["probabilities_agree"] == pytest.approx(1 - planted.mean())
    assert read_parquet(tmp_path / "out/points.parquet")["is_noise"].to_numpy()[planted].all()


def test_the_probe_tells_how_it_ended_and_how_often_it_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, planted = _write(tmp_path, scorer={"name": "margin"})
    assert main(command) == 0
    metrics = read_json(tmp_path / "out/metrics.json")
    assert metrics["probe"]["converged"] is True
    assert len(metrics["probe"]["iterations"]) == 5
    points = read_parquet(tmp_path / "out/points.parquet")
    agree = (points["predicted"].to_numpy() == points["label"].to_numpy()).mean()
    assert metrics["probabilities_agree"] == agree == pytest.approx(1 - planted.mean(), abs=0.02)
    assert f" {agree:.2%} " in capsys.readouterr().out


def test_an_estimated_share_comes_from_the_probe_though_the_scorer_reads_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, planted = _write(tmp_path, scorer={"name": "knn_agreement"}, drop_fraction="estimated")
    assert main(command) == 0
    metrics = read_json(tmp_path / "out/metrics.json")
    assert metrics["requested_share"] == metrics["wrong_share"]["extrapolated"]["share"]
    assert metrics["requested_share"] == pytest.approx(planted.mean(), abs=0.02)
    assert "filter.drop_fraction: " in capsys.readouterr().out


def test_the_command_imports_no_torch() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import pipeline.commands.filter_features, sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "False\n"


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = _write(tmp_path)
    (tmp_path / "out").write_text("mine")
    assert main(command) == 2
    assert printed_error(capsys.readouterr().err).key == f"--out {tmp_path / 'out'}"
    assert (tmp_path / "out").read_text() == "mine"


def test_where_settings_do_not_fit_the_features_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = _write(tmp_path)
    np.save(tmp_path / "f.npy", np.load(tmp_path / "f.npy")[:, :4])
    assert main(command) == 2
    assert printed_error(capsys.readouterr().err).key == "reduce.pca.n_components"
    assert not (tmp_path / "out").exists()


def _one_class(folder: Path) -> None:
    (folder / "y.csv").write_text("label\n" + "cat\n" * _N)


def _class_of_three(folder: Path) -> None:
    (folder / "y.csv").write_text("label\n" + "cat\n" * (_N - 3) + "dog\n" * 3)


def _class_of_one(folder: Path) -> None:
    (folder / "y.csv").write_text("label\n" + "cat\n" * (_N - 1) + "dog\n")


@pytest.mark.parametrize(
    ("spoil", "keys", "key"),
    [
        (_one_class, {"scorer": {"name": "knn_agreement"}}, "filter.scorer"),
        (_one_class, {"scorer": {"name": "dbscan"}, "drop_fraction": None, "eps": "tuned"}, "filter.eps"),
        (_one_class, {"scorer": {"name": "dbscan"}, "drop_fraction": "estimated"}, "filter.drop_fraction"),
        (_class_of_three, {"scorer": {"name": "dbscan", "min_samples": 5}}, "filter.scorer.min_samples"),
        (None, {"scorer": {"name": "knn_agreement", "k": 60}}, "filter.scorer.k"),
        (_class_of_one, {"scorer": {"name": "el2n"}}, "filter.scorer"),
    ],
)
def test_what_labels_and_settings_decide_is_refused_before_the_map(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None] | None,
    keys: dict[str, Any],
    key: str,
) -> None:
    monkeypatch.setattr(filter_features, "embed", lambda *_, **__: pytest.fail("drew a map"))
    command, _ = _write(tmp_path, **keys)
    if spoil:
        spoil(tmp_path)
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert printed_error(line).key == key
    assert not (tmp_path / "out").exists()


def test_a_class_that_would_be_emptied_gets_a_fix_for_this_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = _write(tmp_path, scorer={"name": "knn_distance"}, drop_fraction=None, threshold=1e-6)
    assert main(command) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "filter.threshold"
    assert re.findall(r"filter\.allow_empty: (\w+)", str(error)) == ["true"]
    assert "overrides" not in str(error)


def test_runs_repeat(tmp_path: Path) -> None:
    command, _ = _write(tmp_path)
    written = []
    for _ in range(2):
        assert main(command) == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert written[0] == written[1]
