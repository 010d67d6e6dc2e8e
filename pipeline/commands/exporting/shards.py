"""Parquet shards as the Hugging Face hub stores images: a struct of bytes and path, and class names in the schema."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.files import atomic_path

_IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
# A row is a complete image file: few of them are in memory at a time.
_ROWS = 64
_FEATURES = {pa.float64(): "float64", pa.string(): "string", pa.int64(): "int64"}

ImageReader = Callable[[int], tuple[bytes, str]]
"""From a row of the split to the content and the path of an image file."""


def write_shard(
    path: Path, columns: pa.Table, rows: NDArray[np.int64], read: ImageReader, names: Sequence[str]
) -> None:
    """Write one shard, a few rows at a time.

    Args:
        columns: one row for each of `rows`; `label` are class numbers.
        rows: of the split, for `read`.
        names: by class number.
    """
    fields = [pa.field("image", _IMAGE), *columns.schema]
    features = {"image": {"_type": "Image"}, **{field.name: _feature(field, names) for field in columns.schema}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema(fields, metadata=metadata)
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for start in range(0, len(rows), _ROWS):
            images = [_struct(*read(row)) for row in rows[start : start + _ROWS].tolist()]
            part = columns.slice(start, _ROWS)
            writer.write_table(pa.table([pa.array(images, _IMAGE), *part.columns], schema=schema))


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
