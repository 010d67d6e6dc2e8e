"""Phase (b) of benchmarks/label_noise on made-up arrays: what scorers say, and what it cost."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_up import class_blobs
from numpy.typing import NDArray

from benchmarks.label_noise.own_process import in_own_process
from benchmarks.label_noise.scoring import (
    SCORERS,
    Arrays,
    check_scorers,
    cleanlab_issues,
    cleanlab_self_confidence,
    knn_vote,
    score_case,
    self_confidence,
    table_rows,
)
from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.errors import InputError
from pipeline.selection.detection import detection
from pipeline.selection.noise import plant

MIN_SAMPLES = 5


def _arrays(n_per_class: int = 100) -> tuple[Arrays, NDArray[np.int64]]:
    """Four classes far apart, a tenth of the labels wrong, probabilities that follow the features; and the truth."""
    rng = np.random.default_rng(0)
    features, truth = class_blobs(rng, 4, n_per_class, 8)
    centres = np.stack([features[truth == label].mean(axis=0) for label in range(4)])
    odds = np.exp(-np.linalg.norm(features[:, None] - centres, axis=2) / 3)
    arrays = Arrays(
        labels=plant(truth, "symmetric", 0.1, rng=rng),
        features=features,
        probabilities=(odds / odds.sum(axis=1, keepdims=True)).astype(np.float32),
        coordinates=features[:, :2],
        min_samples=MIN_SAMPLES,
    )
    return arrays, truth


def _write_case(folder: Path) -> Path:
    arrays, truth = _arrays()
    for name in ("labels", "features", "probabilities"):
        write_array(folder / f"{name}.npy", getattr(arrays, name))
    write_array(folder / "map.npy", arrays.coordinates)
    write_array(folder / "truth.npy", truth)
    n_wrong = int((arrays.labels != truth).sum())
    write_json(folder / "finished.json", {"n_wrong": n_wrong, "map": {"seconds": 1000.0, "peak_memory_mb": 1e6}})
    return folder


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_finds_wrong_labels_where_classes_lie_apart(name: str) -> None:
    arrays, truth = _arrays()
    values = SCORERS[name](arrays)
    assert values.shape == truth.shape
    assert values.dtype == np.float64
    assert detection(values, arrays.labels != truth)["auroc"] > 0.95


def test_self_confidence_is_that_of_cleanlab() -> None:
    arrays, _ = _arrays()
    np.testing.assert_allclose(self_confidence(arrays), cleanlab_self_confidence(arrays), atol=1e-6)


def test_issues_are_ranked_before_all_others() -> None:
    from cleanlab.filter import find_label_issues

    arrays, _ = _arrays()
    values = cleanlab_issues(arrays)
    ranked = find_label_issues(arrays.labels, arrays.probabilities, return_indices_ranked_by="self_confidence")
    np.testing.assert_array_equal(np.argsort(-values, kind="stable")[: len(ranked)], ranked)
    assert (values > 0).sum() == len(ranked)


def test_the_vote_by_hand() -> None:
    features = np.arange(27, dtype=np.float32)[:, None]
    labels = np.array([1] + [0] * 26)
    one = Arrays(labels=labels, features=features, probabilities=features, coordinates=features, min_samples=1)
    # Of the 25 nearest of the last image, the first is none.
    np.testing.assert_allclose(knn_vote(one)[[0, 1, 26]], [1, 1 / 25, 0])


def test_results_hold_measures_differences_and_costs_of_every_scorer(tmp_path: Path) -> None:
    names = ["self_confidence", "dbscan"]
    results = score_case(
        _write_case(tmp_path / "made-up"), names, reference="self_confidence", min_samples=MIN_SAMPLES, resamples=20
    )
    assert json.loads((tmp_path / "made-up/results.json").read_text()) == results
    assert list(results["scorers"]) == names
    own, other = results["scorers"].values()
    assert own["less_reference"] == {}
    auroc = other["measures"]["auroc"]["value"] - own["measures"]["auroc"]["value"]
    assert other["less_reference"]["auroc"]["value"] == pytest.approx(auroc)
    assert own["seconds"] < 100
    assert own["peak_memory_mb"] < 1e5
    # Whoever looks at the map pays for it.
    assert other["seconds"] > 1000
    assert other["peak_memory_mb"] == 1e6
    rows = table_rows(results)
    assert [row["scorer"] for row in rows] == names
    assert rows[0]["AUROC"] == f"{own['measures']['auroc']['value']:.4f}"


def test_a_reference_that_does_not_run_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--reference: dbscan is not among --scorers knn_vote; add it"):
        check_scorers(["knn_vote"], "dbscan")


def test_without_cleanlab_its_scorers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.label_noise.scoring.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^--scorers: cleanlab is not installed; pip install"):
        check_scorers(["knn_vote", "cleanlab_issues"], "knn_vote")
    check_scorers(["knn_vote"], "knn_vote")


def _fill(megabytes: int) -> int:
    return int(np.ones(megabytes * 2**20, dtype=np.uint8)[-1])


def test_peak_memory_is_that_of_the_work_and_not_of_who_asked() -> None:
    _fill(700)
    (_, little), (_, much) = (in_own_process(_fill, megabytes) for megabytes in (1, 300))
    assert little.peak_memory_mb < 600
    assert much.peak_memory_mb - little.peak_memory_mb == pytest.approx(299, abs=30)
