"""The digest of prepared data by value: that of its files is another for each version of pyarrow."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.artifacts.prepared import prepared_content, prepared_digest
from pipeline.paths import DataPaths
from tests.fixtures.report import write_prepared

_COLUMNS: dict[str, pa.Array] = {
    "label": pa.array([0, 1, 2], pa.int64()),
    "path": pa.array(["a", "bc", None]),
    "val": pa.array([True, False, False]),
    "sha256": pa.array(["00", "01", "02"]),
}


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    paths = DataPaths(root=tmp_path)
    write_prepared(paths)
    _write(paths, _COLUMNS)
    return paths


def _write(data: DataPaths, columns: dict[str, pa.Array], **options: Any) -> None:
    pyarrow.parquet.write_table(pa.table(columns), data.manifest("train"), **options)


@pytest.mark.parametrize("options", [{"compression": "none"}, {"version": "1.0"}, {"row_group_size": 1}])
def test_how_a_file_was_written_does_not_count(options: dict[str, Any], data: DataPaths) -> None:
    content, digest = prepared_content(data), prepared_digest(data)
    _write(data, _COLUMNS, **options)
    assert prepared_content(data) == content
    assert prepared_digest(data) != digest


def test_neither_do_the_order_of_columns_and_the_width_of_numbers(data: DataPaths) -> None:
    content = prepared_content(data)
    narrow = {"label": _COLUMNS["label"].cast(pa.int32()), "path": _COLUMNS["path"].cast(pa.large_string())}
    columns = {**_COLUMNS, **narrow}
    _write(data, {name: columns[name] for name in reversed(columns)})
    assert prepared_content(data) == content


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", [0, 1, 1]),
        ("path", ["a", "bc", ""]),
        ("path", ["ab", "c", None]),
        ("val", [True, True, False]),
        ("val", [True, False, None]),
        ("sha256", ["00", "01", "03"]),
    ],
)
def test_every_value_counts(name: str, values: list[Any], data: DataPaths) -> None:
    content = prepared_content(data)
    _write(data, {**_COLUMNS, name: pa.array(values, _COLUMNS[name].type)})
    assert prepared_content(data) != content


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_pixel_counts(split: str, data: DataPaths) -> None:
    content = prepared_content(data)
    images = np.load(data.images(split))
    images[-1, -1, -1, -1] ^= 1
    np.save(data.images(split), images)
    assert prepared_content(data) != content
