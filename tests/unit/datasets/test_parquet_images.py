"""Folders of Parquet shards, as cloned from the Hugging Face hub."""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.datasets import parquet_images
from pipeline.datasets.decode import decode_image
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import DecodedImage, ImageSet, UnreadableImage
from pipeline.datasets.table_labels import card_class_names, split_of
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.hub_folders import IMAGE_TYPE, card, clone, rows, write_shard
from tests.fixtures.images import dataset_options, huge_png, one_tree, photo, write_folder, write_zip


def _open(root: Path, **options: Any) -> ImageSet:
    return open_image_folder(dataset_options(root, **options))


def _labels(images: ImageSet, split: str) -> list[str]:
    return [images.class_names[sample.label] for sample in images.samples(split)]


def test_shards_become_images_with_the_names_of_the_card(tmp_path: Path) -> None:
    images = _open(clone(tmp_path, names=("dog", "cat")))
    assert images.class_names == ("dog", "cat")
    assert [sample.path for sample in images.train] == [f"train/{i:04d}.png" for i in range(8)]
    assert [sample.path for sample in images.test] == [f"test/{i:04d}.png" for i in range(8, 12)]
    assert _labels(images, "train") == ["dog", "cat"] * 4
    assert images.files_in is None
    assert "2 Parquet" not in images.description
    assert "3 Parquet shards" in images.description
    seen = list(images.decode())
    assert [image.path for image in seen] == [f"test/{i:04d}.png" for i in range(8, 12)] + [
        f"train/{i:04d}.png" for i in range(8)
    ]
    for seed, image in zip([*range(8, 12), *range(8)], seen, strict=True):
        assert isinstance(image, DecodedImage)
        content = photo(seed)
        assert image.sha256 == hashlib.sha256(content).hexdigest()
        np.testing.assert_array_equal(image.pixels, decode_image(content, 8, max_megapixels=1))


def test_images_are_read_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Counting(pyarrow.parquet.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, **options: Any) -> Any:
            for batch in super().iter_batches(**options):
                sizes.append(len(batch))
                yield batch

        def read_row_group(self, group: int, columns: list[str]) -> Any:
            assert columns == ["label", "image.path"], "the images themselves are not read for the labels"
            return super().read_row_group(group, columns=columns)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counting)
    monkeypatch.setattr(parquet_images, "_BATCH_ROWS", 2)
    images = _open(clone(tmp_path, n_train=20))
    assert sizes == []
    assert len(list(images.decode())) == 24
    assert max(sizes) <= 2


@pytest.mark.parametrize(
    ("labels", "label_type", "names", "classes"),
    [
        ([0, 1, 0, 1, 0, 1], pa.int64(), ["b", "a"], ["b", "a"]),
        ([10, 9, 10, 9, 10, 9], pa.int32(), None, ["9", "10"]),
        (["dog", " cat"] * 3, pa.string(), None, ["cat", "dog"]),
        (["dog", "cat"] * 3, pa.string(), ["dog", "cat"], ["dog", "cat"]),
        (["dog", "cat"] * 3, pa.dictionary(pa.int8(), pa.string()), None, ["cat", "dog"]),
    ],
)
def test_labels_are_numbers_or_names(
    labels: list[Any], label_type: pa.DataType, names: list[str] | None, classes: list[str], tmp_path: Path
) -> None:
    write_shard(tmp_path / "train.parquet", rows(0, 6), labels, label_type=label_type, names_in_schema=names)
    write_shard(tmp_path / "test.parquet", rows(6, 6), labels, label_type=label_type, names_in_schema=names)
    images = _open(tmp_path)
    expected = [names[label] if names and isinstance(label, int) else str(label).strip() for label in labels]
    assert _labels(images, "train") == _labels(images, "test") == expected
    assert images.class_names == tuple(classes)


def test_another_label_column_and_bytes_without_a_struct(tmp_path: Path) -> None:
    for split in ("train", "test"):
        content = [photo(seed) for seed in range(4)]
        write_shard(
            tmp_path / f"{split}.parquet", content, ["a", "b"] * 2, label_column="kind", image_type=pa.large_binary()
        )
    images = _open(tmp_path, label_column="kind")
    assert [sample.path for sample in images.train] == [f"train/{row:06d}" for row in range(4)]
    assert sum(isinstance(image, DecodedImage) for image in images.decode()) == 8


def test_paths_are_unique_whatever_the_rows_say(tmp_path: Path) -> None:
    images = rows(0, 6)
    images[3]["path"] = "/photos/0000.png"
    write_shard(tmp_path / "train-0.parquet", images, ["a", "b"] * 3)
    images = [{**row, "path": f"C:\\photos\\{i}.png"} for i, row in enumerate(images)]
    write_shard(tmp_path / "test-0.parquet", images, ["a", "b"] * 3)
    found = _open(tmp_path)
    assert [sample.path for sample in found.train] == [f"train/{row:06d}" for row in range(6)]
    assert [sample.path for sample in found.test] == [f"test/{row}.png" for row in range(6)]


@pytest.mark.parametrize(("hidden", "named"), [(-1, ["a", "b"]), (None, None)])
def test_validation_is_the_test_split_where_the_test_has_no_labels(
    hidden: int | None, named: list[str] | None, tmp_path: Path
) -> None:
    for split, labels in (("train", [0, 1] * 2), ("validation", [0, 1] * 2), ("test", [hidden] * 4)):
        name = tmp_path / f"data/{split}-00000-of-00001.parquet"
        write_shard(name, rows(0, 4), labels, label_type=pa.int64(), names_in_schema=named)
    images = _open(tmp_path)
    assert {sample.path.partition("/")[0] for sample in images.test} == {"validation"}
    assert "validation is the test split" in images.description
    assert "split test is not used: it has no labels" in images.description


@pytest.mark.parametrize("name", ["train-00000-of-00001.parquet", "data.parquet"])
def test_one_split_is_divided(name: str, tmp_path: Path) -> None:
    write_shard(tmp_path / name, rows(0, 20), ["a", "b"] * 10)
    images = _open(tmp_path, test_size=0.2)
    assert (np.bincount(images.labels("train")).tolist(), np.bincount(images.labels("test")).tolist()) == (
        [8, 8],
        [2, 2],
    )
    with pytest.raises(InputError, match=r"prepare\.test_size: missing"):
        _open(tmp_path)


def test_unreadable_rows_are_named_and_may_be_left_out(tmp_path: Path) -> None:
    clone(tmp_path)
    images = rows(0, 4)
    images[0]["bytes"], images[1]["bytes"], images[2]["bytes"] = None, b"no image", huge_png(5000, 5000)
    write_shard(tmp_path / "data/train-00000-of-00002.parquet", [*images[:3], None], [0, 1, 0, 1])
    opened = _open(tmp_path)
    reasons = {image.path: image.reason for image in opened.decode() if isinstance(image, UnreadableImage)}
    # A row without an image has no name: then all rows of the split are numbered.
    assert reasons == {
        "train/000000": "has no bytes in its shard",
        "train/000001": "not an image of a known format",
        "train/000002": "5000x5000 pixels, more than 1 megapixels",
        "train/000003": "has no bytes in its shard",
    }
    rest = _open(tmp_path, exclude=frozenset(reasons))
    assert [sample.path for sample in rest.train] == [f"train/{row:06d}" for row in range(4, 8)]
    assert len(list(rest.decode())) == 8


def test_tables_next_to_class_folders_are_not_read(tmp_path: Path) -> None:
    write_folder(tmp_path, one_tree())
    pa.parquet.write_table(pa.table({"path": ["cat/0.png"], "embedding": [[0.5]]}), tmp_path / "features.parquet")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    assert _open(tmp_path, test_size=0.5).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["self-training/train", "self-training/test"], ["train", "test"]),
        (["train_v1/part0", "train_v1/test"], ["train", "test"]),
        (["train/test_part", "test/train_part"], ["train", "test"]),
        (["train/eval/0", "val/train/0"], ["train", "validation"]),
        (["data/test_validated", "data/valid-dev"], ["test", "validation"]),
        (["train_v1/test_v1/a", "data/0"], ["test", None]),
        (["train_val/train/a", "train_val/test"], ["train", "test"]),
    ],
)
def test_the_own_name_of_a_shard_decides_before_words_in_folders(names: list[str], expected: list[str | None]) -> None:
    assert [split_of(f"{name}.parquet", "here") for name in names] == expected


@pytest.mark.parametrize("name", ["data/train_test.parquet", "train_val/0.parquet"])
def test_two_splits_in_one_name_are_refused(name: str, tmp_path: Path) -> None:
    write_shard(tmp_path / name, rows(0, 4), ["a", "b"] * 2)
    with pytest.raises(InputError, match=re.escape(name)):
        _open(tmp_path, test_size=0.5)


def test_aliases_of_a_card_are_not_expanded() -> None:
    levels = "".join(f"- &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    names = "dataset_info:\n  features:\n  - name: label\n    dtype: {class_label: {names: [%s, b]}}\n"
    for matter in (f"x:\n- &a0 [a]\n{levels}{names % '*a8'}", names % "[a]", names % "{a: 1}"):
        with pytest.raises(InputError, match=r"README\.md") as raised:
            card_class_names(f"---\n{matter}---\n", "label", "README.md")
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["!!int x", "!!timestamp x", "!!float 1:x", "2020-99-01", "!!bool x"])
def test_any_error_of_the_parser_is_one_line(value: str) -> None:
    with pytest.raises(InputError, match=r"README\.md: its front matter is not YAML"):
        card_class_names(f"---\na: {value}\n---\n", "label", "README.md")


def test_a_byte_order_mark_hides_no_class_names() -> None:
    assert card_class_names(f"\ufeff{card(['dog', 'cat'])}", "label", "README.md") == ("dog", "cat")


@pytest.mark.slow
def test_a_card_may_have_the_classes_of_imagenet_21k() -> None:
    found = card_class_names(card([f"n{i}" for i in range(21_841)]), "label", "README.md")
    assert found is not None
    assert len(found) == 21_841


def test_no_names_are_no_class_names(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_shard(tmp_path / f"{split}.parquet", rows(0, 4), ["a", "b"] * 2, names_in_schema=[])
    (tmp_path / "README.md").write_text(card([]).replace("names:\n", "names: []\n"), encoding="utf-8")
    assert _open(tmp_path).class_names == ("a", "b")


@pytest.mark.parametrize("seeds", [range(8), [0] * 8])
def test_batches_of_large_images_are_smaller(
    seeds: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal images are one value of a dictionary in the file, but not in memory."""
    sizes: list[int] = []

    class Counting(pyarrow.parquet.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, **options: Any) -> Any:
            for batch in super().iter_batches(**options):
                sizes.append(batch.nbytes)
                yield batch

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counting)
    monkeypatch.setattr(parquet_images, "_BATCH_BYTES", 1 << 18)
    images = [{"bytes": bytes([seed]) * (1 << 16), "path": f"{i}.png"} for i, seed in enumerate(seeds)]
    for split in ("train", "test"):
        write_shard(tmp_path / f"{split}.parquet", images, ["a", "b"] * 4, row_group_size=8)
    monkeypatch.setattr(parquet_images, "_MAX_RATIO", 1000)
    assert len(list(_open(tmp_path).decode())) == 16
    assert max(sizes) <= 1 << 18


def _broken(root: Path, change: Callable[[Path], object], **options: Any) -> Callable[[], object]:
    clone(root)
    change(root)
    return partial(_open, root, **options)


_FIRST, _SECOND, _TEST = (
    f"data/{name}.parquet" for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")
)


def test_refusals(tmp_path: Path) -> None:
    def replaced(name: str, images: Any = None, labels: Any = (0, 1, 0, 1), **options: Any) -> Callable[[Path], object]:
        return lambda root: write_shard(root / name, rows(0, 4) if images is None else images, labels, **options)

    changes: dict[str, Callable[[Path], object]] = {
        "a pointer of Git LFS": lambda root: (root / _FIRST).write_text("version https://git-lfs.github.com/spec/v1\n"),
        "a shard is missing": lambda root: (root / _SECOND).unlink(),
        "two subsets": lambda root: write_shard(root / "fashion/train.parquet", rows(0, 4), [0, 1, 0, 1]),
        "a shard without a split": lambda root: write_shard(root / "data/more.parquet", rows(0, 4), [0, 1, 0, 1]),
        "no training split": lambda root: [(root / name).rename(root / "old") for name in (_FIRST, _SECOND)],
        "no label column": replaced(_TEST, label_column="species"),
        "no image column": replaced(_TEST, images=["a"] * 4, image_type=pa.string()),
        "labels of another type": replaced(_TEST, labels=[0.5] * 4),
        "a label out of range": replaced(_SECOND, labels=[0, 1, 2, 1]),
        "a label below -1": replaced(_SECOND, labels=[0, 1, -2, 1]),
        "an unknown name": replaced(_SECOND, labels=["cat", "dog", "cow", "dog"]),
        "unlabeled among labeled": replaced(_SECOND, labels=[0, -1, 0, None]),
        "a NUL byte in a name": replaced(_FIRST, images=[{"bytes": photo(0), "path": "a\0.png"}, *rows(1, 3)]),
        "other names in the shards": replaced(_TEST, names_in_schema=["cat", "cow"]),
        "a class name twice": lambda root: (root / "README.md").write_text(card(["cat", "cat"])),
        "two lists of class names": lambda root: (root / "README.md").write_text(
            card(["cat", "dog"]).replace(
                "  splits", card(["a", "b"]).split("features:\n")[1].split("  splits")[0] + "  splits"
            )
        ),
        "other names in the first shard": replaced(_FIRST, names_in_schema=["cat", "cow"]),
    }
    cases = {name: _broken(tmp_path / str(i), change) for i, (name, change) in enumerate(changes.items())}
    cases["another label column"] = _broken(tmp_path / "label", lambda root: None, label_column="breed")
    cases["a test fraction"] = _broken(tmp_path / "size", lambda root: None, test_size=0.2)
    shard = clone(tmp_path / "zipped") / _FIRST
    cases["in an archive"] = partial(_open, write_zip(tmp_path / "a.zip", {"train.parquet": shard.read_bytes()}))
    twice = pa.table(
        [pa.array(rows(0, 4), IMAGE_TYPE), pa.array([0, 1, 0, 1]), pa.array([1] * 4)], ["image", "label", "label"]
    )
    cases["a column twice"] = _broken(tmp_path / "twice", lambda root: pa.parquet.write_table(twice, root / _FIRST))
    check_golden("parquet_refusals.txt", refusals(cases, hidden={str(tmp_path): "PHOTOS"}))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """The messages end in those of the libraries."""
    for number, (name, content, expected) in enumerate(
        [
            (_FIRST, b"PAR1 cut off", "not readable as Parquet"),
            (_SECOND, b"", "not readable as Parquet"),
            ("README.md", b"---\na: [\n---\n", "front matter is not YAML"),
        ]
    ):
        root = clone(tmp_path / str(number))
        (root / name).write_bytes(content)
        with pytest.raises(InputError, match=expected) as raised:
            _open(root)
        assert str(root / name) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_page_damaged_within_the_images_is_named(tmp_path: Path) -> None:
    shard = clone(tmp_path) / _SECOND
    images = _open(tmp_path)
    content = bytearray(shard.read_bytes())
    content[4:400] = bytes(396)
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"train-00001-of-00002\.parquet: not readable as Parquet"):
        list(images.decode())


def test_a_data_set_that_the_library_wrote(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the library: pip install -e '.[datasets]'")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
    folder = write_folder(tmp_path / "source", {f"{i}.png": photo(i) for i in range(12)})
    for split, numbers in (("train", range(8)), ("test", range(8, 12))):
        content = {"image": [str(folder / f"{i}.png") for i in numbers], "label": [i % 2 for i in numbers]}
        written = datasets.Dataset.from_dict(content, features=features)
        (tmp_path / "hub/data").mkdir(parents=True, exist_ok=True)
        embedded = written.with_format("arrow").map(datasets.table.embed_table_storage, batched=True)
        embedded.to_parquet(str(tmp_path / f"hub/data/{split}-00000-of-00001.parquet"))
    images = _open(tmp_path / "hub")
    assert images.class_names == ("dog", "cat")
    assert _labels(images, "train") == ["dog", "cat"] * 4
    assert [sample.path for sample in images.test] == [f"test/{i}.png" for i in range(8, 12)]
    hashes = {image.path: image.sha256 for image in images.decode() if isinstance(image, DecodedImage)}
    assert hashes["train/3.png"] == hashlib.sha256(photo(3)).hexdigest()
