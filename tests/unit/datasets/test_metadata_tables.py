"""Image folders with metadata.csv or metadata.jsonl."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import DecodedImage, ImageSet, Sample
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.hub_folders import card
from tests.fixtures.images import dataset_options, one_tree, photo, write_folder, write_tar, write_zip


def _table(*lines: str, header: str = "file_name,label") -> bytes:
    return "".join(f"{line}\n" for line in (header, *lines)).encode()


def _objects(*records: Any) -> bytes:
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode()


def _open(path: Path, **options: Any) -> ImageSet:
    return open_image_folder(dataset_options(path, **options))


_SPLIT = {
    f"{split}/{i}.png": photo(seed)
    for seed, (split, i) in enumerate((s, i) for s in ("train", "test") for i in range(4))
}


def _assert_cats_and_dogs_in_turn(images: ImageSet) -> None:
    assert images.class_names == ("cat", "dog")
    assert images.train == tuple(Sample(path=f"train/{i}.png", label=i % 2) for i in range(4))
    assert images.test == tuple(Sample(path=f"test/{i}.png", label=i % 2) for i in range(4))


@pytest.mark.parametrize("writer", [write_folder, write_tar, write_zip])
@pytest.mark.parametrize("root", ["", "Images/"])
def test_one_table_or_one_per_split(writer: Callable[..., Path], root: str, tmp_path: Path) -> None:
    lines = [f"{i}.png,{'dog' if i % 2 else 'cat'}" for i in range(4)]
    one = {"metadata.csv": _table(*(f"{split}/{line}" for split in ("train", "test") for line in lines))}
    two = {f"{split}/metadata.csv": _table(*(f"./{line}" for line in lines)) for split in ("train", "test")}
    for number, tables in enumerate((one, two)):
        files = {root + name: content for name, content in {**_SPLIT, **tables}.items()}
        images = _open(writer(tmp_path / str(number), files))
        _assert_cats_and_dogs_in_turn(images)
        assert images.files_in == (root.strip("/") if writer is write_folder else None)
        assert sum(isinstance(image, DecodedImage) for image in images.decode()) == 8
        assert "metadata.csv" in images.description


@pytest.mark.parametrize("writer", [write_folder, write_tar])
@pytest.mark.parametrize("root", ["", "Images/"])
def test_json_lines_are_a_table_too(writer: Callable[..., Path], root: str, tmp_path: Path) -> None:
    records = {
        f"{split}/{i}.png": {"text": None, "label": "\u2028dog" if i % 2 else " cat"}
        for split in ("train", "test")
        for i in range(4)
    }
    one = {"metadata.jsonl": _objects(*({"file_name": name, **record} for name, record in records.items()))}
    two = {
        f"{split}/metadata.jsonl": b"\xef\xbb\xbf"
        + _objects(
            *({**record, "file_name": name.partition("/")[2]} for name, record in records.items() if split in name)
        )
        for split in ("train", "test")
    }
    for number, tables in enumerate((one, two)):
        files = {root + name: content for name, content in {**_SPLIT, **tables}.items()}
        images = _open(writer(tmp_path / str(number), files))
        _assert_cats_and_dogs_in_turn(images)
        assert "metadata.jsonl" in images.description


def test_whole_numbers_of_json_are_classes_of_the_card(tmp_path: Path) -> None:
    lines = _objects(*({"file_name": name, "label": number % 2} for number, name in enumerate(_SPLIT)))
    images = _open(
        write_folder(tmp_path, {**_SPLIT, "metadata.jsonl": lines, "README.md": card(["dog", "cat"]).encode()})
    )
    assert [images.class_names[sample.label] for sample in images.train] == ["dog", "cat"] * 2


def test_without_splits_a_fraction_is_held_out(tmp_path: Path) -> None:
    """The folders need not be classes."""
    files = {f"visit {i % 3}/{i}.png": photo(i) for i in range(20)}
    table = _table(*(f"visit {i % 3}/{i}.png,{i % 2}" for i in range(20)))
    images = _open(write_folder(tmp_path, {**files, "metadata.csv": table, "notes.txt": b""}), test_size=0.2)
    assert (len(images.train), len(images.test), images.class_names) == (16, 4, ("0", "1"))


def test_another_column_and_the_names_of_the_card(tmp_path: Path) -> None:
    lines = (f"{split}/{i}.png,a note,{i % 2}" for split in ("train", "test") for i in range(4))
    table = _table(*lines, header="file_name,text,kind")
    files = {**_SPLIT, "metadata.csv": table, "README.md": card(["dog", "cat"], column="kind").encode()}
    images = _open(write_folder(tmp_path, files), label_column="kind")
    assert [images.class_names[sample.label] for sample in images.train] == ["dog", "cat"] * 2


def test_class_folders_stay_the_labels_without_a_label_column(tmp_path: Path) -> None:
    captions = _table("cat/0.png,asleep", header="file_name,caption")
    other = _table("a,b", header="patient,label")
    for number, table in enumerate((captions, other)):
        images = _open(write_folder(tmp_path / str(number), {**one_tree(), "metadata.csv": table}), test_size=0.5)
        assert images.class_names == ("cat", "dog")
        assert images.description == ""


@pytest.mark.parametrize(
    "folders",
    [
        ("images/train", "images/test"),
        ("train_images", "test_images"),
        ("train/eval", "val/train"),
        ("a/train/test_tube", "a/test/bullet_train"),
    ],
)
def test_folders_at_any_depth_are_splits(folders: tuple[str, str], tmp_path: Path) -> None:
    """The names of the images are none, nor are classes within a split."""
    names = [f"{folder}/test_{i}.png" for folder in folders for i in range(4)]
    files = {name: photo(seed) for seed, name in enumerate(names)}
    table = _table(*(f"{name},{'ab'[i % 2]}" for i, name in enumerate(names)))
    images = _open(write_folder(tmp_path, {**files, "metadata.csv": table}))
    assert [sample.path for sample in images.train] == names[:4]
    assert [sample.path for sample in images.test] == names[4:]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8"])
def test_a_table_of_another_encoding_or_separator_is_refused(encoding: str, tmp_path: Path) -> None:
    text = "file_name,label\ncat/0.png,a\n"
    table = text.replace(",", ";") if encoding == "utf-8" else text
    root = write_folder(tmp_path, {**one_tree(), "metadata.csv": table.encode(encoding)})
    with pytest.raises(InputError, match=r"metadata\.csv: its header") as raised:
        _open(root, test_size=0.5)
    assert "\n" not in str(raised.value)


def test_blank_lines_before_the_header_hide_no_table(tmp_path: Path) -> None:
    """The labels would silently be those of the class folders."""
    table = b"\r\n\n" + _table(*(f"{name},{'ab'[number % 2]}" for number, name in enumerate(one_tree())))
    images = _open(write_folder(tmp_path, {**one_tree(), "metadata.csv": table}), test_size=0.5)
    assert images.class_names == ("a", "b")


@pytest.mark.parametrize("header", ["file_name, label", " file_name ,label "])
def test_spaces_around_the_names_of_columns_count_for_nothing(header: str, tmp_path: Path) -> None:
    lines = (f"{split}/{i}.png, {'ab'[i % 2]}" for split in ("train", "test") for i in range(4))
    images = _open(write_folder(tmp_path, {**_SPLIT, "metadata.csv": _table(*lines, header=header)}))
    assert images.class_names == ("a", "b")


def test_composed_names_in_the_table_are_those_of_decomposed_files(tmp_path: Path) -> None:
    """macOS writes an e and an accent, a table one character."""
    files = {f"cafe\u0301 {number}.png": photo(number) for number in range(8)}
    table = _table(*(f"caf\u00e9 {number}.png,{'ab'[number % 2]}" for number in range(8)))
    images = _open(write_folder(tmp_path, {**files, "metadata.csv": table}), test_size=0.5)
    assert {sample.path for sample in (*images.train, *images.test)} == files.keys()


def test_a_card_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    lines = (f"{split}/{i}.png,{i % 2}" for split in ("train", "test") for i in range(4))
    write_folder(tmp_path, {**_SPLIT, "metadata.csv": _table(*lines)})
    (tmp_path / "README.md").symlink_to("nowhere.md")
    with pytest.raises(InputError, match=r"README\.md: cannot be read"):
        _open(tmp_path)


@pytest.mark.parametrize("writer", [write_folder, write_tar])
@pytest.mark.parametrize("others", ["2024/0.png", "2024/july/0.png", "0.png"])
def test_images_outside_the_only_table_are_not_left_out(
    writer: Callable[..., Path], others: str, tmp_path: Path
) -> None:
    files = {f"2023/{number}.png": photo(number) for number in range(8)}
    files |= {"2023/metadata.csv": _table(*(f"{number}.png,{'ab'[number % 2]}" for number in range(8)))}
    assert len(_open(writer(tmp_path / "one", {**files, "notes/0.txt": b""}), test_size=0.5).train) == 4
    with pytest.raises(InputError, match=rf"{others} is in no metadata\.csv, which only 2023/ has"):
        _open(writer(tmp_path / "two", {**files, others: photo(9)}), test_size=0.5)


def test_refusals(tmp_path: Path) -> None:
    lines = [f"{split}/{i}.png,{'ab'[i % 2]}" for split in ("train", "test") for i in range(4)]

    def opened(*changed: str, header: str = "file_name,label", **options: Any) -> Callable[[], object]:
        number = len(list(tmp_path.iterdir()))
        files = {**_SPLIT, "metadata.csv": _table(*changed, header=header)}
        return partial(_open, write_folder(tmp_path / str(number), files), **options)

    def of_objects(*changed: Any, **more: bytes) -> Callable[[], object]:
        number = len(list(tmp_path.iterdir()))
        content = b"".join(part if isinstance(part, bytes) else _objects(part) for part in [*objects, *changed])
        return partial(_open, write_folder(tmp_path / str(number), {**_SPLIT, "metadata.jsonl": content, **more}))

    objects = [{"file_name": line.partition(",")[0], "label": line[-1]} for line in lines]
    loose = {name.partition("/")[2]: content for name, content in _SPLIT.items()}
    cases: dict[str, Callable[[], object]] = {
        "an image without a line": opened(*lines[1:]),
        "a line without a file": opened(*lines, "train/9.png,a"),
        "a file twice": opened(*lines, lines[0]),
        "a path outside": opened(*lines, "../secret.png,a"),
        "an absolute path": opened(*lines, "/etc/secret.png,a"),
        "no name": opened(*lines, ",a"),
        "a NUL byte": opened(*lines, "train/\0.png,a"),
        "too few fields": opened(*lines, "train/0.png"),
        "no lines": opened(),
        "no label": opened(*lines[1:], "train/0.png,"),
        "the column set is missing": opened(*lines, label_column="kind"),
        "a split and a test fraction": opened(*lines, test_size=0.5),
        "images without class folders or labels": partial(
            _open,
            write_folder(tmp_path / "loose", {**loose, "metadata.csv": _table("0.png,a", header="file_name,kind")}),
        ),
        "a column without a table": partial(_open, write_folder(tmp_path / "classes", one_tree()), label_column="kind"),
        "an image in no split": partial(
            _open,
            write_folder(tmp_path / "mixed", {**_SPLIT, "9.png": photo(9), "metadata.csv": _table(*lines, "9.png,a")}),
        ),
        "no JSON": of_objects(b"train/9.png\n"),
        "JSON within JSON": of_objects(b'{"a":' * 100_000 + b"\n"),
        "a number of too many digits": of_objects(b'{"a": ' + b"1" * 5000 + b"}\n"),
        "a list of JSON": of_objects(["train/9.png", "a"]),
        "a key is missing": of_objects({"file_name": "train/9.png"}),
        "a fraction as label": of_objects({"file_name": "train/9.png", "label": 0.5}),
        "no label in JSON": of_objects({"file_name": "train/9.png", "label": None}, **{"train/9.png": photo(9)}),
        "JSON in UTF-16": of_objects(b"\xff\xfe"),
        "tables of two kinds": of_objects(**{"metadata.csv": _table(*lines)}),
        "two data sets": partial(
            _open,
            write_folder(
                tmp_path / "two",
                {
                    f"{name}/{file}": content
                    for name in "ab"
                    for file, content in {"1.png": photo(1), "metadata.csv": _table("1.png,a")}.items()
                }
                | {"c/train/metadata.csv": _table("1.png,a")},
            ),
        ),
        "a path of Windows": opened(*lines, "train\\9.png,a"),
        "semicolons": opened(header="file_name;label"),
        "tabs and quotes": opened(header='"file_name"\t"label"'),
    }
    check_golden("metadata_csv_refusals.txt", refusals(cases, hidden={str(tmp_path): "PHOTOS"}))


@pytest.mark.parametrize("writer", [write_folder, write_tar])
def test_exported_labels_that_were_changed_on_purpose_are_refused(writer: Callable[..., Path], tmp_path: Path) -> None:
    header = "file_name,label,keep,labels_changed_on_purpose"
    table = _table(*(f"train/{i}.png,cat,true,1" for i in range(4)), header=header)
    images = {f"train/{i}.png": photo(i) for i in range(4)}
    with pytest.raises(InputError, match=r"metadata\.csv: has the column labels_changed_on_purpose: .*") as raised:
        _open(writer(tmp_path / "source", {**images, "metadata.csv": table}), test_size=0.25)
    assert raised.value.key == "prepare.path"
