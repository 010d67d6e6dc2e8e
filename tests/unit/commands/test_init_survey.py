"""What `init` finds in a folder: counts, sizes, broken files, duplicates, and two classes of one image."""

from pathlib import Path

import pytest

from pipeline.commands.init.command import describe
from pipeline.commands.init.proposal import FolderSurvey, default_test_size, survey_folder
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from tests.fixtures.hub_folders import clone
from tests.fixtures.images import gray_16_bit, one_tree, photo, split_tree, write_folder, write_tar, write_zip


def _survey(folder: Path) -> FolderSurvey:
    return survey_folder(folder, choose_test_size=default_test_size, progress=RunLog.silent().progress)


def test_a_folder_of_classes_is_counted_with_its_held_out_images(tmp_path: Path) -> None:
    survey = _survey(write_folder(tmp_path / "photos", one_tree(n=10)))
    assert survey.class_names == ("cat", "dog")
    assert (survey.train, survey.test, survey.test_size) == ((8, 8), (2, 2), 0.2)
    assert (survey.n_train, survey.n_test) == (16, 4)
    assert survey.short_side == 9
    assert survey.unreadable == {}
    assert survey.contradictions == ()
    assert set(survey.duplicates.values()) == {0}


def test_a_split_of_the_folder_is_kept(tmp_path: Path) -> None:
    survey = _survey(write_folder(tmp_path / "photos", split_tree(n_train=5, n_test=3)))
    assert (survey.train, survey.test, survey.test_size) == ((5, 5), (3, 3), None)


def test_broken_files_are_counted_out_with_their_reason(tmp_path: Path) -> None:
    files = one_tree(n=11) | {"cat/broken.png": photo(3)[:40], "dog/empty.jpg": b""}
    survey = _survey(write_folder(tmp_path / "photos", files))
    assert list(survey.unreadable) == ["cat/broken.png", "dog/empty.jpg"]
    assert survey.unreadable["dog/empty.jpg"] == "empty file"
    assert survey.n_train + survey.n_test == 22


@pytest.mark.parametrize("kind", ["photos.zip", "photos.tar.gz", "shards"])
def test_archives_and_shards_have_the_sizes_of_their_images(kind: str, tmp_path: Path) -> None:
    path, files = tmp_path / kind, one_tree(n=6)
    if kind == "photos.zip":
        write_zip(path, files)
    elif kind == "photos.tar.gz":
        write_tar(path, files, "w:gz")
    else:
        clone(path)
    survey = _survey(path)
    assert (survey.n_train + survey.n_test, survey.short_side) == (12, 9)


def test_dark_16_bit_images_are_in_the_description(tmp_path: Path) -> None:
    files = {name: gray_16_bit(seed, 1023 - seed) for seed, name in enumerate(one_tree(n=6))}
    survey = _survey(write_folder(tmp_path / "photos", files))
    assert survey.brightest_16_bit == 1023
    assert sum("16-bit" in line for line in describe(tmp_path, survey)) == 1
    eight_bits = _survey(write_folder(tmp_path / "others", one_tree(n=6)))
    assert eight_bits.brightest_16_bit is None
    assert not any("16-bit" in line for line in describe(tmp_path, eight_bits))


def test_sizes_of_broken_files_do_not_count(tmp_path: Path) -> None:
    """Their headers are whole, and they are more than the readable images."""
    broken = {f"cat/broken{number}.png": photo(50 + number, (400, 300))[:200] for number in range(12)}
    survey = _survey(write_folder(tmp_path / "photos", one_tree(n=5) | broken))
    assert (len(survey.unreadable), survey.short_side) == (12, 9)


def test_copies_and_copies_in_another_class_are_told_apart(tmp_path: Path) -> None:
    files = split_tree(n_train=5, n_test=3)
    files |= {
        "train/cat/copy.png": files["train/cat/0.png"],
        "train/dog/moved.png": files["train/cat/1.png"],
        "test/dog/leaked.png": files["train/dog/0.png"],
    }
    survey = _survey(write_folder(tmp_path / "photos", files))
    assert survey.duplicates == {"within_train": 2, "within_test": 0, "across": 1}
    assert survey.contradictions == (("train/cat/1.png", "train/dog/moved.png"),)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no class folders"),
        ({"1.png": photo(0), "2.png": photo(1)}, "in no class folder"),
        (one_tree(classes=["cat"]), "two classes"),
        (one_tree(n=2), "train images"),
        (one_tree() | {"fox/0.png": b"no image", "fox/1.png": photo(9)}, "fox"),
    ],
    ids=["empty", "loose", "one class", "two images of a class", "a class of broken files"],
)
def test_folders_that_cannot_be_trained_on_are_refused(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match=words):
        _survey(write_folder(tmp_path / "photos", files))
