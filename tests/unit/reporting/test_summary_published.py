"""Published values, and the measurements at the same settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline.config.extractors import WITHOUT_IMAGENET_WEIGHTS, Architecture
from pipeline.config.study import PaperFigure
from pipeline.figures.study_curves import accuracy_curves, published_values
from pipeline.paths import DataPaths
from pipeline.replication.published import KEPT_SHARES, NETWORK_FIGURES, PUBLISHED, THROUGHPUT
from pipeline.reporting.comparison_tables import published_table
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import Summary, build_summary
from tests.fixtures.report import default_outcome, params_with, write_artifacts
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import Parsed
from tests.unit.reporting.test_render_page import render as render_page

FIG6 = {
    "paper_figure": "gahlot-2020-fig6",
    "batch_sizes": [32, 256],
    "weight_decays": [0.005, 0.012],
    "seeds": [0, 1, 2],
}


def _published(folder: Path, **study: Any) -> Summary:
    params, data = params_with(["resnet18"], **study), DataPaths(root=folder)
    write_artifacts(data, params, _flat)
    return dict(build_summary(load_report_inputs(params, data))["studies"][0])


def _flat(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Top-1 of 0.70, 0.80 and 0.90 by seed, and 0.01 more at a weight decay of 0.005."""
    top1 = 0.7 + 0.1 * row["seed"] + (0.01 if row["weight_decay"] == 0.005 else 0)
    return {"top1": top1, "balanced_accuracy": top1}


def test_every_name_of_the_configuration_has_its_figure() -> None:
    assert set(PUBLISHED) == set(get_args(PaperFigure))
    assert set(KEPT_SHARES) == set(get_args(Architecture)) - WITHOUT_IMAGENET_WEIGHTS


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_figure_states_each_setting_once_and_says_what_is_open(name: PaperFigure) -> None:
    published = PUBLISHED[name]
    settings = [(point.arm, point.model, point.batch_size, point.weight_decays) for point in published.points]
    assert len(set(settings)) == len(settings)
    assert all(0.5 < point.top1 < 1 for point in published.points)
    assert len(set(published.left_open)) == len(published.left_open) > 0
    assert published.statement.endswith(".")


def test_a_point_belongs_to_the_variant_with_its_weight_decay(tmp_path: Path) -> None:
    study = _published(tmp_path, **FIG6)
    points = {(point["arm"], point["batch_size"]): point for point in study["published"]["points"]}
    (filtered,) = points["filtered", 256]["measured"]
    assert filtered["label"] == "filtered, batch 256, wd 0.005"
    assert (filtered["top1"]["mean"], filtered["top1"]["n"]) == (pytest.approx(0.81), 3)
    assert filtered["difference"] == pytest.approx(81.0 - 83.2)
    (full,) = points["full", 256]["measured"]
    assert full["label"] == "full, batch 256, wd 0.012"
    assert full["difference"] == pytest.approx(80.0 - 82.6)


def test_what_a_study_lacks_of_a_point_is_said(tmp_path: Path) -> None:
    study = _published(tmp_path, **FIG6, arms=["filtered", "random"])
    missing = {(p["arm"], p["batch_size"]): p["missing"] for p in study["published"]["points"]}
    assert missing["filtered", 256] is None
    for key, lacking in {("filtered", 64): "64", ("full", 256): "full", ("random", 256): "0.0135"}.items():
        assert lacking in missing[key]
    table = published_table(study["published"], 0.95)
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    assert [row["measured as"] for row in rows].count("filtered, batch 256, wd 0.005") == 1
    assert {row["measured, mean (%)"] for row in rows if row["measured as"].endswith("study")} == {"–"}


def test_a_point_of_two_weight_decays_matches_both(tmp_path: Path) -> None:
    study = _published(
        tmp_path, paper_figure="gahlot-2020-fig7", batch_sizes=[6272], weight_decays=[0.01, 0.005, 0.02], seeds=[0, 1]
    )
    rows = published_table(study["published"], 0.95).rows
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("filtered", "0.005 or 0.01", "filtered, batch 6272, wd 0.005"),
        ("filtered", "0.005 or 0.01", "filtered, batch 6272, wd 0.01"),
        ("full", "0.005 or 0.01", "full, batch 6272, wd 0.005"),
        ("full", "0.005 or 0.01", "full, batch 6272, wd 0.01"),
    ]
    assert [row[5:9] for row in rows[:2]] == [
        ("76.00", "12.14 to 139.86", "2", "−1.50"),
        ("75.00", "11.14 to 138.86", "2", "−2.50"),
    ]


def test_a_point_is_drawn_in_the_look_of_its_line(tmp_path: Path) -> None:
    study = _published(tmp_path, **FIG6)
    styles = {str(curve.key): curve.style for curve in accuracy_curves(study)}
    drawn = published_values(study)
    assert len(drawn) == 7
    assert {value.style for value in drawn} <= set(styles.values())
    best = next(value for value in drawn if value.value == pytest.approx(83.2))
    assert (best.style, best.label, best.batch_size) == (
        styles["filtered, wd 0.005"], "published: filtered, wd 0.005", 256
    )  # fmt: skip
    assert published_values(study | {"published": None}) == []


@pytest.mark.parametrize("render", [render_page, lambda params, data: render_document(params, data)[0]])
def test_page_and_document_say_what_is_published_and_what_is_open(render: Any, tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], **FIG6), DataPaths(root=tmp_path)
    write_artifacts(data, params, default_outcome)
    text = _text(render(params, data))
    published = PUBLISHED["gahlot-2020-fig6"]
    assert all(said in text for said in (published.source, published.statement, *published.left_open))
    params = params_with(["resnet18"], paper_figure="gahlot-2020-fig5")
    write_artifacts(data, params, default_outcome)
    assert PUBLISHED["gahlot-2020-fig5"].points == ()
    assert PUBLISHED["gahlot-2020-fig5"].source in _text(render(params, data))


@pytest.mark.slow
@pytest.mark.parametrize("render", [render_page, lambda params, data: render_document(params, data)[0]])
def test_other_figures_are_named_where_a_study_is_about_the_paper(render: Any, tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    without, about = (params_with(["resnet18"], paper_figure=figure) for figure in (None, "gahlot-2020-fig5"))
    write_artifacts(data, about, default_outcome)
    text, other = _text(render(about, data)), _text(render(without, data))
    for published in (*NETWORK_FIGURES.values(), THROUGHPUT):
        assert not published.points
        assert text.index(published.source) < text.index("; ".join(published.left_open))
        assert published.source not in other
    assert [published.source[-6:] for published in (*NETWORK_FIGURES.values(), THROUGHPUT)] == [
        "fig. 2", "fig. 3", "fig. 8"
    ]  # fmt: skip


def _text(shown: str) -> str:
    """Of a page or a document, in one line."""
    page = shown.startswith("<!DOCTYPE")
    text = Parsed(shown).text if page else shown.replace("\\", "")
    return " ".join(text.split())
