"""The report's section on the best batch size of each learning rate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.params import Params
from pipeline.figures.rate_curves import AT_END, rate_chart, rate_figure
from pipeline.figures.study_curves import best_batch_curves, sizes_tried
from pipeline.paths import DataPaths
from pipeline.reporting.comparison_tables import best_batch_table
from pipeline.reporting.figures import figure_files, study_charts
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import params_with, write_artifacts
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import Parsed
from tests.unit.reporting.test_render_page import render as render_page

FIG4 = {
    "arms": ["full"],
    "models": ["resnet18", "resnet34"],
    "batch_sizes": [8, 16, 32, 64],
    "learning_rates": [0.05, 0.1],
    "seeds": [0, 1, 2],
    "paper_figure": "gahlot-2020-fig4",
}


def _peaked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Best at 16 for the lower rate, at 64 for the higher; the last seed's at 32 for both."""
    best = 32 if row["seed"] == 2 else 16 if row["learning_rate"] == 0.05 else 64
    top1 = 0.9 - 0.01 * abs(np.log2(row["batch_size"] / best))
    return {"top1": top1, "balanced_accuracy": top1}


def _written(folder: Path, **study: Any) -> tuple[Params, DataPaths]:
    params, data = params_with(["resnet18"], **FIG4 | study), DataPaths(root=folder)
    write_artifacts(data, params, _peaked)
    return params, data


def test_each_network_and_rate_is_a_row_with_seeds_and_ends(tmp_path: Path) -> None:
    params, data = _written(tmp_path)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    table = best_batch_table(study, 0.95)
    assert table.columns[:4] == ["arm", "model", "learning rate", "best batch size by mean top-1"]
    assert [tuple(row) for row in table.rows[:2]] == [
        ("full", "resnet18", "0.05", "16", "16, 16, 32", "20.16", "7.46 to 54.48", "3", "0"),
        ("full", "resnet18", "0.1", "64, the largest tried", "64, 64, 32", "50.8", "18.8 to 137.3", "3", "2"),
    ]
    assert [row[1] for row in table.rows] == ["resnet18"] * 2 + ["resnet34"] * 2


@pytest.mark.slow
def test_page_document_and_files_have_the_chart_and_the_table(tmp_path: Path) -> None:
    params, data = _written(tmp_path)
    page = render_page(params, data)
    assert 'id="digits-best_batch"' in page
    document = render_document(params, data)[0].replace("\\", "")
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    for text in (Parsed(page).text, document):
        for row in best_batch_table(study, 0.95).rows:
            assert all(cell in text for cell in row)
    inputs = load_report_inputs(params, data)
    summary = build_summary(inputs)
    drawing = (content for name, content in figure_files(inputs, summary) if name == "digits.best_batch.svg")
    assert next(drawing).startswith(b"<?xml")


def test_the_document_shows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.reporting.test_render_document.FIGURES", ["digits.best_batch.svg"])
    assert "](figures/digits.best_batch.svg)" in render_document(*_written(tmp_path))[0]


def test_a_study_of_one_rate_has_no_such_section(tmp_path: Path) -> None:
    params, data = _written(tmp_path, learning_rates=[0.1])
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    assert "best_batch" not in study_charts(study)
    assert study["best_batch"] == []
    assert 'id="digits-best_batch"' not in render_page(params, data)


def test_lines_are_of_networks_and_points_at_an_end_are_crossed(tmp_path: Path) -> None:
    params, data = _written(tmp_path)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    curves = best_batch_curves(study)
    assert [str(curve.key) for curve in curves] == ["full, resnet18", "full, resnet34"]
    drawn = rate_chart(curves, tried=sizes_tried(study)).data
    crossed = next(trace for trace in drawn if trace.name == AT_END)
    assert list(crossed.x) == pytest.approx([0.1, 0.1], rel=0.03)
    assert list(crossed.y) == [curve.sizes[1] for curve in curves]
    (axes,) = rate_figure(curves, tried=sizes_tried(study)).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["8", "16", "32", "64"]
