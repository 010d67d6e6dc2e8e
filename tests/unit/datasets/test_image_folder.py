"""Image folders and archives of them, to images in a fixed order."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.artifacts.tables import read_csv, write_csv
from pipeline.datasets.file_tree import is_hidden
from pipeline.datasets.image_folder import open_image_folder, open_unsplit
from pipeline.datasets.image_set import DecodedImage, ImageSet, Sample, UnreadableImage
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.images import dataset_options, one_tree, photo, split_tree, write_folder, write_tar, write_zip

Writer = Callable[[Path, dict[str, bytes]], Path]
_WRITERS: dict[str, Writer] = {
    "folder": write_folder,
    "tar.xz": lambda path, files: write_tar(path, files, "w:xz"),
    "zip": write_zip,
}


@pytest.fixture(params=_WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return _WRITERS[request.param]


def _unreadable(path: Path) -> list[UnreadableImage]:
    images = open_image_folder(dataset_options(path)).decode()
    return [image for image in images if isinstance(image, UnreadableImage)]


def _content(images: ImageSet) -> dict[str, tuple[bytes, str]]:
    content = {}
    for image in images.decode():
        assert isinstance(image, DecodedImage)
        content[image.path] = (image.pixels.tobytes(), image.sha256)
    return content


@pytest.mark.parametrize("root", ["", "Images/"])
def test_folder_and_archive_give_the_same(writer: Writer, root: str, tmp_path: Path) -> None:
    files = split_tree()
    images = open_image_folder(
        dataset_options(writer(tmp_path / "a", {f"{root}{name}": data for name, data in files.items()}))
    )
    assert images.class_names == ("cat", "dog")
    assert images.train == tuple(
        Sample(path=f"train/{name}/{i}.png", label=label) for label, name in enumerate(("cat", "dog")) for i in range(4)
    )
    expected = open_image_folder(dataset_options(write_folder(tmp_path / "plain", files)))
    assert (images.train, images.test) == (expected.train, expected.test)
    assert _content(images) == _content(expected)
    assert set(_content(images)) == set(files)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_order_of_members_does_not_matter(seed: int, tmp_path: Path) -> None:
    files = list(one_tree().items())
    Random(seed).shuffle(files)
    images = [
        open_image_folder(dataset_options(write_tar(tmp_path / "a.tar", content), test_size=0.3))
        for content in (dict(files), one_tree())
    ]
    assert images[0].train == images[1].train
    assert images[0].test == images[1].test


def test_one_tree_is_split_by_class(writer: Writer, tmp_path: Path) -> None:
    path = writer(tmp_path / "a", one_tree(n=10))
    images = open_image_folder(dataset_options(path, test_size=0.2))
    assert np.bincount(images.labels("train")).tolist() == [8, 8]
    assert np.bincount(images.labels("test")).tolist() == [2, 2]
    assert {sample.path for sample in (*images.train, *images.test)} == set(one_tree(n=10))
    assert images.test == open_image_folder(dataset_options(path, test_size=0.2)).test
    assert any(
        images.test != open_image_folder(dataset_options(path, test_size=0.2, seed=seed)).test for seed in (1, 2, 3)
    )


def test_unreadable_files_are_reported_and_can_be_left_out(writer: Writer, tmp_path: Path) -> None:
    bad = {"train/cat/0.png": b"", "test/dog/notes.txt": b"hello"}
    path = writer(tmp_path / "a", {**split_tree(), **bad})
    unreadable = _unreadable(path)
    assert {image.path: image.reason for image in unreadable} == {
        "train/cat/0.png": "empty file",
        "test/dog/notes.txt": "not an image of a known format",
    }
    images = open_image_folder(dataset_options(path, exclude=frozenset(bad)))
    assert len(images.train) == 7
    assert len(_content(images)) == 11


_NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/\\\0"), min_size=1, max_size=12
).filter(lambda name: name.strip() and not is_hidden(name) and name[1:2] != ":" and len(name.encode()) < 100)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(_NAMES, min_size=2, max_size=4, unique=True))
@pytest.mark.parametrize("kind", _WRITERS)
def test_names_in_any_script(names: list[str], kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """They come through, and survive the CSV files that a later stage writes."""
    folder = tmp_path_factory.mktemp("any")
    files = {f"{split}/{name}/{name}": photo(i) for i, name in enumerate(names) for split in ("train", "test")}
    images = open_image_folder(dataset_options(_WRITERS[kind](folder / "a", files)))
    assert {sample.path for sample in (*images.train, *images.test)} == set(files)
    assert set(_content(images)) == set(files)
    _check_csv(folder / "a.csv", [sample.path for sample in images.train])


def _check_csv(path: Path, names: list[str]) -> None:
    import pyarrow as pa

    write_csv(path, pa.table({"path": names}))
    assert read_csv(path, {"path": pa.string()})["path"].to_pylist() == names


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", split_tree())
    (root / "train/cat/again.png").symlink_to("../dog/0.png")
    images = open_image_folder(dataset_options(root))
    assert _content(images)["train/cat/again.png"] == _content(images)["train/dog/0.png"]


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", split_tree())
    (tmp_path / "link").symlink_to(root)
    assert len(open_image_folder(dataset_options(tmp_path / "link")).train) == 8


def test_broken_links_are_unreadable(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", split_tree())
    (root / "train/cat/z.png").symlink_to("nowhere.png")
    unreadable = _unreadable(root)
    assert unreadable == [UnreadableImage(path="train/cat/z.png", reason="No such file or directory")]


def test_a_link_to_itself_is_unreadable(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", split_tree())
    (root / "train/cat/z.png").symlink_to("z.png")
    (image,) = _unreadable(root)
    assert (image.path, image.reason) == ("train/cat/z.png", "Too many levels of symbolic links")


def test_entries_that_are_no_images_are_refused(tmp_path: Path) -> None:
    """Links to other folders are errors, and pipes are not opened."""

    def link_out(root: Path) -> None:
        (tmp_path / "secret.png").write_bytes(photo(99))
        (root / "train/cat/z.png").symlink_to(tmp_path / "secret.png")

    def link_folder(root: Path) -> None:
        (root / "train/emu").symlink_to("cat")

    def make_pipe(root: Path) -> None:
        os.mkfifo(root / "train/cat/z.png")

    def break_name(root: Path) -> None:
        (root / "train/cat/a\nb.png").write_bytes(photo(0))

    cases = {}
    for change in (link_out, link_folder, make_pipe, break_name):
        root = write_folder(tmp_path / change.__name__, split_tree())
        change(root)
        cases[change.__name__] = partial(open_image_folder, dataset_options(root))
    check_golden("refused_folders.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", split_tree())
    with (root / "train/cat/z.png").open("wb") as file:
        file.truncate(1 << 40)
    unreadable = _unreadable(root)
    assert [image.path for image in unreadable] == ["train/cat/z.png"]
    assert unreadable[0].reason.startswith(f"{2**40 / 1e6:.0f} MB")


@pytest.mark.parametrize("tree", [split_tree(), one_tree()], ids=["split", "one"])
def test_unsplit_has_the_images_of_all_splits(tree: dict[str, bytes], writer: Writer, tmp_path: Path) -> None:
    images = open_unsplit(dataset_options(writer(tmp_path / "images", tree)))
    assert {sample.path for sample in images.train} == tree.keys()
    assert images.test == ()
    assert {image.path for image in images.decode()} == tree.keys()


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "two\nlines", "~no-such-user/photos"])
def test_a_folder_whose_name_no_table_can_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if not name.startswith("~"):
        write_folder(tmp_path / name, one_tree())
    with pytest.raises(InputError) as raised:
        open_image_folder(dataset_options(Path(name), test_size=0.5))
    assert raised.value.key == "prepare.path"
