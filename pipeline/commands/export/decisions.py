"""Read the filter's decisions, build the tables of `export` from them, and write its shards of images.

Shards are as the Hugging Face hub stores images: a struct of bytes and path, and class names in the schema.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.files import atomic_path, read_json
from pipeline.artifacts.prepared import count_planted, with_planted_column
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.image_set import ImageSet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.run_log import Progress

_POINTS = {
    "sample_id": pa.int64(), "path": pa.string(), "label": pa.int64(), "label_name": pa.string(), "keep": pa.bool_(),
    "score": pa.float64(), "reason": pa.string(), "corrected_label": pa.int64(), "corrected_label_name": pa.string(),
}  # fmt: skip
_SUGGESTION = "suggested_label_name"
_IMAGES = {"path": pa.string(), "sha256": pa.string(), "label": pa.int64(), "label_name": pa.string()}

_IMAGE_FIELD = pa.struct({"bytes": pa.binary(), "path": pa.string()})
# A row is a complete image file: few of them are in memory at a time.
_ROWS = 64
# `push_to_hub` of the library `datasets` writes as large ones.
_SHARD_BYTES = 500 * 10**6
_SAMPLED_ROWS = 256
_FEATURES = {pa.float64(): "float64", pa.string(): "string", pa.int64(): "int64"}

ImageReader = Callable[[int], tuple[bytes, str]]
"""From a row of the split to the content and the path of an image file."""


@dataclass(frozen=True, kw_only=True)
class DecidedImages:
    """What one network's filter decided, with the decisions by hand.

    Attributes:
        points: a row per training image, in the order of sample_id.
        images: manifest of each split: path, sha256, label, label_name.
        class_names: by label.
        n_planted: number of labels that were changed on purpose; None if none was.
    """

    points: pa.Table
    images: dict[str, pa.Table]
    class_names: tuple[str, ...]
    n_planted: int | None

    @property
    def keep(self) -> NDArray[np.bool_]:
        """(N,) bool of the training images."""
        return np.asarray(self.points["keep"])


def read_decisions(data: DataPaths, network: str) -> DecidedImages:
    """Read points.parquet and the manifests.

    Raises:
        InputError: a file is missing, damaged, or of another run.
    """
    path = data.points(network)
    points = read_parquet(path, list(_POINTS), optional=[_SUGGESTION])
    points = _typed(points)
    images = {split: read_parquet(data.manifest(split), _IMAGES) for split in ("train", "test")}
    if points["path"].combine_chunks() != images["train"]["path"].combine_chunks():
        raise InputError(f"{path}: is of other images than {data.manifest('train')}; run `dvc repro`")
    return DecidedImages(
        points=points,
        images=images,
        class_names=tuple(read_json(data.prepare_metrics)["class_names"]),
        n_planted=count_planted(data),
    )


def _typed(points: pa.Table) -> pa.Table:
    for number, name in enumerate(points.column_names):
        points = points.set_column(number, name, points[name].cast(_POINTS.get(name, pa.string())))
    if _SUGGESTION not in points.column_names:
        points = points.append_column(_SUGGESTION, pa.nulls(len(points), pa.string()))
    return points


def metadata_tables(decisions: DecidedImages, images: ImageSet) -> dict[str, pa.Table]:
    """Return metadata.csv of an image folder: every image of both splits, with the label after decisions by hand.

    Images that `prepare` left out, as unreadable or by `train_size`, have the label of the folder.

    Each split that has a folder of its own gets a table in it, since the library `datasets` reads no table next to
    folders of splits. It also refuses tables of different columns, so scores, which test images lack, are left out.

    Args:
        images: all images of the folder.

    Returns:
        The tables by the folder that they belong into; the empty name for that of all images.
    """
    points, test = decisions.points, decisions.images["test"]
    tables = {
        "train": {"file_name": points["path"], "label": points["corrected_label_name"], "keep": points["keep"]},
        "test": {
            "file_name": test["path"], "label": test["label_name"], "keep": np.ones(len(test), dtype=np.bool_),
        },
    }  # fmt: skip
    prepared = {*points["path"].to_pylist(), *test["path"].to_pylist()}
    by_split = {}
    for split, columns in tables.items():
        others = [sample for sample in images.samples(split) if sample.path not in prepared]
        rows = [{"file_name": s.path, "label": images.class_names[s.label], "keep": True} for s in others]
        table = pa.table(columns)
        table = pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)])
        by_split[split] = with_planted_column(table, decisions.n_planted)
    folders = {split: _own_folder(table["file_name"].to_pylist()) for split, table in by_split.items()}
    if None in folders.values() or folders["train"] == folders["test"]:
        return {"": pa.concat_tables(by_split.values())}
    return {str(folders[split]): _below(table, f"{folders[split]}/") for split, table in by_split.items()}


def _own_folder(paths: Sequence[str]) -> str | None:
    """Return the outermost folder that all paths share; None without any."""
    tops = {top if slash else None for top, slash, _ in (path.partition("/") for path in paths)}
    return tops.pop() if len(tops) == 1 else None


def _below(table: pa.Table, prefix: str) -> pa.Table:
    names = [path.removeprefix(prefix) for path in table["file_name"].to_pylist()]
    return table.set_column(0, "file_name", pa.array(names, pa.string()))


def cleanlab_table(decisions: DecidedImages) -> pa.Table:
    """Return the label issues of the training images by the names of cleanlab's Datalab, with the path of each image.

    `label_score` is 1 - score, 0 to 1, lower is more suspect; `is_label_issue` is what is dropped.
    """
    points = decisions.points
    table = pa.table({
        "sample_id": points["sample_id"],
        "path": points["path"],
        "is_label_issue": pc.invert(points["keep"]),
        "label_score": pc.subtract(1.0, points["score"]),
        "given_label": points["label_name"],
        "predicted_label": points[_SUGGESTION],
    })  # fmt: skip
    return with_planted_column(table, decisions.n_planted)


def shard_columns(decisions: DecidedImages, rows: NDArray[np.int64], split: str) -> pa.Table:
    """Return the columns of a Parquet shard next to the images.

    Args:
        rows: of the split; of the training images the kept ones get the label after decisions by hand.
        split: `train` or `test`.
    """
    if split == "test":
        table = pa.table({"label": decisions.images["test"]["label"].take(rows)})
        return with_planted_column(table, decisions.n_planted)
    points = decisions.points.take(rows)
    # A dropped image keeps the label of the data, which is the suspect one.
    label = pc.if_else(points["keep"], points["corrected_label"], points["label"])
    table = pa.table({
        "label": label, "score": points["score"], "reason": points["reason"], "suggested_label": points[_SUGGESTION],
    })  # fmt: skip
    return with_planted_column(table, decisions.n_planted)


def write_shards(
    folder: Path,
    split: str,
    columns: pa.Table,
    rows: NDArray[np.int64],
    read: ImageReader,
    names: Sequence[str],
    progress: Progress,
) -> None:
    """Write the shards of a split, each of about 500 MB, as the library `datasets` divides them.

    Those of an earlier export are removed.

    Args:
        folder: of the shards, `split-00000-of-00001.parquet` and so on.
        columns: one row for each of `rows`; `label` are class numbers.
        rows: of the split, for `read`.
        names: by class number.
        progress: counts the rows.
    """
    schema = _schema(columns, names)
    parts = np.array_split(np.arange(len(rows)), _n_shards(rows, read))
    paths = [folder / f"{split}-{number:05}-of-{len(parts):05}.parquet" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for positions in np.array_split(part, range(_ROWS, len(part), _ROWS)):
                images = [_struct(*read(row)) for row in rows[positions].tolist()]
                others = columns.take(positions).columns
                writer.write_table(pa.table([pa.array(images, _IMAGE_FIELD), *others], schema=schema))
                progress.update(len(images))
    for path in folder.glob(f"{split}-*-of-*.parquet"):
        if path not in paths:
            path.unlink()


def _schema(columns: pa.Table, names: Sequence[str]) -> pa.Schema:
    fields = [pa.field("image", _IMAGE_FIELD), *columns.schema]
    features = {"image": {"_type": "Image"}, **{field.name: _feature(field, names) for field in columns.schema}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema(fields, metadata=metadata)


def _n_shards(rows: NDArray[np.int64], read: ImageReader) -> int:
    """Return into how many files to divide images, from the mean size of some of them."""
    if not len(rows):
        return 1
    sampled = rows[np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLED_ROWS)).astype(np.int64)]
    mean = sum(len(read(row)[0]) for row in sampled.tolist()) / len(sampled)
    return int(mean * len(rows) / _SHARD_BYTES) + 1


def _struct(content: bytes, path: str) -> dict[str, Any]:
    return {"bytes": content, "path": path}


def _feature(field: pa.Field, names: Sequence[str]) -> dict[str, Any]:
    if field.name == "label":
        return {"names": list(names), "_type": "ClassLabel"}
    return {"dtype": _FEATURES[field.type], "_type": "Value"}


def png_reader(pixels: NDArray[np.uint8], paths: Sequence[str]) -> ImageReader:
    """Return a reader of arrays (N, H, W, 3) as PNG files, named as the images that they were made of."""

    def read(row: int) -> tuple[bytes, str]:
        file = io.BytesIO()
        Image.fromarray(np.asarray(pixels[row])).save(file, "PNG")
        return file.getvalue(), str(Path(paths[row]).with_suffix(".png"))

    return read
