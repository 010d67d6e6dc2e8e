"""Which folders are splits and which are classes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.datasets.layout import find_layout
from pipeline.datasets.tree import FileTree
from pipeline.errors import InputError


def _tree(*files: str, folders: tuple[str, ...] = ()) -> FileTree:
    return FileTree.of(files, folders)


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
    with pytest.raises(InputError, match="folder val beside train/ and test/ belongs to neither"):
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


def test_notes_beside_the_class_folders_are_no_matter() -> None:
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


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        pytest.param(_tree(), "no class folders", id="nothing"),
        pytest.param(_tree("README.md"), "no class folders", id="no folders"),
        pytest.param(_tree("1.png", "2.png"), r"1.png is in no class folder \(and 1 more images\)", id="loose images"),
        pytest.param(_tree("all/cat/1.png", "1.png"), "all/cat is a folder within a class", id="an image beside all"),
        pytest.param(_tree(*_ONE, "x.JPG"), "x.JPG is in no class folder", id="a loose image"),
        pytest.param(_tree(*_SPLIT, "train/1.png"), "train: 1.png is in no class folder", id="loose in train"),
        pytest.param(_tree(*_SPLIT, "1.png"), "1.png is in no class folder", id="loose beside train"),
        pytest.param(_tree(*_SPLIT[:2]), "there are no class folders in test/", id="train without test"),
        pytest.param(_tree(*_SPLIT[2:]), "there are no class folders in train/", id="test without train"),
        pytest.param(
            _tree(*_SPLIT[:2], "test/1.png"), "there are no class folders in test/", id="test without classes"
        ),
        pytest.param(_tree(*_SPLIT, "val/cat/1.png"), "folder val beside train/ and test/", id="a third split"),
        pytest.param(
            _tree(*_SPLIT, "test/emu/1.png"), "class emu is in test/ but not in train/", id="class of test alone"
        ),
        pytest.param(_tree(*_ONE, folders=("emu",)), "class folder emu is empty", id="empty class"),
        pytest.param(_tree(*_SPLIT, folders=("test/emu",)), "test: class folder emu is empty", id="empty in test"),
        pytest.param(_tree(*_ONE, "cat/old/1.png"), "cat/old is a folder within a class", id="nested"),
        pytest.param(_tree("Train/cat/1.png", "Test/cat/1.png"), "Test/cat is a folder within a class", id="capitals"),
    ],
)
def test_other_layouts_are_refused(tree: FileTree, message: str) -> None:
    with pytest.raises(InputError, match=rf"^prepare\.path: x: {message}"):
        find_layout(tree, "x")


@settings(deadline=None)
@given(st.permutations(_SPLIT), st.permutations(("train", "test", "train/cat")))
def test_order_does_not_matter(files: list[str], folders: list[str]) -> None:
    assert find_layout(FileTree.of(files, folders), "x") == find_layout(_tree(*_SPLIT), "x")
