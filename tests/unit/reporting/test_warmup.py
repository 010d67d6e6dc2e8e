"""Studies that differ only in their warm-up are compared."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import Params, check_params
from pipeline.figures.batch_curves import published_warmups, warmup_curves
from pipeline.paths import DataPaths
from pipeline.replication.published import BEST_WARMUPS, BEST_WARMUPS_SOURCE
from pipeline.reporting.figures import figure_files
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from pipeline.reporting.warmup import slope_sentence
from tests.fixtures.golden import check_golden
from tests.fixtures.report import params_tree, write_artifacts, write_study
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import Parsed
from tests.unit.reporting.test_render_page import render as render_page

# The best warm-up doubles where the batch grows fourfold: a power of 1/2.
BEST = {32: 1.0, 128: 2.0, 512: 4.0}


def _params(*warmups: float, **last: Any) -> Params:
    """One study for each warm-up, in epochs; `last` are keys of the last one that differ."""
    tree = params_tree(["resnet18"], arms=["full"], budget={"epochs": 20.0})
    study = tree["studies"].pop("digits")
    for warmup in warmups:
        recipe = {"schedule": {"name": "cosine", "warmup": {"epochs": warmup}}}
        tree["studies"][f"warmup_{warmup:g}"] = {**study, "recipe": recipe}
    tree["studies"][f"warmup_{warmups[-1]:g}"].update(last)
    return check_params(tree, source="params.yaml")


def _write(folder: Path, params: Params) -> DataPaths:
    data = DataPaths(root=folder)
    write_artifacts(data, params)
    for name in params.studies:
        warmup = float(name.removeprefix("warmup_"))

        def outcome(row: Mapping[str, Any], warmup: float = warmup) -> Mapping[str, Any]:
            top1 = 0.8 if warmup == BEST[row["batch_size"]] else 0.7
            return {"top1": top1, "balanced_accuracy": top1}

        write_study(data, params, name, outcome)
    return data


@pytest.mark.slow
def test_siblings_tell_how_the_best_warm_up_grows(tmp_path: Path) -> None:
    params = _params(0.0, 4.0, 1.0, 2.0)
    data = _write(tmp_path, params)
    (law,) = build_summary(load_report_inputs(params, data))["warmup_laws"]
    assert law["warmups"] == [0.0, 1.0, 2.0, 4.0]
    assert {row["batch_size"]: row["of_means"] for row in law["best"]} == BEST
    assert law["slope"]["mean"] == pytest.approx(0.5)
    said = slope_sentence(law, 0.95)
    assert said in Parsed(render_page(params, data)).text
    assert said in render_document(params, data)[0].replace("\\", "")


@pytest.mark.slow
def test_warmup_law_is_drawn_with_the_published_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = _params(0.0, 4.0, 1.0, 2.0)
    data = _write(tmp_path, params)
    inputs = load_report_inputs(params, data)
    summary = build_summary(inputs)
    (curve,) = warmup_curves(summary["warmup_laws"])
    assert dict(zip(curve.batch_sizes, curve.values, strict=True)) == BEST
    drawn = published_warmups(BEST_WARMUPS, BEST_WARMUPS_SOURCE)
    assert [(value.batch_size, value.value) for value in drawn] == [(7680, 5.0), (30720, 10.0)]
    (chart,) = re.findall(r'<div id="warmups-best"></div>.*', render_page(params, data), re.DOTALL)
    assert "-open" in chart
    assert BEST_WARMUPS_SOURCE in chart
    drawing = (content for name, content in figure_files(inputs, summary) if name == "warmups.svg")
    assert next(drawing).startswith(b"<?xml")
    monkeypatch.setattr("tests.unit.reporting.test_render_document.FIGURES", ["warmups.svg"])
    assert "](figures/warmups.svg)" in render_document(params, data)[0]


def test_intervals_end_at_no_warm_up_and_groups_of_siblings_differ() -> None:
    wide = {"n": 2, "mean": 1.5, "sd": 0.7, "low": -4.9, "high": 7.9}
    law: dict[str, Any] = {
        "studies": ["a", "b"],
        "model": "m",
        "arm": "full",
        "learning_rate": 0.1,
        "weight_decay": 0.0,
    }
    law |= {"best": [{"batch_size": 128, "by_seed": wide}]}
    one, other = warmup_curves([law, {**law, "studies": ["c", "d"]}])
    assert (one.low, one.high) == ([0.0], [7.9])
    assert (one.label, other.label) == ("full, m, of a and its siblings", "full, m, of c and its siblings")


def test_studies_that_differ_in_more_are_no_siblings(tmp_path: Path) -> None:
    params = _params(1.0, 2.0, weight_decays=[0.01])
    assert build_summary(load_report_inputs(params, _write(tmp_path, params)))["warmup_laws"] == []


def test_studies_that_run_the_same_are_siblings(tmp_path: Path) -> None:
    """Keys that change no run may differ."""
    plan = {"question": "Which warm-up is best?", "hypotheses": ["Two epochs."], "rate_selection": "None."}
    params = _params(1.0, 2.0, plan=plan, keep_weights="none", x_axis="steps")
    assert len(build_summary(load_report_inputs(params, _write(tmp_path, params)))["warmup_laws"]) == 1


def test_only_batch_sizes_of_all_siblings_count(tmp_path: Path) -> None:
    params = _params(1.0, 2.0, batch_sizes=[128, 512])
    (law,) = build_summary(load_report_inputs(params, _write(tmp_path, params)))["warmup_laws"]
    assert [row["batch_size"] for row in law["best"]] == [128, 512]


@pytest.mark.parametrize("names", [("warmup_1", "warmup_1e0", "warmup_2"), ("warmup_1e0", "warmup_2", "warmup_1")])
def test_studies_of_one_warm_up_share_batch_sizes_in_any_order(tmp_path: Path, names: tuple[str, ...]) -> None:
    """As where another study takes one of the warm-ups at one batch size more."""
    tree = _params(1.0, 2.0).model_dump(mode="json")
    one = tree["studies"]["warmup_1"]
    tree["studies"]["warmup_1e0"] = {**one, "batch_sizes": [512]}
    one["batch_sizes"] = [32, 128]
    tree["studies"] = {name: tree["studies"][name] for name in names}
    params = check_params(tree, source="params.yaml")
    (law,) = build_summary(load_report_inputs(params, _write(tmp_path, params)))["warmup_laws"]
    assert [row["batch_size"] for row in law["best"]] == [32, 128, 512]
    assert sorted(law["studies"]) == sorted(names)


def test_batch_sizes_are_listed_as_people_do() -> None:
    best = [{"batch_size": size, "seeds_at_end": 1} for size in (128, 512, 1024)]
    law: dict[str, Any] = {"model": "m", "arm": "full", "learning_rate": 0.1, "weight_decay": 0.0, "best": best}
    law["slope"] = law["per_doubling"] = {"n": 1, "mean": 0.5, "sd": None, "low": None, "high": None}
    check_golden("warmup_sizes_at_end.txt", f"{slope_sentence(law, 0.95)}\n")


def test_siblings_of_different_looks_have_the_seeds_of_both(tmp_path: Path) -> None:
    tree = _params(1.0, 2.0).model_dump(mode="json")
    for study in tree["studies"].values():
        study |= {"arms": ["full", "filtered", "random"], "looks": [2, 3]}
    params = check_params(tree, source="params.yaml")
    data = _write(tmp_path, params)
    stopped = {**params.studies, "warmup_2": params.studies["warmup_2"].model_copy(update={"seeds": (0, 1)})}
    write_study(data, params.model_copy(update={"studies": stopped}), "warmup_2")
    laws = build_summary(load_report_inputs(params, data))["warmup_laws"]
    assert {law["arm"]: {row["by_seed"]["n"] for row in law["best"]} for law in laws} == {
        "full": {2}, "filtered": {2}, "random": {2},
    }  # fmt: skip
