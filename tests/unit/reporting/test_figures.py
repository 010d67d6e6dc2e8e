import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.figures.palette import ARMS
from pipeline.paths import DataPaths
from pipeline.reporting.figures import dropped_images, figure_files, filter_charts, most_suspect, study_charts
from pipeline.reporting.inputs import ReportInputs, load_report_inputs
from pipeline.reporting.overview import MAX_CARDS
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import params_with, write_artifacts


@pytest.fixture
def inputs(tmp_path: Path) -> ReportInputs:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    return load_report_inputs(params, data)


def test_the_most_suspect_dropped_images_come_first(inputs: ReportInputs) -> None:
    (network,) = inputs.networks
    assert most_suspect(network, 4).tolist() == [79, 78, 77, 76]
    assert len(most_suspect(network, 60)) == 6
    assert not network.keep[most_suspect(network, 60)].any()


def test_the_gallery_shows_the_pixels_of_these_images(inputs: ReportInputs) -> None:
    (network,) = inputs.networks
    shown = dropped_images(network, inputs)
    assert [image.path for image in shown] == [network.path[row] for row in range(79, 73, -1)]
    assert [image.score for image in shown] == sorted((image.score for image in shown), reverse=True)
    for row, image in zip(range(79, 73, -1), shown, strict=True):
        kind, _, content = image.source.partition(",")
        assert kind == "data:image/png;base64"
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        np.testing.assert_array_equal(pixels, inputs.data.train.images[row])


@pytest.mark.parametrize("n_studies", [1, 2, MAX_CARDS, MAX_CARDS + 1])
def test_cards_have_a_chart_and_rows_a_line_of_two_arms(inputs: ReportInputs, n_studies: int) -> None:
    (study,) = build_summary(inputs)["studies"]
    charts = study_charts(study, n_studies=n_studies)
    assert "accuracy" in charts
    assert ("Plotly" in charts["overview"]) == (n_studies <= MAX_CARDS)
    if n_studies > MAX_CARDS:
        colors = re.findall(r'stroke="(#[0-9a-f]{6})"', charts["overview"])
        assert set(colors) == {ARMS["filtered"], ARMS["random"]}


def test_every_figure_has_a_file(inputs: ReportInputs) -> None:
    summary = build_summary(inputs)
    files = dict(figure_files(inputs, summary))
    (study,) = summary["studies"]
    charts = [f"{study['name']}.{chart}.svg" for chart in study_charts(study).keys() - {"overview"}]
    assert {*charts, *(f"filter.{chart}.svg" for chart in filter_charts(summary))} <= files.keys()
    starts = {".svg": b"<?xml", ".png": b"\x89PNG"}
    assert len(files) == 8
    assert all(content.startswith(starts[name[-4:]]) for name, content in files.items())
