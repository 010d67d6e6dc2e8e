import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.overrides import Override
from pipeline.paths import DataPaths
from tests.fixtures.points import CLASS_NAMES, NETWORK, write_points
from viz.data import Points, Source
from viz.filter_settings import FilterPreview, FilterSettings, preview_filter
from viz.state import COLUMNS, selection_csv

_N = 8


@pytest.fixture(scope="module")
def previewed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Points, FilterPreview]:
    data = DataPaths(root=tmp_path_factory.mktemp("data"))
    write_points(data, np.zeros((_N, 8, 8, 3), dtype=np.uint8), labels=np.arange(_N) % len(CLASS_NAMES), n_dropped=2)
    source = Source(data)
    points = source.points(NETWORK)
    return points, preview_filter(source, points, FilterSettings())


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_rows_have_the_requested_order_and_all_columns(previewed: tuple[Points, FilterPreview]) -> None:
    points, preview = previewed
    rows = _rows(selection_csv(points, preview, [7, 1]))
    assert [row["sha256"] for row in rows] == [points.sha256[7].as_py(), points.sha256[1].as_py()]
    assert tuple(rows[0]) == COLUMNS
    assert [(row["score"], row["keep"]) for row in rows] == [
        (f"{preview.scores[7]:.6f}", "false"),
        (f"{preview.scores[1]:.6f}", "true"),
    ]
    assert rows[0]["label_name"] == points.class_names[3]
    assert rows[0]["predicted_name"] == points.class_names[0]


def test_the_corrected_label_is_of_a_relabel_or_the_given_one(previewed: tuple[Points, FilterPreview]) -> None:
    points, preview = previewed
    overrides = {
        row: Override(path="", sha256="", decision=decision, label=label, note="", timestamp="", line=0)
        for row, (decision, label) in enumerate([("relabel", "_ship"), ("drop", "")])
    }
    rows = _rows(selection_csv(points, dataclasses.replace(preview, overrides=overrides), [0, 1, 2]))
    assert [row["corrected_label_name"] for row in rows] == ["_ship", rows[1]["label_name"], rows[2]["label_name"]]
    assert [row["keep"] for row in rows] == ["true", "false", "true"]


def test_an_empty_selection_gives_only_the_header(previewed: tuple[Points, FilterPreview]) -> None:
    assert selection_csv(*previewed, []) == ",".join(f'"{name}"' for name in COLUMNS) + "\n"


def test_half_a_millionth_is_rounded_up(previewed: tuple[Points, FilterPreview]) -> None:
    points, preview = previewed
    # v / (v + 1) with v = 1 / 127 is 1 / 128 = 0.0078125, a tie.
    tied = dataclasses.replace(preview, values=np.full(_N, 1 / 127), thresholds=np.ones(_N))
    assert tied.scores[0] == 0.0078125
    assert _rows(selection_csv(points, tied, [0]))[0]["score"] == "0.007813"


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.from_regex(r"[=+\-@\t\r\n'＝].*"))
def test_no_cell_starts_a_formula_and_its_text_can_be_restored(
    previewed: tuple[Points, FilterPreview], text: str
) -> None:
    points, preview = previewed
    hostile = dataclasses.replace(points, reasons=pa.chunked_array([[text] * _N]))
    cell = _rows(selection_csv(hostile, preview, [0]))[0]["reason"]
    assert not cell.startswith(tuple("=+-@\t\r\n＝＋－＠"))
    assert cell.removeprefix("'") == text


def test_names_and_paths_are_escaped_too(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_points(
        data, np.zeros((4, 8, 8, 3), dtype=np.uint8), labels=np.arange(4) % 2, n_dropped=1, class_names=["=A1", "b"]
    )
    source = Source(data)
    points = source.points(NETWORK)
    row = _rows(selection_csv(points, preview_filter(source, points, FilterSettings()), [0]))[0]
    assert row["path"] == "'=A1/0.png"
    assert row["label_name"] == "'=A1"
