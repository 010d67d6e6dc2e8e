"""Studies that differ in their warm-up alone are read together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up_report import params_tree, write_artifacts, write_study
from test_document import render as render_document
from test_page import Parsed
from test_page import render as render_page

from pipeline.config.params import Params, check_params
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_inputs
from pipeline.reporting.summary import build_summary

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


def test_siblings_tell_how_the_best_warm_up_grows(tmp_path: Path) -> None:
    params = _params(0.0, 4.0, 1.0, 2.0)
    data = _write(tmp_path, params)
    (law,) = build_summary(load_inputs(params, data))["warmup_laws"]
    assert law["warmups"] == [0.0, 1.0, 2.0, 4.0]
    assert {row["batch_size"]: row["of_means"] for row in law["best"]} == BEST
    assert law["slope"]["mean"] == pytest.approx(0.5)
    said = "best warm-up in epochs ~ batch size to the power of 0.50 (all 3 seeds agree on the warm-ups tried, hence no"
    assert said in Parsed(render_page(params, data)).text
    assert said in render_document(params, data)[0].replace("\\", "")
    assert "At batch size 512 the best of some seed is the longest warm-up tried; a longer one may be better." in (
        Parsed(render_page(params, data)).text
    )


def test_studies_that_differ_in_more_are_no_siblings(tmp_path: Path) -> None:
    params = _params(1.0, 2.0, weight_decays=[0.01])
    assert build_summary(load_inputs(params, _write(tmp_path, params)))["warmup_laws"] == []


def test_only_batch_sizes_of_all_siblings_count(tmp_path: Path) -> None:
    params = _params(1.0, 2.0, batch_sizes=[128, 512])
    (law,) = build_summary(load_inputs(params, _write(tmp_path, params)))["warmup_laws"]
    assert [row["batch_size"] for row in law["best"]] == [128, 512]


@pytest.mark.parametrize("names", [("warmup_1", "warmup_1e0", "warmup_2"), ("warmup_1e0", "warmup_2", "warmup_1")])
def test_studies_of_one_warm_up_have_their_batch_sizes_together_in_any_order(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """As where another study takes one of the warm-ups at one batch size more."""
    tree = _params(1.0, 2.0).model_dump(mode="json")
    one = tree["studies"]["warmup_1"]
    tree["studies"]["warmup_1e0"] = {**one, "batch_sizes": [512]}
    one["batch_sizes"] = [32, 128]
    tree["studies"] = {name: tree["studies"][name] for name in names}
    params = check_params(tree, source="params.yaml")
    (law,) = build_summary(load_inputs(params, _write(tmp_path, params)))["warmup_laws"]
    assert [row["batch_size"] for row in law["best"]] == [32, 128, 512]
    assert sorted(law["studies"]) == sorted(names)
