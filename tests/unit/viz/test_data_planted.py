"""Notes of the visualizer and its exports on planted labels."""

import csv
import gzip
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.planted import say_planted
from tests.fixtures.points import NETWORK, write_points
from tests.fixtures.projects import ROOT
from tests.fixtures.view import text_of
from viz import components
from viz.callbacks.embedding import MapControls, draw
from viz.callbacks.gallery import browse
from viz.commands import figure
from viz.data import Points, Source
from viz.export.page import make_content
from viz.filter_settings import FilterSettings, preview_filter
from viz.gallery import listed_rows
from viz.state import COLUMNS, selection_csv

_N = 40
_NAMES = ("ash", "birch", "cedar", "dogwood")
_TRUTH = {2: 0, 38: 1, 39: 2}
_HERE = MapControls(network=NETWORK)


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    data = DataPaths(root=tmp_path)
    images = np.zeros((_N, 8, 8, 3), dtype=np.uint8)
    write_points(data, images, labels=np.arange(_N) % 4, class_names=_NAMES)
    return data


@pytest.fixture
def source(data: DataPaths) -> Source:
    say_planted(data, _TRUTH)
    return Source(data)


def test_every_view_shows_the_number(source: Source) -> None:
    assert re.findall(r"\d+", draw(source, _HERE, "class")["planted"]) == ["3", "40"]


def test_without_planted_labels_there_is_no_note(data: DataPaths) -> None:
    source = Source(data)
    assert draw(source, _HERE, "class")["planted"] is None
    state = _HERE.state(source)
    assert listed_rows(state, "planted", "suspect").tolist() == []
    assert "data-row" not in text_of(browse(source, _HERE, "planted", "suspect", 0)["grid"])
    assert "true" not in text_of(components.tile(state, 39))


def test_a_list_has_the_wrong_labels_most_suspect_first(source: Source) -> None:
    assert listed_rows(_HERE.state(source), "planted", "suspect").tolist() == [39, 38, 2]


def test_a_tile_has_the_label_the_prediction_and_the_true_label(source: Source) -> None:
    # Row 39 has the label dogwood, the prediction ash, and the true label cedar.
    shown = text_of(components.tile(_HERE.state(source), 39))
    places = [shown.index(words) for words in ("dogwood", json.dumps("→ ash")[1:-1], "true: cedar")]
    assert places == sorted(places)
    assert "cedar" in text_of(components.card(_HERE.state(source), 39))
    assert "true" not in text_of(components.tile(_HERE.state(source), 37))


def test_the_csv_file_has_the_number_in_every_row(source: Source, points: Points) -> None:
    text = selection_csv(points, preview_filter(source, points, FilterSettings()), [39, 1])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == (*COLUMNS, "labels_changed_on_purpose")
    assert {row["labels_changed_on_purpose"] for row in rows} == {"3"}


def test_the_exported_page_has_the_number_first_and_true_labels(source: Source, points: Points) -> None:
    content = make_content(points, preview_filter(source, points, FilterSettings()), {})
    assert re.findall(r"\d+", content.about["notes"][0]) == ["3"]
    assert content.about["nPlanted"] == 3
    order, truth = (
        np.frombuffer(gzip.decompress(content.columns[name]), kind)
        for name, kind in (("sample_id", "<i4"), ("true_label", "<u2"))
    )
    expected = np.arange(_N) % 4
    expected[list(_TRUTH)] = list(_TRUTH.values())
    np.testing.assert_array_equal(truth, expected[order])


def test_the_figure_shows_the_number(data: DataPaths, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "params.yaml", tmp_path / "params.yaml")
    places = ["--params", str(tmp_path / "params.yaml"), "--data", str(data.root)]
    figure.main([str(tmp_path / "plain.svg"), *places])
    say_planted(data, _TRUTH)
    figure.main([str(tmp_path / "planted.svg"), *places])
    assert (tmp_path / "planted.svg").read_bytes() != (tmp_path / "plain.svg").read_bytes()


def test_true_labels_without_a_class_are_rejected(data: DataPaths) -> None:
    say_planted(data, {2: 9})
    with pytest.raises(InputError) as refused:
        Source(data).points(NETWORK)
    assert refused.value.key == str(data.manifest("train"))
