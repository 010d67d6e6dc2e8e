"""`filter` runs end to end on made-up embeddings."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import softmax
from sklearn.cluster import DBSCAN
from sklearn.metrics import roc_auc_score

from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.artifacts.overrides import COLUMNS
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from pipeline.stages.filter import filter_images
from pipeline.stages.harness import run_stage
from tests.fixtures.dask_cluster import running_scheduler
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import (
    NETWORK,
    class_blobs,
    sha256_of,
    stage_arguments,
    write_embedding,
    write_manifest,
    write_params,
    write_predictions,
)

_N = 400
_NAMES = ["cat", 'dog, "red"', "Straße\nzwei", "truck"]


def _project(
    folder: Path,
    overrides: Sequence[tuple[str, ...]] = (),
    *,
    paths: list[str] | None = None,
    scheduler: str = "none",
    **keys: Any,
) -> DataPaths:
    """Write an embedding of four classes with every 20th image at random coordinates.

    Args:
        overrides: path, decision and note of each line, and the label of a relabel.
    """
    data = DataPaths(root=folder / "data")
    rng = np.random.default_rng(0)
    coordinates, labels = class_blobs(rng, n_classes=4, per_class=_N // 4, dimensions=2)
    coordinates[::20] = rng.uniform(-12, 12, size=(_N // 20, 2))
    write_manifest(data, "train", labels, names=_NAMES, paths=paths)
    write_predictions(data, labels)
    write_embedding(data, coordinates)
    with data.overrides.open("w", newline="") as file:
        rows = [
            (path, sha256_of(path), decision, *(label or [""]), note, "") for path, decision, note, *label in overrides
        ]
        csv.writer(file).writerows([COLUMNS, *rows])
    write_params(folder, filter={"drop_fraction": 0.05, **keys}, dask={"scheduler": scheduler, "workers": 2})
    return data


def _run(folder: Path) -> None:
    run_stage("filter", filter_images, item="network", argv=stage_arguments(folder))


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_estimated_share_of_wrong_labels_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path, drop_fraction="estimated", scorer={"name": "self_confidence"})
    labels = read_parquet(data.manifest("train"))["label"].to_numpy()
    rng = np.random.default_rng(1)
    contradicted = rng.permutation(_N) < 40
    logits = 4 * np.eye(4)[np.where(contradicted, (labels + 1) % 4, labels)] + rng.normal(size=(_N, 4))
    write_array(data.probabilities(NETWORK), softmax(logits, axis=1).astype(np.float32))
    _run(tmp_path)
    metrics = read_json(data.filter_metrics(NETWORK))
    estimate = metrics["wrong_share"]
    assert 0.07 < estimate["extrapolated"]["share"] == metrics["requested_share"] < 0.13
    assert estimate["extrapolated"]["low"] < 0.1 < estimate["extrapolated"]["high"]
    assert 0.07 < estimate["confident_joint"]["share"] < 0.13
    assert metrics["n_noise"] == round(metrics["requested_share"] * _N)
    said = capsys.readouterr()
    assert f"{100 * metrics['requested_share']:.1f} % of the labels are wrong" in said.out + said.err


def test_points_have_the_columns_of_the_contract(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    assert {field.name: str(field.type) for field in read_parquet(data.points(NETWORK)).schema} == {
        "sample_id": "int64",
        "path": "string",
        "sha256": "string",
        "label": "int64",
        "label_name": "string",
        "predicted": "int64",
        "confidence": "float",
        "x": "float",
        "y": "float",
        "cluster": "int32",
        "is_noise": "bool",
        "eps": "double",
        "score": "double",
        "reason": "string",
        "neighbours": "list<element: int32>",
        "neighbour_labels": "list<element: int32>",
        "keep": "bool",
        "corrected_label": "int64",
        "corrected_label_name": "string",
        "suggested_label": "int64",
        "suggested_label_name": "string",
        "suggested_probability": "float",
    }


@pytest.mark.parametrize(
    "keys",
    [{}, {"drop_fraction": None, "eps": 0.7}, {"drop_fraction": 0.2, "scorer": {"name": "dbscan", "min_samples": 3}}],
)
def test_noise_is_that_of_dbscan_per_class_at_the_recorded_eps(tmp_path: Path, keys: dict[str, Any]) -> None:
    data = _project(tmp_path, **keys)
    _run(tmp_path)
    points, metrics = read_parquet(data.points(NETWORK)), read_json(data.filter_metrics(NETWORK))
    coordinates = np.column_stack([points["x"].to_numpy(), points["y"].to_numpy()])
    labels, noise = points["label"].to_numpy(), points["is_noise"].to_numpy()
    for label in range(4):
        search = DBSCAN(eps=metrics["eps"], min_samples=metrics["settings"]["scorer"]["min_samples"])
        expected = search.fit(coordinates[labels == label]).labels_
        np.testing.assert_array_equal(points["cluster"].to_numpy()[labels == label], expected)
    np.testing.assert_array_equal(noise, points["cluster"].to_numpy() == -1)
    np.testing.assert_array_equal(noise, points["score"].to_numpy() > 0.5)
    if metrics["requested_share"] is not None:
        assert noise.mean() == pytest.approx(metrics["requested_share"], abs=0.003)
        assert metrics["achieved_share"] == noise.mean()


def test_label_odds_of_folds_read_no_in_sample_confidence(tmp_path: Path) -> None:
    data, scores = _project(tmp_path, scorer={"name": "label_odds"}), []
    folds = pa.array(np.arange(_N, dtype=np.int32) % 2)
    table = read_parquet(data.predictions(NETWORK))
    write_parquet(data.predictions(NETWORK), table.set_column(table.column_names.index("fold"), "fold", folds))
    for in_sample in (0.1, 0.9):
        write_array(data.training_confidence(NETWORK), np.full(_N, in_sample, dtype=np.float32))
        _run(tmp_path)
        scores.append(read_parquet(data.points(NETWORK))["score"].to_numpy())
    np.testing.assert_array_equal(*scores)


def test_images_at_random_coordinates_are_noise(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    planted = np.arange(_N) % 20 == 0
    assert roc_auc_score(planted, read_parquet(data.points(NETWORK))["score"].to_numpy()) > 0.85


def test_lists_and_metrics_agree_with_the_points(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    points, metrics = read_parquet(data.points(NETWORK)).to_pylist(), read_json(data.filter_metrics(NETWORK))
    kept, dropped = _csv(data.kept(NETWORK)), _csv(data.dropped(NETWORK))
    assert [(int(row["sample_id"]), row["path"], row["label_name"]) for row in kept] == [
        (point["sample_id"], point["path"], point["label_name"]) for point in points if point["keep"]
    ]
    suspects = sorted((p for p in points if not p["keep"]), key=lambda p: (-p["score"], p["sample_id"]))
    columns = ("path", "reason", "suggested_label_name")
    assert [[r[name] for name in columns] for r in dropped] == [[p[name] for name in columns] for p in suspects]
    assert [float(r["score"]) for r in dropped] == [p["score"] for p in suspects]
    assert [float(r["suggested_probability"]) for r in dropped] == pytest.approx(
        [p["suggested_probability"] for p in suspects]
    )
    assert metrics["n_total"] == _N == len(kept) + len(dropped)
    assert metrics["n_kept"] == len(kept)
    assert metrics["kept_share"] == len(kept) / _N
    assert list(metrics["classes"]) == sorted(_NAMES)
    assert sum(row["n_kept"] for row in metrics["classes"].values()) == len(kept)
    assert all(row["eps"] == metrics["eps"] for row in metrics["classes"].values())
    curve = metrics["curve"]
    assert len(curve["eps"]) == len(curve["share"]) == 200
    assert np.interp(metrics["eps"], curve["eps"], curve["share"]) == pytest.approx(metrics["achieved_share"], abs=0.01)


def test_reasons_name_radius_and_neighbors(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    points = read_parquet(data.points(NETWORK)).to_pylist()
    suspect = max(points, key=lambda point: point["score"])
    assert suspect["reason"].startswith("isolated on the embedding: joins a cluster only at eps ")
    # Neighbors are the next two rows, of the next two classes.
    assert suspect["reason"].endswith(f"1 of 2 nearest neighbors are {_NAMES[(suspect['label'] + 1) % 4]}")
    assert suspect["neighbour_labels"] == [(suspect["label"] + 1) % 4, (suspect["label"] + 2) % 4]


def test_a_class_without_kept_images_is_written(tmp_path: Path) -> None:
    data = _project(tmp_path)
    write_json(data.prepare_metrics, {"class_names": [*_NAMES, "5% zebra"]})
    probabilities = np.full((_N, 5), 0.01, dtype=np.float32)
    probabilities[:, 4] = 0.96
    write_array(data.probabilities(NETWORK), probabilities)
    _run(tmp_path)
    assert read_parquet(data.points(NETWORK))["reason"][0].as_py().endswith("suggested label: 5% zebra (96 %)")


def test_names_of_any_kind_survive(tmp_path: Path) -> None:
    paths = [f"train/{row}" for row in range(_N)]
    paths[:7] = ["a,b.png", 'say "x".png', "line\nbreak.png", " spaced ", "Grüße/日本.png", "'=1+1", "=1+1"]
    data = _project(tmp_path, [("a,b.png", "drop", 'note, with "quotes"\nand lines')], paths=paths)
    _run(tmp_path)
    rows = _csv(data.kept(NETWORK)) + _csv(data.dropped(NETWORK))
    # Spreadsheets must not run a cell: see `protect_cells`.
    assert not any(row["path"].startswith("=") for row in rows)
    listed = {int(row["sample_id"]): row["path"].removeprefix("'") for row in rows}
    assert [listed[row] for row in range(_N)] == paths
    reasons = {row["path"]: row["reason"] for row in _csv(data.dropped(NETWORK))}
    assert reasons["a,b.png"] == 'dropped by hand: note, with "quotes"\nand lines'


def test_an_override_changes_decision_and_reason_but_no_score(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    data = _project(tmp_path / "a")
    _run(tmp_path / "a")
    before = read_parquet(data.points(NETWORK)).to_pylist()
    noise = next(point for point in before if point["is_noise"])
    clean = next(point for point in before if not point["is_noise"])
    decided = [(noise["path"], "keep", "rare pose"), (clean["path"], "drop", "")]
    data = _project(tmp_path / "b", decided)
    _run(tmp_path / "b")
    after = read_parquet(data.points(NETWORK)).to_pylist()
    assert after[noise["sample_id"]] == {**noise, "keep": True, "reason": "kept by hand: rare pose"}
    assert after[clean["sample_id"]] == {**clean, "keep": False, "reason": "dropped by hand"}
    others = [row for row in range(_N) if row not in (noise["sample_id"], clean["sample_id"])]
    assert [after[row] for row in others] == [before[row] for row in others]
    metrics = read_json(data.filter_metrics(NETWORK))
    assert metrics["overrides"] == {"keep": 1, "drop": 1, "relabel": 0}
    assert metrics["achieved_share"] == sum(point["is_noise"] for point in before) / _N


def test_a_relabeled_image_is_kept_and_no_score_changes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    data = _project(tmp_path / "a")
    _run(tmp_path / "a")
    before = read_parquet(data.points(NETWORK)).to_pylist()
    assert all((p["corrected_label"], p["corrected_label_name"]) == (p["label"], p["label_name"]) for p in before)
    decided = [next(p for p in before if p["is_noise"]), next(p for p in before if not p["is_noise"])]
    new = [(point["label"] + 1) % 4 for point in decided]
    lines = [(p["path"], "relabel", "seen", _NAMES[label]) for p, label in zip(decided, new, strict=True)]
    data = _project(tmp_path / "b", lines)
    _run(tmp_path / "b")
    after = read_parquet(data.points(NETWORK)).to_pylist()
    expected = list(before)
    for point, label in zip(decided, new, strict=True):
        changed = {"corrected_label": label, "corrected_label_name": _NAMES[label]}
        reason = f"relabeled as {_NAMES[label]} by hand: seen"
        expected[point["sample_id"]] = {**point, "keep": True, "reason": reason, **changed}
    assert after == expected
    kept = {int(row["sample_id"]): row["label_name"] for row in _csv(data.kept(NETWORK))}
    assert kept == {p["sample_id"]: p["corrected_label_name"] for p in after if p["keep"]}
    assert read_json(data.filter_metrics(NETWORK))["overrides"] == {"keep": 0, "drop": 0, "relabel": 2}


@pytest.mark.parametrize("label", ["dog", "Cat"])
def test_a_label_of_no_class_is_refused(tmp_path: Path, label: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path, [(f"train/{_NAMES[0]}/00000.png", "relabel", "", label)])
    with pytest.raises(SystemExit) as ended:
        _run(tmp_path)
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == str(data.overrides)
    assert not data.kept(NETWORK).exists()


def test_a_class_must_keep_an_image_after_relabels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"train/{_NAMES[0]}/{row:05}.png" for row in range(0, _N, 4)]
    _project(tmp_path, [(path, "relabel", "", _NAMES[1]) for path in paths])
    with pytest.raises(SystemExit) as ended:
        _run(tmp_path)
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "filter.drop_fraction"


def test_an_unreachable_fraction_is_recorded_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path)
    write_embedding(data, np.zeros((_N, 2), dtype=np.float32))
    _run(tmp_path)
    metrics = read_json(data.filter_metrics(NETWORK))
    assert metrics["requested_share"] == 0.05
    assert metrics["achieved_share"] == 0
    assert metrics["share_note"] in capsys.readouterr().err


def test_an_image_is_kept_even_if_classes_may_become_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path, drop_fraction=None, eps=1e-6, allow_empty=True)
    with pytest.raises(SystemExit) as ended:
        _run(tmp_path)
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "filter.eps"
    assert not data.kept(NETWORK).exists()


def test_no_radius_is_tuned_on_an_embedding_without_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path, drop_fraction=None, eps="tuned")
    write_embedding(data, np.random.default_rng(0).normal(size=(_N, 2)).astype(np.float32))
    with pytest.raises(SystemExit) as ended:
        _run(tmp_path)
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "filter.eps"


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    data = _project(tmp_path)
    runs = []
    for _ in range(2):
        _run(tmp_path)
        runs.append({path.name: path.read_bytes() for path in data.points(NETWORK).parent.iterdir()})
    assert runs[0] == runs[1]
    tables = {"points.parquet", "kept.csv", "dropped.csv", "near_duplicates.parquet"}
    assert set(runs[0]) == {*tables, "metrics.json", "provenance.json"}


@pytest.mark.slow
def test_dasks_workers_give_equal_bytes(tmp_path: Path) -> None:
    """Those of a running scheduler, and in the last case those that the stage starts."""
    cases: list[dict[str, Any]] = [
        {"scorer": {"name": "hdbscan"}, "allocation": "per_class"},
        {"scorer": {"name": "knn_distance"}},
        {"scorer": {"name": "centroid"}},
        {"drop_fraction": None, "eps": "knee"},
        {"drop_fraction": None, "eps": "tuned"},
    ]
    with running_scheduler(workers=2, forked=True) as address:
        for number, keys in enumerate(cases):
            runs = []
            for scheduler in ("none", "local" if keys is cases[-1] else address):
                folder = tmp_path / f"{number}-{scheduler.partition(':')[0]}"
                folder.mkdir()
                data = _project(folder, scheduler=scheduler, **keys)
                _run(folder)
                paths = (data.points, data.kept, data.dropped, data.filter_metrics)
                runs.append([path(NETWORK).read_bytes() for path in paths])
            assert runs[0] == runs[1], keys
