"""The report of a study with the arm `relabeled`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from pipeline.stats.tables import accuracy_table
from tests.fixtures.report import params_with, write_artifacts
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import Parsed
from tests.unit.reporting.test_render_page import render as render_page

_TOP1 = {"full": 0.8, "filtered": 0.825, "random": 0.775, "relabeled": 0.85}


def _outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
    top1 = _TOP1[row["arm"]] + 0.025 * (row["seed"] % 2)
    return {"top1": top1, "balanced_accuracy": top1, "n_relabeled": 1234 if row["arm"] == "relabeled" else 0}


def test_it_has_the_number_of_changed_labels_and_their_verdict(tmp_path: Path) -> None:
    params = params_with(["resnet18"], arms=list(_TOP1), seeds=[0, 1, 2], relabel_above=0.75)
    data = DataPaths(root=tmp_path)
    write_artifacts(data, params, _outcome)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    table = accuracy_table(study, 0.95)
    changed = table.columns.index("labels changed")
    assert {row[table.columns.index("arm")]: row[changed] for row in table.rows} == {
        "full": "0", "filtered": "0", "random": "0", "relabeled": "1,234",
    }  # fmt: skip
    assert round(study["relabeled"]["estimate"]["mean"], 6) == 5
    assert [row["control"] for row in study["pooled"]] == ["random", "full", "relabeled"]
    sentence = study["relabeled"]["sentence"]
    assert sentence.startswith("relabeled against full at equal steps: ")
    for text in (Parsed(render_page(params, data)).text, render_document(params, data)[0].replace("\\", "")):
        assert sentence in text
        assert "the suggested label if its probability is above 0.75" in text


def test_without_the_arm_nothing_is_said_of_changed_labels(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    assert study["relabeled"] is None
    assert "labels changed" not in accuracy_table(study, 0.95).columns
