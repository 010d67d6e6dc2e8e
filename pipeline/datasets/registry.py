"""Data sets by name: CIFAR and digits, which are built in, and folders of images."""

import hashlib
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.datasets.archives import check_sha256, fetch, load_plain_pickle
from pipeline.datasets.decode import resize
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import SPLITS, DatasetOptions, DecodedImage, ImageSet, Sample
from pipeline.datasets.splits import choose_test_rows
from pipeline.paths import expand_home

_SIDE = 32
_WHITE = 16
"""Largest value of the original pixels."""


@dataclass(frozen=True, kw_only=True)
class CifarArchive:
    """An archive of Krizhevsky 2009, Learning multiple layers of features from tiny images.

    Attributes:
        folder: folder of the members within the archive.
        members: by split, the members with its images.
        labels_key: key of the labels in the dictionary of a member.
        names_member: member with the class names.
        names_key: key of the class names in its dictionary.
    """

    name: str
    url: str
    sha256: str
    folder: str
    members: dict[str, tuple[str, ...]]
    labels_key: bytes
    names_member: str
    names_key: bytes


CIFAR10 = CifarArchive(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    folder="cifar-10-batches-py",
    members={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    labels_key=b"labels",
    names_member="batches.meta",
    names_key=b"label_names",
)
CIFAR100 = CifarArchive(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    folder="cifar-100-python",
    members={"train": ("train",), "test": ("test",)},
    labels_key=b"fine_labels",
    names_member="meta",
    names_key=b"fine_label_names",
)


def open_cifar(archive: CifarArchive, options: DatasetOptions) -> ImageSet:
    """Open the archive at `options.path`, or download it; its SHA-256 is checked before anything is unpickled.

    The `sha256` of an image is of its original pixels (32, 32, 3). One batch file at a time is in memory.

    Raises:
        InputError: the download failed, or the file has another SHA-256.
    """
    if options.path is not None:
        file = expand_home(options.path)
        check_sha256(file, archive.sha256, archive.url)
    else:
        file = options.downloads / archive.url.rsplit("/", 1)[1]
        fetch(archive.url, file, sha256=archive.sha256, progress=options.progress)
    names: Sequence[bytes] = ()
    labels: dict[str, list[int]] = {}
    for member, content in _members(file, archive):
        if member == archive.names_member:
            names = content[archive.names_key]
        else:
            labels[member] = content[archive.labels_key]
    samples = {split: _samples(archive, split, labels) for split in SPLITS}
    return ImageSet(
        class_names=tuple(name.decode() for name in names),
        train=tuple(sample for of_member in samples["train"].values() for sample in of_member),
        test=tuple(sample for of_member in samples["test"].values() for sample in of_member),
        decode=partial(_decode, file, archive, samples["train"] | samples["test"], options.image_size),
    )


def _samples(archive: CifarArchive, split: str, labels: dict[str, list[int]]) -> dict[str, list[Sample]]:
    """Return the samples by member, numbered consecutively in the published order of the members."""
    numbers = count()
    return {
        member: [
            Sample(path=f"{archive.name}/{split}/{next(numbers):05d}", label=int(label)) for label in labels[member]
        ]
        for member in archive.members[split]
    }


def _decode(
    file: Path, archive: CifarArchive, samples: dict[str, list[Sample]], image_size: int
) -> Iterator[DecodedImage]:
    for member, content in _members(file, archive):
        if member == archive.names_member:
            continue
        # Stored as planes of red, green and blue.
        planes: NDArray[np.uint8] = content[b"data"].reshape(-1, 3, _SIDE, _SIDE)
        for sample, image in zip(samples[member], np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), strict=True):
            yield DecodedImage(
                path=sample.path,
                pixels=resize(Image.fromarray(image), image_size),
                sha256=hashlib.sha256(image.tobytes()).hexdigest(),
            )


def _members(file: Path, archive: CifarArchive) -> Iterator[tuple[str, dict[bytes, Any]]]:
    """Yield the unpickled members in the order of the archive: going back would decompress it again."""
    needed = {archive.names_member, *archive.members["train"], *archive.members["test"]}
    with tarfile.open(file) as tar:
        for entry in tar:
            folder, _, member = entry.name.partition("/")
            if folder == archive.folder and member in needed:
                stream = tar.extractfile(entry)
                assert stream is not None
                yield member, load_plain_pickle(stream.read(), source=f"{file}: {member}")


def open_digits(options: DatasetOptions) -> ImageSet:
    """Open the 1,797 handwritten digits of scikit-learn, which need no download.

    The fraction `test_size` of each class becomes the test split. The `sha256` of an image is of its original 8x8
    values.
    """
    from sklearn.datasets import load_digits  # a second to import; only this data set needs it

    assert options.test_size is not None
    bunch = load_digits()
    values: NDArray[np.uint8] = bunch.images.astype(np.uint8)
    samples = [Sample(path=f"digits/{i:04d}", label=int(label)) for i, label in enumerate(bunch.target)]
    held_out = choose_test_rows(
        [sample.path for sample in samples], [sample.label for sample in samples], options.test_size, seed=options.seed
    )

    def decode() -> Iterator[DecodedImage]:
        for sample, image in zip(samples, values, strict=True):
            gray = Image.fromarray(np.rint(image * (255 / _WHITE)).astype(np.uint8))
            yield DecodedImage(
                path=sample.path,
                pixels=resize(gray.convert("RGB"), options.image_size),
                sha256=hashlib.sha256(image.tobytes()).hexdigest(),
            )

    return ImageSet(
        class_names=tuple(str(name) for name in bunch.target_names),
        train=tuple(sample for sample, out in zip(samples, held_out, strict=True) if not out),
        test=tuple(sample for sample, out in zip(samples, held_out, strict=True) if out),
        decode=decode,
    )


DATASETS: dict[str, Callable[[DatasetOptions], ImageSet]] = {
    "digits": open_digits,
    "cifar10": partial(open_cifar, CIFAR10),
    "cifar100": partial(open_cifar, CIFAR100),
    "image_folder": open_image_folder,
}
