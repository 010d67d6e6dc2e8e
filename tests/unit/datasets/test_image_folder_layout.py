"""Which folders are splits and which are classes."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.datasets.file_tree import FileTree
from pipeline.datasets.image_folder import find_layout
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals


def _tree(*files: str, folders: tuple[str, ...] = ()) -> FileTree:
    return FileTree.from_names(files, folders)


_SPLIT = ("train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/1.png")
_ONE = ("cat/1.png", "cat/2.png", "dog/1.png")


@pytest.mark.parametrize("root", ["", "Images"])
def test_train_and_test(root: str) -> None:
    layout = find_layout(_tree(*(f"{root}/{name}" if root else name for name in _SPLIT)), "x")
    assert layout.root == root
    assert layout.class_names == ("cat", "dog")
    assert layout.splits == {
        "train": (("train/cat/1.png", 0), ("train/dog/1.png", 1)),
        "test": (("test/cat/1.png", 0), ("test/dog/1.png", 1)),
    }


def test_val_is_the_test_split_of_imagenet() -> None:
    """Its own test images have no labels and lie in test/ without folders, if at all."""
    names = [name.replace("test/", "val/") for name in _SPLIT]
    for others in ([], ["test/ILSVRC2012_test_00000001.JPEG"]):
        layout = find_layout(_tree(*names, *others), "x")
        assert layout.splits["test"] == (("val/cat/1.png", 0), ("val/dog/1.png", 1))
    with pytest.raises(InputError):
        find_layout(_tree(*names, *_SPLIT), "x")


@pytest.mark.parametrize("root", ["", "Images"])
def test_one_tree(root: str) -> None:
    layout = find_layout(_tree(*(f"{root}/{name}" if root else name for name in _ONE)), "x")
    assert layout.root == root
    assert layout.splits == {"": (("cat/1.png", 0), ("cat/2.png", 0), ("dog/1.png", 1))}


def test_classes_may_be_called_train_and_test() -> None:
    """A train is also a vehicle."""
    layout = find_layout(_tree("train/1.png", "bus/1.png", "test/1.png"), "x")
    assert layout.class_names == ("bus", "test", "train")


def test_text_files_next_to_the_class_folders_are_ignored() -> None:
    assert find_layout(_tree(*_ONE, "README.md", "labels.csv"), "x").class_names == ("cat", "dog")
    assert find_layout(_tree(*_SPLIT, "LICENSE", "train/notes.txt"), "x").class_names == ("cat", "dog")


def test_white_space_around_a_folder_is_no_part_of_its_class() -> None:
    layout = find_layout(_tree("train/cat /1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/1.png"), "x")
    assert layout.class_names == ("cat", "dog")
    assert layout.splits["train"][0] == ("train/cat /1.png", 0)


def test_composed_and_decomposed_names_are_one_class() -> None:
    """macOS writes an e and an accent, Linux one character."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    layout = find_layout(
        _tree("train/x/1.png", f"train/{composed}/1.png", "test/x/1.png", f"test/{decomposed}/1.png"), "x"
    )
    assert layout.class_names == (composed, "x")
    assert layout.splits["test"][0] == (f"test/{decomposed}/1.png", 0)


def test_a_test_split_may_lack_a_class_here() -> None:
    """Counting images is not the layout's task."""
    assert find_layout(_tree(*_SPLIT[:3]), "x").class_names == ("cat", "dog")


_OTHERS = {
    "nothing": _tree(),
    "no folders": _tree("README.md"),
    "loose images": _tree("1.png", "2.png"),
    "an image next to a folder": _tree("all/cat/1.png", "1.png"),
    "a loose image": _tree(*_ONE, "x.JPG"),
    "a loose image of a browser": _tree(*_ONE, "x.jfif"),
    "loose in train": _tree(*_SPLIT, "train/1.png"),
    "loose next to train": _tree(*_SPLIT, "1.png"),
    "train without test": _tree(*_SPLIT[:2]),
    "test without train": _tree(*_SPLIT[2:]),
    "test without classes": _tree(*_SPLIT[:2], "test/1.png"),
    "a third split": _tree(*_SPLIT, "val/cat/1.png"),
    "class of test alone": _tree(*_SPLIT, "test/emu/1.png"),
    "empty class": _tree(*_ONE, folders=("emu",)),
    "empty in test": _tree(*_SPLIT, folders=("test/emu",)),
    "nested": _tree(*_ONE, "cat/old/1.png"),
    "a blank class": _tree(*_ONE, " /1.png"),
    "a blank class in test": _tree(*_SPLIT, "test/ /1.png"),
    "capitals": _tree("Train/cat/1.png", "Test/cat/1.png"),
}


def test_other_layouts_are_refused() -> None:
    cases = {name: partial(find_layout, tree, "x") for name, tree in _OTHERS.items()}
    check_golden("refused_layouts.txt", refusals(cases))


@settings(deadline=None)
@given(st.permutations(_SPLIT), st.permutations(("train", "test", "train/cat")))
def test_order_does_not_matter(files: list[str], folders: list[str]) -> None:
    assert find_layout(FileTree.from_names(files, folders), "x") == find_layout(_tree(*_SPLIT), "x")
