"""Read the output of `prepare`, including the labels that it changed on purpose."""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.metrics import OptionalKeys, PrepareKeys, read_metrics
from pipeline.artifacts.provenance import file_digest
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import DataError, InputError
from pipeline.paths import DataPaths

TRUE_LABEL = "true_label"
"""Column of data/prepare/train.parquet, int64, only if labels were changed on purpose."""

_TRAINED_ON = ("path", "sha256", "val")

PLANTED_COLUMN = "labels_changed_on_purpose"
"""Column of the CSV tables: in every row, the number of training labels that were changed on purpose."""


def planted_note(n_planted: int) -> str:
    """Return the note on changed labels for reports, pages, figures and logs."""
    return f"labels changed on purpose: {n_planted:,}"


def count_planted(data: DataPaths) -> int | None:
    """Return the number of training labels that `prepare` changed on purpose; None if it changed none.

    In a round of `iterate` it is the number among all images, not among those kept: that would need the true labels.

    Raises:
        InputError: the metrics of `prepare` are missing or damaged.
    """
    n_planted: int | None = read_metrics(data.prepare_metrics, OptionalKeys).get("n_planted")
    return n_planted


def with_planted_column(table: pa.Table, n_planted: int | None) -> pa.Table:
    """State in every row how many labels were changed on purpose; the same table if none was."""
    if n_planted is None:
        return table
    return table.append_column(PLANTED_COLUMN, pa.array(np.full(len(table), n_planted)))


def read_true_labels(data: DataPaths) -> NDArray[np.int64] | None:
    """Return the true labels (N,) of the training images; None if no label was changed on purpose.

    Only the report, the visualizer and benchmarks may call this, and no stage that computes a result.

    Raises:
        InputError: the manifest is missing, damaged or contradicts the metrics of `prepare`.
    """
    n_planted = count_planted(data)
    if n_planted is None:
        return None
    file = data.manifest("train")
    manifest = read_parquet(file, {"label": pa.int64(), TRUE_LABEL: pa.int64()})
    true_labels: NDArray[np.int64] = manifest[TRUE_LABEL].to_numpy()
    if (n_wrong := int((true_labels != manifest["label"].to_numpy()).sum())) != n_planted:
        raise InputError(
            f"{file}: {n_wrong} labels differ from their {TRUE_LABEL}, and {data.prepare_metrics} says {n_planted}; "
            "run `dvc repro --force prepare`"
        )
    return true_labels


class ImageFiles:
    """Images that stay in their files, by sample id.

    Args:
        folder: base of `names`.
        names: (N,) text, column `path` of the manifest.
        sha256: (N,) text, of the bytes of each file when it was prepared.
    """

    def __init__(self, folder: Path, names: pa.ChunkedArray, sha256: pa.ChunkedArray) -> None:
        # Arrow columns of the manifest: a million Python strings would take 0.2 GB a process.
        self._folder, self._names, self._sha256 = folder, names, sha256

    def __len__(self) -> int:
        return len(self._names)

    def path(self, sample_id: int) -> Path:
        """Return the path of the image."""
        name: str = self._names[sample_id].as_py()
        return self._folder / name

    def read(self, sample_id: int) -> bytes:
        """Return the content of the file, verified by its hash.

        Raises:
            DataError: the file is missing, unreadable, or has changed.
        """
        path = self.path(sample_id)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; put the image back, or run prepare again without it") from None
        if hashlib.sha256(content).hexdigest() != self._sha256[sample_id].as_py():
            raise DataError(
                f"{path}: has changed since it was prepared; put the image back, or run `dvc repro --force prepare`"
            )
        return content


ImageSource = NDArray[np.uint8] | ImageFiles
"""Images of one split: uint8 (N, H, W, 3), may be memory-mapped, or files."""


@dataclass(frozen=True, kw_only=True)
class PreparedSplit:
    """Images and labels of one split.

    Attributes:
        images: uint8 (N, H, W, 3), memory-mapped; thumbnails if `files` is set.
        files: the images if `prepare.storage` is `files`.
        labels: int64 (N,).
    """

    images: NDArray[np.uint8]
    files: ImageFiles | None = None
    labels: NDArray[np.int64]

    @property
    def source(self) -> ImageSource:
        """The images that networks read."""
        return self.images if self.files is None else self.files


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """Both splits of a prepared data set.

    Attributes:
        image_size: largest side in pixels of the network's input.
        mean, std: of the stored pixels of the training images, per channel, in units of 0 to 1.
    """

    train: PreparedSplit
    test: PreparedSplit
    class_names: tuple[str, ...]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def load_prepared(data: DataPaths, *, folder: Path | None) -> PreparedData:
    """Map the images and read labels and metrics.

    Args:
        folder: `prepare.path`, which has the images if `prepare.storage` is `files`.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others.
    """
    metrics = read_metrics(data.prepare_metrics, PrepareKeys)
    n_classes = len(metrics["class_names"])
    splits = {}
    for split in ("train", "test"):
        labels = read_parquet(data.manifest(split), ["label"])["label"].to_numpy()
        if not len(labels) or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= n_classes:
            raise InputError(
                f"{data.manifest(split)}: its labels are not those of the {n_classes} classes in "
                f"{data.prepare_metrics}; run `dvc repro --force`"
            )
        images = open_array(data.images(split), dtype=np.uint8, ndim=4, rows=len(labels))
        files = _files(data, split, folder, metrics.get("files_in"))
        side = metrics["image_size"] if files is None else images.shape[1]
        if images.shape[1:] != (side, side, 3):
            raise InputError(f"{data.images(split)}: images of {images.shape[1:]}; run `dvc repro`")
        splits[split] = PreparedSplit(images=images, files=files, labels=labels.astype(np.int64))
    return PreparedData(
        **splits,
        class_names=tuple(metrics["class_names"]),
        image_size=metrics["image_size"],
        mean=tuple(metrics["mean"]),
        # A channel that is equal in all images carries nothing: centered, it is 0.
        std=tuple(value or 1.0 for value in metrics["std"]),
    )


def _files(data: DataPaths, split: str, folder: Path | None, files_in: str | None) -> ImageFiles | None:
    if files_in is None:
        return None
    if folder is None:
        raise InputError(f"{data.prepare_metrics}: the images are in files, and prepare.path is missing; give it")
    manifest = read_parquet(data.manifest(split), ["path", "sha256"])
    return ImageFiles(folder / files_in, manifest["path"], manifest["sha256"])


def prepared_files(data: DataPaths) -> list[Path]:
    """Return the files of images and manifests (with the labels) of both splits."""
    return [
        *(data.images(split) for split in ("train", "test")),
        *(data.manifest(split) for split in ("train", "test")),
    ]


def prepared_digest(data: DataPaths) -> str:
    """Return the SHA-256 of images and manifests of both splits, and the decoder's version if networks read files."""
    return " ".join([*(file_digest(path) for path in prepared_files(data)), *_decoder(data)])


def _decoder(data: DataPaths) -> list[str]:
    """Return the decoder of images that networks read from files: another version of Pillow has other decoders."""
    in_files = read_metrics(data.prepare_metrics, OptionalKeys).get("files_in") is not None
    return [f"files read by Pillow {metadata.version('pillow')}"] if in_files else []


def prepared_content(data: DataPaths) -> str:
    """Return a SHA-256 of images and of what runs read of the manifests, by values instead of the bytes of files.

    It includes the decoder's version if networks read files. A Parquet file has the version of pyarrow that wrote it:
    equal images and labels of two machines have other bytes.
    """
    digest = hashlib.sha256("".join(_decoder(data)).encode())
    for split in ("train", "test"):
        digest.update(file_digest(data.images(split)).encode())
        manifest = read_parquet(data.manifest(split), ["label"], optional=_TRAINED_ON)
        for name in sorted(manifest.column_names):
            digest.update(name.encode())
            _update_by_values(digest, manifest[name])
    return digest.hexdigest()


def prepared_digests(data: DataPaths) -> tuple[str, str]:
    """Return `prepared_digest` and `prepared_content`."""
    return prepared_digest(data), prepared_content(data)


def _update_by_values(digest: "hashlib._Hash", column: pa.ChunkedArray) -> None:
    """Add the values of a column of texts, integers or booleans, which may be missing."""
    missing = column.is_null()
    digest.update(missing.to_numpy().tobytes())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts = column.fill_null("")
        digest.update(pyarrow.compute.binary_length(texts).to_numpy().astype(np.int64).tobytes())
        # Bytes as Arrow has them: a million Python strings would take 0.2 GB.
        for chunk in texts.cast(pa.large_binary()).chunks:
            _, offsets, content = chunk.buffers()
            ends = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            digest.update(memoryview(content or b"")[ends[0] : ends[-1]] if len(chunk) else b"")
        return
    values = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy()
    wide = {"b": "|b1", "i": "<i8"}[values.dtype.kind]
    digest.update(wide.encode() + values.astype(wide).tobytes())
