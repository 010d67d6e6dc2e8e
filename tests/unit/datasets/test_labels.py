"""A file of labels: what it must look like, and which labels it decides."""

import re
import unicodedata
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets.image_set import ImageSet, Sample
from pipeline.datasets.labels import LabelFile, LabelRecord, locate_labels, read_label_file, relabel
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals

_FORMS: tuple[Literal["NFC"], Literal["NFD"]] = ("NFC", "NFD")
_CLASSES = ("cat", "dog", "été")
_TRAIN = ("train/cat/a, b.png", "train/cat/2.png", "train/dog/1.png", "train/été/1.png")
_IMAGES = ImageSet(
    class_names=_CLASSES,
    train=tuple(Sample(path=path, label=_CLASSES.index(path.split("/")[1])) for path in _TRAIN),
    test=(Sample(path="test/cat/1.png", label=0),),
    decode=lambda: iter(()),
)


def _read(folder: Path, text: str | bytes) -> LabelFile:
    path = folder / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_label_file(path, key="prepare.label_file")


@given(st.dictionaries(st.sampled_from(_TRAIN), st.integers(0, 2)))
def test_listed_images_get_the_files_label_and_others_keep_theirs(chosen: dict[str, int]) -> None:
    lines = [
        LabelRecord(path=path, name=_CLASSES[label], line=row) for row, (path, label) in enumerate(chosen.items(), 2)
    ]
    changed = relabel(_IMAGES, LabelFile(source="labels.csv", labels=tuple(lines)), excluded=frozenset())
    expected = [chosen.get(sample.path, sample.label) for sample in _IMAGES.train]
    assert [sample.path for sample in changed.train] == list(_TRAIN)
    assert [sample.label for sample in changed.train] == expected
    assert changed.test == _IMAGES.test
    assert changed.n_relabelled == sum(new != old.label for new, old in zip(expected, _IMAGES.train, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        'path,label\n"train/cat/a, b.png",dog\n',
        'label,path\r\ndog,"train/cat/a, b.png"\r\n\r\n',
        b'\xef\xbb\xbfpath,label\n"train/cat/a, b.png",dog',
        ' path , label\n"train/cat/a, b.png", dog\n',
    ],
    ids=["plain", "other order, Windows, a blank line", "byte order mark, no last newline", "spaces after commas"],
)
def test_what_spreadsheets_write_is_read(tmp_path: Path, text: str | bytes) -> None:
    (line,) = _read(tmp_path, text).labels
    assert replace(line, name=line.name.strip()) == LabelRecord(path="train/cat/a, b.png", name="dog", line=2)


def test_class_names_that_differ_in_composition_alone_are_one(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "été")
    changed = relabel(_IMAGES, _read(tmp_path, f"path,label\ntrain/cat/2.png,{decomposed}\n"), excluded=frozenset())
    assert changed.train[1].label == _CLASSES.index("été")


def test_white_space_around_a_class_name_counts_for_nothing(tmp_path: Path) -> None:
    changed = relabel(_IMAGES, _read(tmp_path, "path,label\ntrain/cat/2.png, dog\u00a0\n"), excluded=frozenset())
    assert changed.train[1].label == _CLASSES.index("dog")


@pytest.mark.parametrize("forms", [_FORMS, _FORMS[::-1]])
def test_paths_that_differ_in_composition_alone_are_one(
    tmp_path: Path, forms: tuple[Literal["NFC", "NFD"], ...]
) -> None:
    spelled = {form: unicodedata.normalize(form, "train/été/1.png") for form in _FORMS}
    of_images, of_file = (spelled[form] for form in forms)
    images = replace(_IMAGES, train=(*_IMAGES.train[:3], Sample(path=of_images, label=2)))
    changed = relabel(images, _read(tmp_path, f"path,label\n{of_file},dog\n"), excluded=frozenset())
    assert changed.train[3] == Sample(path=of_images, label=_CLASSES.index("dog"))
    without = replace(images, train=images.train[:3])
    assert relabel(without, _read(tmp_path, f"path,label\n{of_file},dog\n"), excluded={of_images}).n_relabelled == 0
    in_test = replace(without, test=(Sample(path=of_images, label=2),))
    with pytest.raises(InputError):
        relabel(in_test, _read(tmp_path, f"path,label\n{of_file},dog\n"), excluded=frozenset())
    with pytest.raises(InputError) as refused:
        _read(tmp_path, f"path,label\n{of_file},dog\n{of_images},dog\n")
    assert re.findall(r"line (\d+)", str(refused.value)) == ["3", "2"]


def test_a_line_that_may_mean_two_images_is_refused(tmp_path: Path) -> None:
    both = tuple(Sample(path=unicodedata.normalize(form, "train/été/1.png"), label=2) for form in _FORMS)
    images = replace(_IMAGES, train=both)
    with pytest.raises(InputError) as refused:
        relabel(images, _read(tmp_path, "path,label\ntrain/été/1.png,dog\n"), excluded=frozenset())
    assert "train/été/1.png" in str(refused.value)


def test_lines_are_counted_where_records_begin(tmp_path: Path) -> None:
    text = 'path,label\n"a\nb.png",dog\n\n"train/cat/\n2.png",dog\ntrain/cat/2.png,cat\n'
    assert [given.line for given in _read(tmp_path, text).labels] == [2, 5, 7]


def test_lines_about_images_that_were_left_out_are_passed_over(tmp_path: Path) -> None:
    file = _read(tmp_path, "path,label\ntrain/cat/broken.png,dog\ntrain/cat/2.png,dog\n")
    assert relabel(_IMAGES, file, excluded={"train/cat/broken.png"}).n_relabelled == 1
    with pytest.raises(InputError) as refused:
        relabel(_IMAGES, file, excluded=frozenset())
    assert re.findall(r"line (\d+): '([^']+)'", str(refused.value)) == [("2", "train/cat/broken.png")]


_BAD = {
    "empty": "",
    "no image": "path,label\n",
    "missing column": "path,labels\na,b\n",
    "semicolons": "path;label\na;b\n",
    "tabs": "path\t label\na\tb\n",
    "semicolons and another column": "path;labels\na;b\n",
    "another column": "path,label,note\na,b,c\n",
    "too few fields": "path,label\ntrain/cat/2.png\n",
    "comma": "path,label\ntrain/cat/a, b.png,dog\n",
    "twice": "path,label\ntrain/cat/2.png,dog\n\ntrain/cat/2.png,dog\n",
    "unknown path": "path,label\ntrain/cat/3.png,dog\n",
    "other folder": "path,label\nimages/dog/1.png,dog\n",
    "test image": "path,label\ntest/cat/1.png,dog\n",
    "unknown class": "path,label\ntrain/cat/2.png,dogs\n",
    "strange class": "path,label\ntrain/cat/2.png,7\n",
}


def test_a_bad_file_gets_one_line(tmp_path: Path) -> None:
    def use(text: str) -> None:
        relabel(_IMAGES, _read(tmp_path, text), excluded=frozenset())

    cases = {name: partial(use, text) for name, text in _BAD.items()}
    check_golden("refused_label_files.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


@pytest.mark.parametrize(
    "text",
    [
        "path,label\ntrain/été/1.png,cat\n".encode("latin-1"),
        "path,label\ntrain/cat/2.png,dog\n".encode("utf-16"),
        'path,label\n"train/cat/2.png,dog\n',
    ],
    ids=["Latin-1", "UTF-16", "open quote"],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(InputError) as refused:
        _read(tmp_path, text)
    assert str(tmp_path / "labels.csv") in str(refused.value)
    assert refused.value.key == "prepare.label_file"


@pytest.mark.parametrize("name", ["none.csv", "."])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as refused:
        read_label_file(tmp_path / name, key="prepare.label_file")
    assert str(tmp_path / name) in str(refused.value)
    assert refused.value.key == "prepare.label_file"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["train/042/0000142.jpg", "images/042/0000142.png"])
def test_the_nearest_of_many_paths_is_found_at_once(path: str) -> None:
    paths = [f"train/{row % 100:03}/{row:07}.png" for row in range(200_000)]
    line = LabelRecord(path=path, name="a", line=2)
    with pytest.raises(InputError) as refused:
        locate_labels(LabelFile(source="x", labels=(line,)), paths=paths, class_names=["a"], test_paths=frozenset())
    assert "train/042/0000142.png" in str(refused.value)
