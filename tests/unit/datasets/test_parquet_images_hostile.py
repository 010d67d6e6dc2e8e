"""Parquet shards whose few bytes would fill the memory."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.datasets.image_folder import open_image_folder
from pipeline.errors import InputError
from tests.fixtures.images import dataset_options


def test_more_rows_than_bytes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    shard = tmp_path / "train.parquet"
    table = pa.table({"image": pa.array([b"x"] * 20_000), "label": pa.array([0] * 20_000)})
    pyarrow.parquet.write_table(table, shard, compression="zstd")
    with pytest.raises(InputError, match=r"has 20,000 rows in [0-9,]+ bytes, too few for images") as raised:
        open_image_folder(dataset_options(tmp_path, test_size=0.2))
    assert str(shard) in str(raised.value)
