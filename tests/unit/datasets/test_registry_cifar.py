"""CIFAR's archives, made up in the published layout."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets
from numpy.typing import NDArray

from pipeline.artifacts.provenance import sha256_of_file
from pipeline.datasets.image_set import DecodedImage, ImageSet, Sample
from pipeline.datasets.registry import CIFAR10, CIFAR100, CifarArchive, open_cifar
from pipeline.errors import InputError
from tests.fixtures.images import cifar10_archive, dataset_options, python2_pickle, write_tar

_PER_BATCH = 20
_PIXELS = np.random.default_rng(0).integers(0, 256, (6 * _PER_BATCH, 32, 32, 3), dtype=np.uint8)
_LABELS = np.arange(6 * _PER_BATCH) % 10


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return cifar10_archive(tmp_path / "local.tar.gz", _PIXELS, _LABELS)


def _as_published(archive: Path) -> CifarArchive:
    return replace(CIFAR10, sha256=sha256_of_file(archive))


def _pixels(images: ImageSet, samples: Sequence[Sample]) -> NDArray[np.uint8]:
    decoded = {image.path: image for image in images.decode() if isinstance(image, DecodedImage)}
    return np.stack([decoded[sample.path].pixels for sample in samples])


def test_images_labels_and_order(archive: Path) -> None:
    images = open_cifar(_as_published(archive), dataset_options(archive, image_size=32))
    n_train = 5 * _PER_BATCH
    assert images.class_names[3] == "cat"
    np.testing.assert_array_equal(images.labels("train"), _LABELS[:n_train])
    np.testing.assert_array_equal(images.labels("test"), _LABELS[n_train:])
    np.testing.assert_array_equal(_pixels(images, images.train), _PIXELS[:n_train])
    np.testing.assert_array_equal(_pixels(images, images.test), _PIXELS[n_train:])
    assert images.train[0].path == "cifar10/train/00000"
    assert images.test[-1].path == f"cifar10/test/{_PER_BATCH - 1:05d}"


def test_torchvision_reads_the_made_up_archive_alike(archive: Path, tmp_path: Path, monkeypatch: object) -> None:
    """The made-up layout is the published one, as far as torchvision can tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda self: True)
        patch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *args: True)
        torchvision.datasets.utils.extract_archive(str(archive), str(tmp_path))
        theirs = torchvision.datasets.CIFAR10(tmp_path, train=True)
    np.testing.assert_array_equal(theirs.data, _PIXELS[: 5 * _PER_BATCH])
    assert theirs.targets == _LABELS[: 5 * _PER_BATCH].tolist()


def test_hash_is_of_the_original_pixels_at_any_size(archive: Path) -> None:
    for size in (8, 32):
        images = open_cifar(_as_published(archive), dataset_options(archive, image_size=size))
        first = {image.path: image for image in images.decode()}["cifar10/train/00000"]
        assert isinstance(first, DecodedImage)
        assert first.pixels.shape == (size, size, 3)
        assert first.sha256 == hashlib.sha256(_PIXELS[0].tobytes()).hexdigest()


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    def content(n: int) -> bytes:
        labels = {b"fine_labels": [label % 3 for label in range(n)], b"coarse_labels": [0] * n}
        return python2_pickle({**labels, b"data": np.full((n, 3072), n, dtype=np.uint8)})

    names = {b"fine_label_names": [b"apple", b"bear", b"can"], b"coarse_label_names": [b"thing"]}
    members = {"meta": python2_pickle(names), "test": content(3), "train": content(6)}
    path = write_tar(
        tmp_path / "a.tar.gz", {f"cifar-100-python/{name}": data for name, data in members.items()}, "w:gz"
    )
    images = open_cifar(replace(CIFAR100, sha256=sha256_of_file(path)), dataset_options(path))
    assert images.class_names == ("apple", "bear", "can")
    assert images.labels("train").tolist() == [0, 1, 2, 0, 1, 2]
    assert images.labels("test").tolist() == [0, 1, 2]
    assert (_pixels(images, images.test) == 3).all()


def test_nothing_is_unpickled_before_the_checksum_is_right(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "Unpickler", never)
    monkeypatch.setattr("pipeline.datasets.registry.load_plain_pickle", never)
    with pytest.raises(InputError) as refused:
        open_cifar(CIFAR10, dataset_options(archive))
    assert CIFAR10.sha256 in str(refused.value)


def test_download_is_kept_and_used(archive: Path, tmp_path: Path) -> None:
    """urllib opens file addresses too, which needs no server; test_archives_downloads has one."""
    published = replace(_as_published(archive), url=archive.as_uri())
    downloads = tmp_path / "downloads"
    images = open_cifar(published, dataset_options(None, downloads=downloads))
    assert len(images.train) == 5 * _PER_BATCH
    assert sha256_of_file(downloads / "local.tar.gz") == published.sha256
    archive.unlink()
    open_cifar(published, dataset_options(None, downloads=downloads))


@pytest.mark.parametrize(
    ("ours", "theirs"), [(CIFAR10, torchvision.datasets.CIFAR10), (CIFAR100, torchvision.datasets.CIFAR100)]
)
def test_the_archive_is_the_one_that_torchvision_downloads(
    ours: CifarArchive, theirs: type[torchvision.datasets.CIFAR10]
) -> None:
    assert ours.url == theirs.url
    assert ours.folder == theirs.base_folder
    assert ours.members["train"] == tuple(name for name, _ in theirs.train_list)
    assert ours.members["test"] == tuple(name for name, _ in theirs.test_list)
    assert ours.names_member == theirs.meta["filename"]
    assert ours.names_key.decode() == theirs.meta["key"]
