"""Phase (b) of benchmarks/label_noise on simulated artifacts: scores, time and memory."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.filter_gallery import CHOICES as SHOWN
from benchmarks.label_noise import choices, scoring
from benchmarks.label_noise.choices import (
    CHOICES,
    COMPARISONS,
    NAMES,
    OTHERS,
    check_names,
    knn_vote,
    select_scorers,
)
from benchmarks.label_noise.detection import detection
from benchmarks.label_noise.own_process import in_own_process
from benchmarks.label_noise.scoring import score_case, suspicion
from benchmarks.label_noise.tables import advantage_rows, heading, scorer_rows, summarize
from pipeline.errors import InputError
from pipeline.filtering.inputs import load_filter_inputs
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS
from tests.fixtures.golden import check_golden
from tests.fixtures.label_noise import write_case
from tests.fixtures.projects import NETWORK


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataPaths, NDArray[np.bool_]]:
    """A case's data, and which of its labels are wrong."""
    folder = tmp_path_factory.mktemp("case")
    wrong = write_case(folder)
    return DataPaths(root=folder / "data"), wrong


# They read no label, or look for images that are like none.
_OTHER_AIMS = ("grid", "random", "cleanlab_outlier", "cleanlab_unsure")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in _OTHER_AIMS])
def test_every_scorer_finds_wrong_labels_where_classes_lie_apart(
    case: tuple[DataPaths, NDArray[np.bool_]], name: str
) -> None:
    data, wrong = case
    values, seconds = suspicion(name, data, NETWORK)
    assert values.shape == wrong.shape
    assert values.dtype == np.float64
    assert detection(values, wrong)["auroc"] > 0.9
    assert 0 < seconds < 60


def test_chance_ranks_all_images_too(case: tuple[DataPaths, NDArray[np.bool_]]) -> None:
    data, wrong = case
    for name in ("grid", "random"):
        assert 0.2 < detection(suspicion(name, data, NETWORK)[0], wrong)["auroc"] < 0.8


def test_scorers_of_the_registry_and_the_gallery_take_part() -> None:
    # `ccs` keeps images of every difficulty, and detects none.
    assert {scorer["name"] for scorer in CHOICES.values()} == set(SCORERS) - {"ccs"}
    assert all(scorer in CHOICES.values() for scorer in SHOWN.values())


def test_the_projects_self_confidence_ranks_as_cleanlabs(case: tuple[DataPaths, NDArray[np.bool_]]) -> None:
    own, theirs = (suspicion(name, case[0], NETWORK)[0] for name in ("self_confidence", "cleanlab_self_confidence"))
    np.testing.assert_allclose(own, theirs, atol=1e-6)


def test_cleanlab_outliers_are_far_and_unsure_images_in_between() -> None:
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(3), 40)
    features = (10 * np.eye(3)[labels] + rng.normal(scale=0.1, size=(120, 3))).astype(np.float32)
    features[7] = -5
    probabilities = np.full((120, 3), 0.01, dtype=np.float32)
    probabilities[np.arange(120), labels] = 0.98
    probabilities[9] = 1 / 3
    inputs = ScorerInputs(labels=labels, probabilities=probabilities)
    assert OTHERS["cleanlab_outlier"](inputs, features).argmax() == 7
    assert OTHERS["cleanlab_unsure"](inputs, features).argmax() == 9


def test_without_reduce_only_scorers_of_predictions_run(tmp_path: Path) -> None:
    write_case(tmp_path)
    data = DataPaths(root=tmp_path / "data")
    with_all = {name: suspicion(name, data, NETWORK)[0] for name in ("label_odds", "aum")}
    data.embedding(NETWORK).unlink()
    for name, values in with_all.items():
        np.testing.assert_array_equal(suspicion(name, data, NETWORK)[0], values)
    only = select_scorers(None, frozen=False, predictions_only=True)
    assert {"label_odds", "aum", "cleanlab_issues"} <= set(only)
    assert not {"dbscan_map", "dbscan_components", "knn_agreement", "margin_and_knn", "grid", "centroid"} & set(only)
    with pytest.raises(InputError) as refused:
        check_names(("label_odds", "grid"), "label_odds", n_neighbors=25, frozen=False, predictions_only=True)
    assert "grid" in str(refused.value)


def test_issues_are_ranked_before_all_others(case: tuple[DataPaths, NDArray[np.bool_]]) -> None:
    from cleanlab.filter import find_label_issues

    evidence = load_filter_inputs(case[0], NETWORK).scorer_inputs
    values, _ = suspicion("cleanlab_issues", case[0], NETWORK)
    ranked = find_label_issues(
        evidence.labels, np.asarray(evidence.probabilities), return_indices_ranked_by="self_confidence", n_jobs=1
    )
    np.testing.assert_array_equal(np.argsort(-values, kind="stable")[: len(ranked)], ranked)
    assert (values > 0).sum() == len(ranked)


def test_the_vote_by_hand() -> None:
    features = np.arange(27, dtype=np.float32)[:, None]
    labels = np.array([1] + [0] * 26)
    # Of the 25 nearest of the last image, the first is none.
    np.testing.assert_allclose(knn_vote(ScorerInputs(labels=labels), features)[[0, 1, 26]], [1, 1 / 25, 0])


@pytest.mark.slow
def test_results_have_measures_costs_and_the_defaults_advantage(tmp_path: Path) -> None:
    folder = tmp_path / "made-up"
    wrong = write_case(folder)
    names = ["random", "self_confidence", "dbscan_map"]
    results = score_case(folder, names, default="self_confidence", resamples=50)
    assert json.loads((folder / "results.json").read_text()) == results
    assert (results["n"], results["n_wrong"], results["test_top1"]) == (240, wrong.sum(), 0.75) == (240, 24, 0.75)
    assert results["epochs"] == 30 * 32 / 192
    assert results["filter"] == {"n_dropped": 2, "precision": 1.0, "recall": 2 / 24}
    assert results["stages"]["reduce"] == {"wall_s": 1.5, "peak_memory_mb": 300.0}
    assert set(results["scorers"]) == set(names)
    measured = {name: found["measures"]["auroc"]["value"] for name, found in results["scorers"].items()}
    # Chance is nobody's competitor.
    assert list(results["advantage"]) == ["dbscan_map"]
    advantage = results["advantage"]["dbscan_map"]["auroc"]
    assert advantage["value"] == pytest.approx(measured["self_confidence"] - measured["dbscan_map"])
    assert advantage["low"] <= advantage["value"] <= advantage["high"]
    assert all(found["peak_memory_mb"] > 10 for found in results["scorers"].values())
    rows = scorer_rows(results)
    assert [row["scorer"] for row in rows] == ["dbscan_map", "self_confidence", "random"]
    assert rows[1]["AUROC"] == f"{measured['self_confidence']:.4f}"
    (less,) = advantage_rows(results)
    assert (less["default"], less["less"]) == ("self_confidence", "dbscan_map")
    assert less["AUROC"].startswith(f"{advantage['value']:+.4f} [")
    check_golden("label_noise_heading.txt", f"{heading(results)}\n")


@pytest.fixture
def scored_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score in this process; each scorer has a process of its own for the sake of its peak memory."""
    monkeypatch.setattr(scoring, "in_own_process", lambda work, *arguments: (work(*arguments), 50.0))


@pytest.mark.usefixtures("scored_here")
def test_the_summary_holds_all_cases_and_means_of_what_ran_in_each(tmp_path: Path) -> None:
    for name, scorers in (("a", ["self_confidence", "margin"]), ("b", ["self_confidence"])):
        write_case(tmp_path / name, n_per_class=30, kind=name)
        score_case(tmp_path / name, scorers, default="self_confidence", resamples=5)
    (row,) = summarize(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [case["case"] for case in summary["cases"]] == ["a", "b"]
    assert list(summary["means"]) == ["self_confidence"] == [row["scorer"]]
    each = [case["scorers"]["self_confidence"]["measures"]["auroc"]["value"] for case in summary["cases"]]
    assert summary["means"]["self_confidence"]["auroc"] == pytest.approx(np.mean(each))
    with pytest.raises(InputError) as refused:
        summarize(tmp_path / "none")
    assert refused.value.key == "--work"


@pytest.mark.usefixtures("scored_here")
def test_clean_labels_are_summarized_by_their_accuracy_alone(tmp_path: Path) -> None:
    for name, scorers in (("clean", []), ("noisy", ["self_confidence"])):
        write_case(tmp_path / name, n_per_class=30, kind=name)
        results = score_case(tmp_path / name, scorers, default="self_confidence", resamples=5)
        assert (results["test_top1"], list(results["scorers"])) == (0.75, scorers)
    (row,) = summarize(tmp_path)
    assert (row["cases"], row["scorer"]) == ("1", "self_confidence")


def test_a_default_that_does_not_run_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        check_names(("knn_vote",), "margin", n_neighbors=25, frozen=False)
    assert refused.value.key == "--default"


def test_too_few_neighbors_for_a_scorer_are_refused_at_once() -> None:
    for name in ("knn_agreement", "confidence_and_knn"):
        with pytest.raises(InputError) as refused:
            check_names(("margin", name), "margin", n_neighbors=24, frozen=False)
        assert name in str(refused.value)
    check_names(("margin", "knn_vote", "knn_distance"), "margin", n_neighbors=1, frozen=False)


def test_without_cleanlab_what_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "find_spec", lambda name: None)
    for name in ("cleanlab_issues", "confident_learning"):
        with pytest.raises(InputError) as refused:
            check_names(("margin", name), "margin", n_neighbors=25, frozen=False)
        assert name in str(refused.value)
    check_names(
        tuple(name for name in COMPARISONS if "cleanlab" not in name), "dbscan_map", n_neighbors=25, frozen=False
    )


def _fill(megabytes: int) -> int:
    return int(np.ones(megabytes * 2**20, dtype=np.uint8)[-1])


@pytest.mark.slow
def test_peak_memory_is_that_of_the_work_and_not_of_who_asked() -> None:
    _fill(700)
    (_, little), (_, much) = (in_own_process(_fill, megabytes) for megabytes in (1, 300))
    assert little < 600
    assert much - little == pytest.approx(299, abs=30)


def test_scorers_of_training_records_are_refused_without_training() -> None:
    for name in ("mean_confidence", "label_odds", "aum", "forgetting"):
        with pytest.raises(InputError) as refused:
            check_names(("margin", name), "margin", n_neighbors=25, frozen=True)
        assert name in str(refused.value)
    check_names(("margin", "self_confidence"), "margin", n_neighbors=25, frozen=True)


def test_all_scorers_are_those_that_find_what_they_need() -> None:
    assert select_scorers(None, frozen=False) == NAMES
    assert set(NAMES) - set(select_scorers(None, frozen=True)) == {
        "aum", "forgetting", "label_odds", "mean_confidence",
    }  # fmt: skip
    assert select_scorers(["margin", "label_odds"], frozen=True) == ("margin", "label_odds")
