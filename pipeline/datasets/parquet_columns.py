"""The columns of images and labels in Parquet shards, and the class names in their schema."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.datasets.table_labels import DEFAULT_COLUMN, checked_class_names, refuse_planted
from pipeline.errors import InputError

_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class ShardColumns:
    """Columns of a shard: that of the images, whether it is a struct of bytes and path, and that of the labels."""

    image: str
    is_struct: bool
    has_path: bool
    label: str


def image_columns(schema: pa.Schema) -> dict[str, ShardColumns]:
    """Return the columns that may be of images, by name, without a label."""
    found = {}
    for field in schema:
        if pa.types.is_struct(field.type):
            inner = {child.name: child.type for child in field.type}
            if "bytes" in inner and _is_binary(inner["bytes"]):
                has_path = "path" in inner and _is_text(inner["path"])
                found[field.name] = ShardColumns(image=field.name, is_struct=True, has_path=has_path, label="")
        elif _is_binary(field.type):
            found[field.name] = ShardColumns(image=field.name, is_struct=False, has_path=False, label="")
    return found


def find_columns(schema: pa.Schema, source: str, label_column: str | None) -> ShardColumns:
    """Return the columns of images and labels.

    Raises:
        InputError: a column is missing or repeated, or several could be that of the images; or the labels were
            changed on purpose.
    """
    where = f"prepare.path: {source}"
    refuse_planted(schema.names, where)
    images = image_columns(schema)
    named: list[str] = [name for name in ("image", "img") if name in images]
    candidates = named[:1] or [*images]
    if len(candidates) != 1:
        problem = f"several columns of images ({', '.join(candidates)})" if candidates else "no column of images"
        raise InputError(f"{where}: has {problem}; give a struct of bytes and path named image")
    label = label_column or DEFAULT_COLUMN
    others = [name for name in schema.names if name not in images]
    if label not in others:
        listed = ", ".join(others[:_LISTED]) or "none"
        fix = f"set prepare.label_column (--label-column of init and look) to one of: {listed}" if others else "add it"
        raise InputError(f"{where}: has no column {label} for the labels; {fix}")
    for name in (candidates[0], label):
        if schema.names.count(name) > 1:
            raise InputError(f"{where}: has the column {name} twice; rename one of the two")
    kind = schema.field(label).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_integer(kind) or _is_text(kind) or pa.types.is_null(kind)):
        raise InputError(f"{where}: the column {label} is of type {kind}; give whole numbers or text")
    found = images[candidates[0]]
    return ShardColumns(image=found.image, is_struct=found.is_struct, has_path=found.has_path, label=label)


def schema_class_names(schema: pa.Schema, column: str, source: str) -> tuple[str, ...] | None:
    """Return the class names that `datasets` writes into the metadata of a shard; None without any."""
    try:
        info: Any = json.loads((schema.metadata or {})[b"huggingface"])
        names = info["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return checked_class_names(names, source)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
