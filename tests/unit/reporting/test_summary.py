import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts import provenance
from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.errors import InputError
from pipeline.figures.study_curves import accuracy_curves, difference_curves, learning_panels
from pipeline.paths import DataPaths
from pipeline.reporting.comparison_tables import class_difference_table, pooled_table
from pipeline.reporting.figures import study_charts
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import Summary, build_summary
from pipeline.reporting.tables import agreement_table
from pipeline.stats.tables import accuracy_table, critical_batch_table, difference_table, excluded_table
from pipeline.training import noise_scale
from tests.fixtures.records import record
from tests.fixtures.report import CLASS_NAMES, N_TRAIN, default_outcome, params_with, write_artifacts, write_network

Build = Callable[..., Summary]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def from_study(outcome: Any = default_outcome, **study: Any) -> Summary:
        params, data = params_with(**study), DataPaths(root=tmp_path)
        write_artifacts(data, params, outcome)
        summary = build_summary(load_report_inputs(params, data))
        json.dumps(summary, allow_nan=False)
        return summary

    return from_study


def test_shares_are_counted_over_images(build: Build) -> None:
    network = build()["networks"][1]
    assert (network["name"], network["n"], network["n_kept"]) == ("resnet34", N_TRAIN, N_TRAIN - 6)
    assert network["kept_share"] == pytest.approx(74 / 80)
    assert network["paper_kept_share"] == 0.9345
    assert [row["n_noise"] for row in network["classes"]] == [1, 1, 2, 2]
    assert [row["class"] for row in network["classes"]] == list(CLASS_NAMES)


def test_decisions_by_hand_are_counted_and_kept_apart_from_noise(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    points = read_parquet(data.points("resnet18"))
    keep = points["keep"].to_numpy(zero_copy_only=False).copy()
    keep[0], keep[-1] = False, True
    write_parquet(data.points("resnet18"), points.set_column(points.column_names.index("keep"), "keep", [keep]))
    (network,) = build_summary(load_report_inputs(params, data))["networks"]
    assert (network["n_by_hand"], network["n_kept"], network["noise_share"]) == (2, 74, pytest.approx(6 / 80))


def test_accuracies_and_differences_follow_from_the_runs(build: Build) -> None:
    (study,) = build(lambda row: {"top1": 0.9 + 0.01 * (row["arm"] == "filtered") * (1 + row["seed"])})["studies"]
    assert [row["top1"]["mean"] for row in study["accuracy"][:3]] == pytest.approx([0.9, 0.92, 0.9])
    assert [row["estimate"]["mean"] for row in study["differences"]] == pytest.approx([2.0] * 6)
    assert [(row["control"], row["estimate"]["n"], row["settings"]) for row in study["pooled"]] == [
        ("random", 3, 3),
        ("full", 3, 3),
    ]
    assert study["pooled"][0]["estimate"]["sd"] == pytest.approx(1.0)


def test_single_images_give_classes_and_a_second_interval(build: Build) -> None:
    (study,) = build()["studies"]
    primary, table = study["pooled"][0], pooled_table(study)
    assert primary["primary"]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["replicates"], row["seeds"], row["settings"]) == ("1", "3", "3")
    assert row["95 % bootstrap interval, also over test images (points)"].count(" to ") == 1
    assert row["90 % interval of the equivalence test (points)"].count(" to ") == 1
    classes = class_difference_table(primary, 0.95).rows
    assert [cells[0] for cells in classes] == [*CLASS_NAMES, "worst class of each run"]
    assert primary["images"]["bootstrap"]["low"] < primary["images"]["bootstrap"]["high"]


def test_results_by_image_of_other_runs_are_refused(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    correct = np.load(data.correct("digits"))
    for wrong in (correct[:, 1:], ~correct, correct[1:]):
        write_array(data.correct("digits"), wrong)
        with pytest.raises(InputError) as refused:
            load_report_inputs(params, data)
        assert refused.value.key == str(data.correct("digits"))


def test_learning_curves_are_means_over_seeds(build: Build) -> None:
    (study,) = build()["studies"]
    curve = study["learning"]["train_loss"][0]
    assert (curve["batch_size"], curve["n"], curve["examples"]) == (32, 3, [32, 480, 1440])
    assert curve["values"] == pytest.approx([2.3 + 0.1, 2.3 / 15 + 0.1, 2.3 / 45 + 0.1])


def test_dvc_metrics_show_the_headline_alone(build: Build) -> None:
    summary = build()
    shown = {key: value for key, value in summary.items() if not isinstance(value, list)}
    assert sorted(shown) == ["difference_points", "extractor_top1", "kept_share", "top1", "verdict"]
    assert shown["top1"]["digits"]["filtered, batch 32"] == pytest.approx(0.9, abs=0.01)
    assert shown["verdict"] == {
        "digits": dict.fromkeys(["filtered_against_full", "filtered_against_random"], "undecided")
    }
    assert sorted(shown["difference_points"]["digits"]) == ["filtered_minus_full", "filtered_minus_random"]


def some_fail(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row["batch_size"] == 512:
        return {"status": "skipped", "reason": "batch 512 is larger than the 74 images of arm filtered", "steps": None}
    if row["batch_size"] == 128 and row["arm"] == "full" and row["seed"] == 1:
        return {"status": "diverged", "reason": "the training loss stopped being finite"}
    return default_outcome(row)


def test_cells_without_result_are_listed_and_in_no_mean(build: Build) -> None:
    (study,) = build(some_fail)["studies"]
    assert (study["n_cells"], study["n_skipped"], study["n_diverged"]) == (27, 9, 1)
    assert [(row["arm"], row["status"], row["seeds"]) for row in study["excluded"]] == [
        ("full", "diverged", [1]),
        ("full", "skipped", [0, 1, 2]),
        ("filtered", "skipped", [0, 1, 2]),
        ("random", "skipped", [0, 1, 2]),
    ]
    assert excluded_table(study).rows[0] == ("128", "full", "diverged", "1", "the training loss stopped being finite")
    assert [(row["settings"], row["left_out"]) for row in study["pooled"]] == [(2, 1), (1, 2)]
    assert {curve.key.arm: list(curve.batch_sizes) for curve in accuracy_curves(study)} == {
        "full": [32, 128],
        "filtered": [32, 128],
        "random": [32, 128],
    }
    row = next(row for row in accuracy_table(study, 0.95).rows if row[:2] == ("128", "full"))
    assert row[5] == "2 of 3"


def _noise(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"critical_batch": value, "critical_batch_low": low, "critical_batch_high": high}


_NOISE = {
    ("full", 0): _noise(900.4, 700.0, 1200.0),
    ("full", 1): _noise(1000.0, 640.6, 1100.0),
    ("full", 2): _noise(None, 5000.0, None),  # hidden in noise: larger than all
    ("filtered", 0): _noise(12_345.0, 9_000.0, 20_000.0),
    ("filtered", 1): _noise(None, None, None),  # unknown
    ("filtered", 2): _noise(10_000.0, 8_000.0, 15_000.0),
    ("random", 0): _noise(None, 3000.0, None),
}


def _noisy(row: Mapping[str, Any]) -> Mapping[str, Any]:
    measured = _NOISE.get((row["arm"], row["seed"]), {}) if row["batch_size"] == 128 else {}
    return {**default_outcome(row), **measured}


def test_critical_batch_sizes_are_those_of_the_runs(build: Build) -> None:
    (study,) = build(_noisy)["studies"]
    assert [(row["setting"]["batch_size"], row["arm"]) for row in study["critical_batch"]] == [
        (128, "full"),
        (128, "filtered"),
        (128, "random"),
    ]
    table = critical_batch_table(study)
    assert list(table.columns) == [
        "batch size",
        "arm",
        "critical batch size, median (images)",
        "95 % intervals of the runs (images)",
        "n (seeds)",
    ]
    assert table.rows == [
        ("128", "full", "1,000", "more than 641", "3"),
        ("128", "filtered", "11,172", "8,000 to 20,000", "2 of 3"),
        ("128", "random", "–", "more than 3,000", "1 of 3"),
    ]
    assert f"{100 * noise_scale._CONFIDENCE:g} %" in table.columns[3]


def test_only_finished_runs_have_a_critical_batch_size(build: Build) -> None:
    (study,) = build(lambda row: {**_noisy(row), "status": "diverged", "top1": None})["studies"]
    assert study["critical_batch"] == []
    assert build()["studies"][0]["critical_batch"] == []


@pytest.mark.parametrize(
    "study",
    [
        {"seeds": [7]},
        {"arms": ["full"]},
        {"arms": ["full", "random"]},
        {"arms": ["filtered", "random_uniform"]},
        {"batch_sizes": [64]},
        {"learning_rates": [0.01, 0.1], "weight_decays": [0.0, 0.01], "models": ["resnet18", "resnet50"]},
    ],
    ids=lambda study: next(iter(study)),
)
@pytest.mark.parametrize("skipped", [False, True])
def test_every_shape_of_study_gives_tables_and_charts(build: Build, study: dict[str, Any], skipped: bool) -> None:
    outcome = (lambda row: {"status": "skipped", "reason": "too large", "steps": None}) if skipped else default_outcome
    (found,) = build(outcome, **study)["studies"]
    for table in (accuracy_table(found, 0.95), difference_table(found, 0.95), excluded_table(found)):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert table.text & {*table.columns}
    drawn = {"overview", "accuracy", "learning"}
    drawn |= {"differences"} if found["pooled"] else set()
    drawn |= {"best_batch"} if "learning_rates" in study else set()
    assert set(study_charts(found)) == (set() if skipped else drawn)


def test_one_seed_has_no_interval(build: Build) -> None:
    (study,) = build(seeds=[7])["studies"]
    assert {row[4] for row in accuracy_table(study, 0.95).rows} == {"n = 1, no interval"}
    assert {row[5] for row in difference_table(study, 0.95).rows} == {"n = 1, no interval"}
    assert study["pooled"][0]["verdict"]["p"] is None
    assert {low for curve in difference_curves(study) for low in curve.low} == {None}


def test_all_combinations_are_rows_and_lines_none_is_chosen(build: Build) -> None:
    (study,) = build(learning_rates=[0.01, 0.1], weight_decays=[0.0, 0.01], models=["resnet18", "resnet50"])["studies"]
    assert study["varying"] == ["model", "learning_rate", "weight_decay"]
    table = accuracy_table(study, 0.95)
    assert list(table.columns[:5]) == ["model", "learning rate", "weight decay", "batch size", "arm"]
    assert len(table.rows) == 2 * 2 * 2 * 3 * 3
    assert len({row[:5] for row in table.rows}) == len(table.rows)
    assert len(accuracy_curves(study)) == 2 * 2 * 2 * 3
    panels = learning_panels(study, "train_loss")
    assert list(panels) == ["batch size 32", "batch size 128", "batch size 512"]
    assert {len(curves) for curves in panels.values()} == {24}


def test_versions_that_differ_between_stages_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    with monkeypatch.context() as patched:
        patched.setattr(provenance, "_versions", lambda: {"numpy": "1.9.0"})
        record(data, "extract", "resnet18")
    rows = build_summary(load_report_inputs(params, data))["versions"]
    assert {row["version"]: row["stages"] for row in rows if row["package"] == "numpy"} == {
        np.__version__: ["prepare", "finetune@resnet18", "reduce@resnet18", "filter@resnet18", "train@digits"],
        "1.9.0": ["extract@resnet18"],
    }


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    write_parquet(data.points("resnet18"), read_parquet(data.points("resnet18")).slice(1))
    with pytest.raises(InputError) as refused:
        load_report_inputs(params, data)
    assert "79" in str(refused.value)
    assert refused.value.key == str(data.points("resnet18"))
    write_network(data, "resnet18")
    data.finetune_metrics("resnet18").unlink()
    with pytest.raises(InputError) as refused:
        load_report_inputs(params, data)
    assert refused.value.key == str(data.finetune_metrics("resnet18"))


def test_filters_are_compared_with_each_other_and_with_chance(tmp_path: Path) -> None:
    params, data = params_with(), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    metrics = read_json(data.filter_metrics("resnet34"))
    write_json(data.filter_metrics("resnet34"), {**metrics, "stability_over_maps": [0.25]})
    points = read_parquet(data.points("resnet34"))
    column = points.column_names.index("is_noise")
    # Of the last six images of one filter, the other drops three, and three more.
    noise = np.isin(np.arange(N_TRAIN), [0, 1, 2, N_TRAIN - 3, N_TRAIN - 2, N_TRAIN - 1])
    write_parquet(data.points("resnet34"), points.set_column(column, "is_noise", [noise]))
    between, over_embeddings = build_summary(load_report_inputs(params, data))["agreements"]
    assert (between["first"], between["second"], between["jaccard"]) == ("resnet18", "resnet34", 3 / 9)
    assert between["chance"] == pytest.approx(0.075**2 / (0.15 - 0.075**2))
    assert over_embeddings["second"].startswith("resnet34, embedding 1 ")
    assert over_embeddings["jaccard"] == 0.25
    assert agreement_table([between]).rows[0] == ("resnet18", "resnet34", "0.3333", "0.03896")
