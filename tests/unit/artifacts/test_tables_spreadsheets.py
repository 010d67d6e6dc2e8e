"""Cells of kept.csv and dropped.csv that a spreadsheet would run, and the way back."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.tables import protect_cells, read_csv, restore_cells, write_csv

_CELLS = st.lists(st.text(st.sampled_from("=+-@\t\r\n'\" ,;ａ＝a1é"), max_size=5), min_size=1, max_size=8)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝"])
def test_a_cell_that_would_run_starts_with_an_apostrophe(start: str) -> None:
    table = protect_cells(pa.table({"path": [f"{start}1+2.png", "cat/-1.png"], "score": [-0.5, 1.0]}))
    assert table["path"].to_pylist() == [f"'{start}1+2.png", "cat/-1.png"]
    assert table["score"].to_pylist() == [-0.5, 1.0]


@given(cells=_CELLS)
def test_reading_back_gives_the_original(cells: list[str]) -> None:
    table = pa.table({"path": pa.array(cells, pa.string())})
    assert restore_cells(protect_cells(table)) == table


def test_the_file_is_read_back(tmp_path: Path) -> None:
    cells = ["=1+2", "'=1", "'", "", "\ta", "\rb", "a,b", 'a"b', "-1", "plain"]
    table = pa.table({"path": cells, "label_name": ["@SUM(A1)"] * len(cells)})
    write_csv(tmp_path / "kept.csv", protect_cells(table))
    columns = {"path": pa.string(), "label_name": pa.string()}
    assert restore_cells(read_csv(tmp_path / "kept.csv", columns)) == table
