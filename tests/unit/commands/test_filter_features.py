"""The filter on external features."""

import csv
import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json
from pipeline.artifacts.overrides import read_overrides, write_overrides
from pipeline.artifacts.tables import read_parquet, write_csv, write_parquet
from pipeline.commands.filter_features import command as filter_features
from tests.fixtures.golden import check_golden
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


def test_an_estimated_share_comes_from_the_probe_for_any_scorer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, planted = _write(tmp_path, scorer={"name": "knn_agreement"}, drop_fraction="estimated")
    assert main(command) == 0
    metrics = read_json(tmp_path / "out/metrics.json")
    assert metrics["requested_share"] == metrics["wrong_share"]["extrapolated"]["share"]
    assert metrics["requested_share"] == pytest.approx(planted.mean(), abs=0.02)
    assert "filter.drop_fraction: " in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_imports_no_torch() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import pipeline.commands.filter_features.command, sys; print('torch' in sys.modules)"],
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


def _identify(folder: Path) -> list[dict[str, str]]:
    """Give the label file the column sha256; returns its records."""
    with (folder / "y.csv").open(newline="") as file:
        records = [{**row, "sha256": hashlib.sha256(row["path"].encode()).hexdigest()} for row in csv.DictReader(file)]
    write_csv(folder / "y.csv", pa.Table.from_pylist(records))
    return records


def test_options_need_no_parameters_and_no_embedding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_features, "embed", lambda *_, **__: pytest.fail("drew a map"))
    command, planted = _write(tmp_path)
    (tmp_path / "params.yaml").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/maps.npy").write_bytes(b"of an earlier run")
    options = ["--scorer", "knn_agreement", "--drop-fraction", "0.05", "--neighbors", "7"]
    assert main([*command, *options]) == 0
    metrics = read_json(tmp_path / "out/metrics.json")
    assert metrics["settings"]["scorer"] == {"name": "knn_agreement", "k": 7}
    assert metrics["n_total"] - metrics["n_kept"] == round(0.05 * _N)
    points = read_parquet(tmp_path / "out/points.parquet")
    assert {len(row) for row in points["neighbours"].to_pylist()} == {7}
    assert "x" not in points.column_names
    assert not (tmp_path / "out/maps.npy").exists()
    # The suspects: each planted label is another class, which the neighbors suggest.
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["score", "path", "label", "suggested", "reason"]
    for line in lines[:10]:
        _, image, number, label, suggested, *_ = line.split()
        row = int(number.removesuffix(".png"))
        assert (image, planted[row]) == ("image", True)
        assert _NAMES.index(label) == (_NAMES.index(suggested) + 1) % 3
    assert lines[10].startswith(str(tmp_path / "out"))


def test_options_replace_those_of_the_parameters(tmp_path: Path) -> None:
    command, _ = _write(tmp_path, scorer={"name": "dbscan"}, drop_fraction=None, eps="knee")
    assert main([*command, "--scorer", "margin", "--drop-fraction", "0.1", "--embedding"]) == 0
    metrics = read_json(tmp_path / "out/metrics.json")
    assert (metrics["settings"]["scorer"]["name"], metrics["requested_share"]) == ("margin", 0.1)
    assert np.load(tmp_path / "out/maps.npy").shape == (1, _N, 2)
    assert "x" in read_parquet(tmp_path / "out/points.parquet").column_names


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--scorer", "margin"], "filter"),
        (["--drop-fraction", "1.5"], "filter.drop_fraction"),
        (["--neighbors", "0"], "--neighbors"),
        (["--neighbors", "240"], "reduce.n_neighbors"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = _write(tmp_path, scorer={"name": "dbscan"}, drop_fraction=None, eps="knee")
    assert main([*command, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert printed_error(line).key == key
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scorer", ["centroid", "knn_agreement", "knn_distance", "ccs"])
def test_defaults_shrink_to_few_rows(scorer: str, tmp_path: Path) -> None:
    command, _ = _write(tmp_path)
    (tmp_path / "params.yaml").unlink()
    lines = (tmp_path / "y.csv").read_text().splitlines()
    (tmp_path / "y.csv").write_text("\n".join([lines[0], *lines[1::12]]))
    np.save(tmp_path / "f.npy", np.load(tmp_path / "f.npy")[::12])
    assert main([*command, "--scorer", scorer, "--drop-fraction", "0.1", "--embedding"]) == 0
    assert np.load(tmp_path / "out/maps.npy").shape == (1, 20, 2)


def test_without_parameters_scorer_and_share_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = _write(tmp_path)
    (tmp_path / "params.yaml").unlink()
    assert main([*command, "--scorer", "margin"]) == 2
    assert "params.yaml: no such file" in capsys.readouterr().err


def test_decisions_come_and_go_as_overrides(tmp_path: Path) -> None:
    command, _ = _write(tmp_path, scorer={"name": "knn_agreement"})
    records = _identify(tmp_path)
    assert main(command) == 0
    first = read_overrides(tmp_path / "out/overrides.csv")
    assert [(row.path, row.sha256) for row in first] == [(row["path"], row["sha256"]) for row in records]
    points = read_parquet(tmp_path / "out/points.parquet")
    assert [row.decision == "keep" for row in first] == points["keep"].to_pylist()
    mine = [replace(first[0], decision="keep", note="is right"), replace(first[1], decision="drop", note="blurred")]
    write_overrides(tmp_path / "mine.csv", mine)
    assert main([*command, "--overrides", str(tmp_path / "mine.csv")]) == 0
    points = read_parquet(tmp_path / "out/points.parquet")
    assert points["keep"].to_pylist()[:2] == [True, False]
    assert "blurred" in points["reason"][1].as_py()
    assert [row.decision for row in read_overrides(tmp_path / "out/overrides.csv")[:2]] == ["keep", "drop"]


def test_the_labels_may_be_a_manifest(tmp_path: Path) -> None:
    command, _ = _write(tmp_path, scorer={"name": "knn_agreement"})
    records = _identify(tmp_path)
    assert main(command) == 0
    expected = (tmp_path / "out/overrides.csv").read_bytes()
    manifest = pa.Table.from_pylist([{**row, "label_name": row["label"]} for row in records])
    write_parquet(tmp_path / "train.parquet", manifest.drop_columns("label"))
    at = command.index("--labels")
    assert main([*command[: at + 1], str(tmp_path / "train.parquet"), *command[at + 2 :]]) == 0
    assert (tmp_path / "out/overrides.csv").read_bytes() == expected


def test_images_that_decisions_cannot_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = _write(tmp_path, scorer={"name": "knn_agreement"})
    write_overrides(tmp_path / "mine.csv", [])
    lines = []
    assert main([*command, "--overrides", str(tmp_path / "mine.csv")]) == 2
    lines += capsys.readouterr().err.splitlines()
    records = _identify(tmp_path)
    for change in ({"path": records[1]["path"]}, {"sha256": "abc"}):
        write_csv(tmp_path / "y.csv", pa.Table.from_pylist([{**records[0], **change}, *records[1:]]))
        assert main(command) == 2
        lines += capsys.readouterr().err.splitlines()
    cases = ("overrides, and labels without paths and digests", "a path in two rows", "a digest that is none")
    text = "".join(f"{case} -> {line}\n" for case, line in zip(cases, lines, strict=True))
    check_golden("filter_features_images.txt", text.replace(str(tmp_path), "FOLDER"))
