"""The data set card next to Parquet shards, which has their class names."""

from pathlib import Path

import pytest

from pipeline.datasets.image_folder import open_image_folder
from pipeline.errors import InputError
from tests.fixtures.hub_folders import clone
from tests.fixtures.images import dataset_options


def test_a_card_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    card = clone(tmp_path) / "README.md"
    card.unlink()
    card.symlink_to("nowhere.md")
    with pytest.raises(InputError, match=r"README\.md: cannot be read"):
        open_image_folder(dataset_options(tmp_path))
