"""Made-up image files, folders and archives of them, and the stage `prepare` run on them."""

import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from made_up import write_params
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.prepared import ImageFiles
from pipeline.datasets.image_set import Counter, DatasetOptions
from pipeline.paths import DataPaths
from pipeline.stages.harness import run_stage
from pipeline.stages.prepare import prepare


def encode(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def photo(seed: int, size: tuple[int, int] = (12, 9), file_format: str = "PNG") -> bytes:
    """An encoded RGB image of random blocks; different seeds, different images."""
    blocks = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return encode(Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST), file_format)


def image_files(paths: Sequence[Path]) -> ImageFiles:
    """The images in these files, as they are now."""
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    return ImageFiles(Path("/"), pa.chunked_array([[str(path) for path in paths]]), pa.chunked_array([digests]))


def huge_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be an image of this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def split_tree(classes: Sequence[str] = ("cat", "dog"), n_train: int = 4, n_test: int = 2) -> dict[str, bytes]:
    """Files of train/<class>/ and test/<class>/, all different."""
    names = [
        f"{split}/{name}/{i}.png"
        for split, n in (("train", n_train), ("test", n_test))
        for name in classes
        for i in range(n)
    ]
    return {name: photo(seed) for seed, name in enumerate(names)}


def one_tree(classes: Sequence[str] = ("cat", "dog"), n: int = 6) -> dict[str, bytes]:
    """Files of <class>/, all different."""
    names = [f"{name}/{i}.png" for name in classes for i in range(n)]
    return {name: photo(seed) for seed, name in enumerate(names)}


def write_folder(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_tar(path: Path, files: Mapping[str, bytes], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


class NoCounter:
    """Shows nothing."""

    def update(self, n: int = 1) -> None:
        pass


@contextmanager
def no_progress(description: str, total: int, unit: str) -> Iterator[Counter]:
    yield NoCounter()


def dataset_options(path: Path | None, **changes: Any) -> DatasetOptions:
    """Images of 8 x 8 pixels, no test share, no download."""
    defaults: dict[str, Any] = {
        "path": path,
        "image_size": 8,
        "test_share": None,
        "max_megapixels": 1.0,
        "seed": 0,
        "downloads": Path("not-to-be-written"),
        "progress": no_progress,
    }
    return DatasetOptions(**{**defaults, **changes})


def run_prepare(folder: Path, path: Path | None, **config: Any) -> DataPaths:
    """Run the stage in this process on an image folder, with artefacts in `folder`/data.

    Raises SystemExit with the stage's exit code if it fails.
    """
    settings: dict[str, Any] = {"dataset": "image_folder", "image_size": 8, "test_share": None}
    settings["path"] = None if path is None else str(path)
    write_params(folder, prepare={**settings, **config})
    arguments = {"--params": folder / "params.yaml", "--data": folder / "data", "--work": folder / "work"}
    run_stage("prepare", prepare, argv=[str(part) for pair in arguments.items() for part in pair])
    return DataPaths(root=folder / "data")


def python2_pickle(value: Any) -> bytes:
    """As Python 2 and NumPy 1 pickled it, which is how the CIFAR archives were made: bytes are its strings."""
    # The pickler written in Python can be told how to write a type; mypy does not know of it.
    pickler_class: Any = pickle._Pickler

    def save_bytes(pickler: Any, data: bytes) -> None:
        pickler.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        pickler.memoize(data)

    buffer = io.BytesIO()
    pickler = pickler_class(buffer, protocol=2)
    pickler.dispatch = {**pickler_class.dispatch, bytes: save_bytes}
    pickler.dump(value)
    return buffer.getvalue().replace(b"numpy._core.", b"numpy.core.")


def cifar10_archive(path: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Path:
    """An archive of CIFAR-10's layout.

    Args:
        pixels: (6 * n, 32, 32, 3): n for each of the five training batches, then the test batch.
        labels: (6 * n,), 0 to 9.
    """
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    files = {"readme.html": b"<html>", "batches.meta": python2_pickle({b"label_names": _CIFAR10_NAMES})}
    for name, images, classes in zip(names, np.split(pixels, 6), np.split(labels, 6), strict=True):
        planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1).copy()
        content = {b"batch_label": b"", b"labels": classes.tolist(), b"data": planes}
        files[name] = python2_pickle(content)
    # The published archive is in no particular order either.
    scrambled = {f"cifar-10-batches-py/{name}": files[name] for name in sorted(files, reverse=True)}
    return write_tar(path, scrambled, "w:gz")


_CIFAR10_NAMES = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
