"""Shards of Parquet that are damaged, or made to exhaust the memory."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.datasets import parquet_images
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import ImageSet
from pipeline.errors import InputError
from tests.fixtures.hub_folders import IMAGE_TYPE, clone
from tests.fixtures.images import dataset_options


def _open(folder: Path) -> ImageSet:
    return open_image_folder(dataset_options(folder))


def test_a_damaged_footer_does_not_abort_the_process(tmp_path: Path) -> None:
    """A column with another repetition than its sizes say: pyarrow raises an error in C++ that nothing catches."""
    clone(tmp_path)
    shard = next((tmp_path / "data").glob("train-*"))
    whole = shard.read_bytes()
    # In Thrift's compact protocol: repetition (field 3, after type or length), optional, and name (field 4).
    places = [found.start() + 1 for found in re.finditer(rb"[\x25\x35]\x02\x18", whole)]
    assert len(places) >= 4
    refused = []
    for place in places:
        shard.write_bytes(whole[:place] + b"\x28" + whole[place + 1 :])
        try:
            list(_open(tmp_path).decode())
        except InputError as error:
            refused.append(str(error))
    assert any(str(shard) in line for line in refused)


def test_a_shard_that_expands_far_beyond_its_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_images, "_BATCH_BYTES", 1 << 19)
    images = [{"bytes": bytes(1 << 20), "path": f"{i}.png"} for i in range(4)]
    for split in ("train", "test"):
        table = pa.table({"image": pa.array(images, IMAGE_TYPE), "label": ["a", "b"] * 2})
        pa.parquet.write_table(table, tmp_path / f"{split}.parquet", compression="zstd")
    with pytest.raises(InputError, match=r"test\.parquet: row group 0 .* unpacks to 1,0"):
        list(_open(tmp_path).decode())
