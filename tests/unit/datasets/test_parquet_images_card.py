"""The data set card next to Parquet shards, which has their class names."""

from pathlib import Path

import pytest

from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.table_labels import card_class_names
from pipeline.errors import InputError
from tests.fixtures.hub_folders import card, clone
from tests.fixtures.images import dataset_options


def test_a_card_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    card = clone(tmp_path) / "README.md"
    card.unlink()
    card.symlink_to("nowhere.md")
    with pytest.raises(InputError, match=r"README\.md: cannot be read"):
        open_image_folder(dataset_options(tmp_path))


def test_class_names_are_as_written() -> None:
    """YAML takes some of them for numbers, truth values, dates or nothing."""
    names = ["08", "1e3", "0o17", "0x1F", "1_000", "+5", "1.50", "true", "Null", "~", "2024-01-01", "no", "cat"]
    assert card_class_names(card(names), "label", "README.md") == tuple(names)
    quoted = [f"'{name}'" for name in names]
    assert card_class_names(card(quoted), "label", "README.md") == tuple(names)
    listed = card([]).replace("names:\n", f"names: [{', '.join(names)}]\n")
    assert card_class_names(listed, "label", "README.md") == tuple(names)


def test_a_class_without_a_name_is_refused() -> None:
    with pytest.raises(InputError, match="class name '' is empty") as refused:
        card_class_names(card(["cat", ""]), "label", "README.md")
    assert refused.value.key == "README.md"


def test_a_number_without_a_class_gives_no_names() -> None:
    text = card(["cat", "dog"]).replace("'1'", "'2'")
    assert card_class_names(text, "label", "README.md") is None
