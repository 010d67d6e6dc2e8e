"""Arrays appear whole, or not at all."""

from collections import namedtuple
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.datasets.image_set import DecodedImage, ImageSet, Sample, UnreadableImage, check_classes
from pipeline.datasets.store import StoredImages, store_images
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.images import no_progress

_SIZE = 8


class _Interrupted(BaseException):
    pass


def _image_set(exclude: frozenset[str] = frozenset(), *, bad: str = "", interrupt: bool = False) -> ImageSet:
    """Two classes, 4 training and 2 test images; decoded in reverse. Image i of a split has the value i."""

    def samples(split: str, n: int) -> tuple[Sample, ...]:
        every = (Sample(path=f"{split}/{i}", label=i % 2) for i in range(n))
        return tuple(sample for sample in every if sample.path not in exclude)

    train, test = samples("train", 6), samples("test", 4)

    def decode() -> Iterator[DecodedImage | UnreadableImage]:
        for sample in reversed((*train, *test)):
            if sample.path == "train/2" and interrupt:
                raise _Interrupted
            if sample.path in bad.split():
                yield UnreadableImage(path=sample.path, reason="torn")
            else:
                value = int(sample.path.split("/")[1])
                pixels = np.full((_SIZE, _SIZE, 3), value, dtype=np.uint8)
                yield DecodedImage(path=sample.path, pixels=pixels, sha256=f"hash of {sample.path}")

    return ImageSet(class_names=("cat", "dog"), train=train, test=test, decode=decode)


def _store(folder: Path, *, bad: str = "", skip: bool = False, interrupt: bool = False) -> StoredImages:
    return store_images(
        lambda exclude: _image_set(exclude, bad=bad, interrupt=interrupt),
        {split: folder / f"{split}.npy" for split in ("train", "test")},
        stale_files=[folder / "stale"],
        source="here",
        image_size=_SIZE,
        skip_unreadable=skip,
        progress=no_progress,
    )


def test_rows_and_hashes_are_in_the_samples_order(tmp_path: Path) -> None:
    stored = _store(tmp_path)
    for split, n in (("train", 6), ("test", 4)):
        pixels = np.load(tmp_path / f"{split}.npy")
        assert pixels.shape == (n, _SIZE, _SIZE, 3)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels[:, 0, 0, 0], np.arange(n))
        assert stored.sha256[split] == [f"hash of {split}/{i}" for i in range(n)]
    assert stored.unreadable == {}


def test_skipped_images_leave_no_gap(tmp_path: Path) -> None:
    stored = _store(tmp_path, bad="train/3 train/0 test/1", skip=True)
    assert np.load(tmp_path / "train.npy")[:, 0, 0, 0].tolist() == [1, 2, 4, 5]
    assert np.load(tmp_path / "test.npy")[:, 0, 0, 0].tolist() == [0, 2, 3]
    assert stored.sha256["train"] == [f"hash of train/{i}" for i in (1, 2, 4, 5)]
    assert [sample.path for sample in stored.images.test] == ["test/0", "test/2", "test/3"]
    assert list(stored.unreadable.items()) == [("test/1", "torn"), ("train/0", "torn"), ("train/3", "torn")]


def test_files_that_fail_later_are_skipped_too(tmp_path: Path) -> None:
    """As on a flaky network drive: the second pass finds another."""
    bad = iter(["train/0", "train/1", ""])
    stored = store_images(
        lambda exclude: _image_set(exclude, bad=next(bad)),
        {split: tmp_path / f"{split}.npy" for split in ("train", "test")},
        stale_files=[],
        source="here",
        image_size=_SIZE,
        skip_unreadable=True,
        progress=no_progress,
    )
    assert list(stored.unreadable) == ["train/0", "train/1"]
    assert np.load(tmp_path / "train.npy")[:, 0, 0, 0].tolist() == [2, 3, 4, 5]


def test_unreadable_images_are_counted_and_the_first_named(tmp_path: Path) -> None:
    (tmp_path / "train.npy").write_bytes(b"earlier")
    (tmp_path / "stale").write_bytes(b"earlier")
    with pytest.raises(InputError) as raised:
        _store(tmp_path, bad="train/3 train/0 test/1")
    check_golden("refused_unreadable_images.txt", f"three images that cannot be read -> {raised.value}\n")
    _check_untouched(tmp_path)


def _check_untouched(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"train.npy": b"earlier", "stale": b"earlier"}


def test_interruption_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "train.npy").write_bytes(b"earlier")
    (tmp_path / "stale").write_bytes(b"earlier")
    with pytest.raises(_Interrupted):
        _store(tmp_path, interrupt=True)
    _check_untouched(tmp_path)


def test_files_of_earlier_arrays_go_when_the_new_ones_come(tmp_path: Path) -> None:
    (tmp_path / "stale").write_bytes(b"earlier")
    _store(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.npy", "train.npy"]


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1000, 0, 1000))
    with pytest.raises(InputError) as refused:
        _store(tmp_path)
    assert refused.value.key == str(tmp_path / "train.npy")
    assert list(tmp_path.iterdir()) == []


def _counts(train: list[int], test: list[int], names: tuple[str, ...]) -> ImageSet:
    return ImageSet(
        class_names=names,
        train=tuple(Sample(path=f"train/{i}", label=label) for i, label in enumerate(train)),
        test=tuple(Sample(path=f"test/{i}", label=label) for i, label in enumerate(test)),
        decode=lambda: iter(()),
    )


def test_least_number_of_images() -> None:
    check_classes(_counts([0, 0, 1, 1], [0, 1], ("cat", "dog")), "here")


def test_too_few_images() -> None:
    images = {
        "one class": _counts([0, 0], [0], ("cat",)),
        "no class": _counts([], [], ()),
        "one training image": _counts([0, 0, 1], [0, 1], ("cat", "dog")),
        "no test image": _counts([0, 0, 1, 1], [0], ("cat", "dog")),
        "too few of every class": _counts([0, 2], [0], ("cat", "dog", "emu")),
    }
    check_golden(
        "refused_classes.txt",
        refusals({name: partial(check_classes, image_set, "here") for name, image_set in images.items()}),
    )
