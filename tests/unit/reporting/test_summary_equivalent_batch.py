"""The report of a study with `equivalent_batch`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.figures.study_curves import accuracy_curves
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import params_with, write_artifacts
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import Parsed
from tests.unit.reporting.test_render_page import render as render_page


def _outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
    top1 = (0.825 if row["arm"] == "filtered" and row["batch_size"] == 32 else 0.8) + 0.025 * (row["seed"] % 2)
    return {"top1": top1, "balanced_accuracy": top1, "n_relabeled": 0}


def test_it_has_the_verdict_and_the_grid_is_as_without_it(tmp_path: Path) -> None:
    params = params_with(["resnet18"], batch_sizes=[32], seeds=[0, 1, 2], equivalent_batch={"gradient_scale": 0.5})
    data = DataPaths(root=tmp_path)
    write_artifacts(data, params, _outcome)
    inputs = load_report_inputs(params, data)
    (study,) = build_summary(inputs)["studies"]
    (entry,) = inputs.studies
    assert {record.batch_size for record in entry.records} == {32}
    assert study["equivalent_batch"]["estimate"]["mean"] == 0
    assert {size for curve in accuracy_curves(study) for size in curve.batch_sizes} == {32}
    (primary,) = [row for row in study["pooled"] if row["control"] == "full"]
    assert (round(primary["estimate"]["mean"], 6), primary["left_out"]) == (2.5, 0)
    sentence = study["equivalent_batch"]["sentence"]
    assert sentence.startswith("filtered against full at a smaller batch (8 for 32) and equal steps: ")
    for text in (Parsed(render_page(params, data)).text, render_document(params, data)[0].replace("\\", "")):
        assert sentence in text
        assert "states s = 0.5 " in text
