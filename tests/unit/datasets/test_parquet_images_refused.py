"""Parquet shards that are refused before their rows are read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.datasets.image_folder import open_image_folder
from pipeline.errors import InputError
from tests.fixtures.hub_folders import clone, rows, write_shard
from tests.fixtures.images import dataset_options, photo


def test_more_rows_than_bytes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    shard = tmp_path / "train.parquet"
    table = pa.table({"image": pa.array([b"x"] * 20_000), "label": pa.array([0] * 20_000)})
    pyarrow.parquet.write_table(table, shard, compression="zstd")
    with pytest.raises(InputError, match=r"has 20,000 rows in [0-9,]+ bytes, too few for images") as raised:
        open_image_folder(dataset_options(tmp_path, test_size=0.2))
    assert str(shard) in str(raised.value)


def test_pointers_of_git_lfs_next_to_a_picture_are_named(tmp_path: Path) -> None:
    """Pictures of a card are often no pointers; the folder is none of images for that."""
    for shard in clone(tmp_path).rglob("*.parquet"):
        shard.write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "preview.png").write_bytes(photo(0))
    with pytest.raises(InputError, match="run `git lfs pull` in the folder"):
        open_image_folder(dataset_options(tmp_path))


def test_shards_at_the_top_and_in_a_folder_are_two_subsets(tmp_path: Path) -> None:
    write_shard(clone(tmp_path) / "train.parquet", rows(0, 4), [0, 1, 0, 1])
    with pytest.raises(InputError, match=r"has several subsets \(the top, data\); give the folder of one"):
        open_image_folder(dataset_options(tmp_path))


def test_exported_labels_that_were_changed_on_purpose_are_refused(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "train.parquet", rows(0, 4), [0, 1, 0, 1])
    table = pyarrow.parquet.read_table(shard)
    pyarrow.parquet.write_table(table.append_column("labels_changed_on_purpose", pa.array([2] * 4)), shard)
    with pytest.raises(InputError, match=r"has the column labels_changed_on_purpose: .*; put the labels") as raised:
        open_image_folder(dataset_options(tmp_path, test_size=0.25))
    assert raised.value.key == "prepare.path"
    assert str(shard) in str(raised.value)
