"""Images in Parquet shards, as a hub stores them: encoded files in a column, labels in another."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.datasets.decode import UnreadableError
from pipeline.datasets.file_tree import FileTree, check_name, too_large
from pipeline.datasets.parquet_columns import find_columns, image_columns, schema_class_names
from pipeline.datasets.table_labels import (
    LabeledRows,
    LabelValue,
    Listing,
    card_class_names,
    folder_split,
    list_images,
    missing_shard,
    split_of,
)
from pipeline.errors import InputError, lacks_resources, short_reason

SUFFIX = ".parquet"

# Rows in memory at a time while images are read: a row is a complete image file.
_BATCH_ROWS = 32
# Bytes of them, unless one row has more.
_BATCH_BYTES = 1 << 28
# Image files are compressed already. A row group is refused if it unpacks to more than a batch and many times its size.
_MAX_RATIO = 100
_LFS_POINTER = b"version https://git-lfs"
_CARD = "README.md"
_MAX_CARD_BYTES = 1 << 22
_NO_NAMES = ("", ".", "..")


class ParquetImages:
    """The images in the shards of a folder.

    Args:
        root: the folder.
        tree: its files.
        label_column: None for the column `label`.

    Raises:
        InputError: a shard is missing, damaged or a pointer of Git LFS; a column is missing; or a label is wrong.
    """

    def __init__(self, root: Path, tree: FileTree, label_column: str | None) -> None:
        self._root = root
        shards = _shards_by_split(tree, root)
        files = [name for names in shards.values() for name in names]
        self._columns = find_columns(self._open(files[0]).schema_arrow, f"{root / files[0]}", label_column)
        names, origin = self._class_names(files, _CARD in tree.files)
        rows: dict[str, LabeledRows] = {}
        # Paths of the images in each shard, row by row.
        self._paths: dict[str, Sequence[str]] = {}
        for split, of_split in shards.items():
            rows[split] = self._read_rows(split, of_split)
        self.listing: Listing = list_images(rows, names, f"prepare.path: {root}")
        n_shards = len(self._paths)
        self.description = ", ".join(
            [
                f"{n_shards} Parquet {'shard' if n_shards == 1 else 'shards'}",
                f"images in the column {self._columns.image}",
                f"labels in the column {self._columns.label}",
                f"class names of {origin}",
                *self.listing.notes,
            ]
        )

    def read(self, paths: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        """Yield path and content of these images, shard by shard, a few rows in memory at a time."""
        column = self._columns.image
        leaves = [f"{column}.bytes"] if self._columns.is_struct else [column]
        for shard, names in self._paths.items():
            if paths.isdisjoint(names):
                continue
            following = iter(names)
            file = self._root / shard
            with _explain_damage(file):
                for images in _image_batches(
                    self._open(shard), leaves, f"prepare.path: {file}", packed=file.stat().st_size
                ):
                    for row in range(len(images)):
                        path = next(following)
                        if path in paths:
                            yield path, _content(images[row].as_py(), max_bytes)

    def _open(self, name: str) -> pq.ParquetFile:
        path = self._root / name
        with _explain_damage(path):
            if _is_pointer(path):
                raise InputError(
                    f"prepare.path: {path}: is a pointer of Git LFS, not the data; run `git lfs pull` in the folder"
                )
            return pq.ParquetFile(path)

    def _class_names(self, shards: Sequence[str], has_card: bool) -> tuple[tuple[str, ...] | None, str]:
        """Return the class names of the data set card or of the shards, and where they are from.

        Raises:
            InputError: two of them differ.
        """
        column = self._columns.label
        origins: dict[tuple[str, ...], str] = {}
        for shard in shards:
            names = schema_class_names(self._open(shard).schema_arrow, column, f"prepare.path: {self._root / shard}")
            if names is not None:
                origins.setdefault(names, shard)
        if has_card and (names := self._card_class_names(self._root / _CARD)) is not None:
            # Where both have the names, the card is named as their origin.
            origins.pop(names, None)
            origins = {names: _CARD, **origins}
        if len(origins) > 1:
            (ours, first), (theirs, second), *_ = origins.items()
            a, b = next(pair for pair in zip_longest(ours, theirs) if pair[0] != pair[1])
            raise InputError(
                f"prepare.path: {self._root}: {first} and {second} give the column {column} different class names "
                f"({a} and {b}); correct one of them"
            )
        for names, origin in origins.items():
            return names, origin if origin == _CARD else "the shards"
        return None, "the labels"

    def _card_class_names(self, card: Path) -> tuple[str, ...] | None:
        try:
            with card.open("rb") as file:
                content = file.read(_MAX_CARD_BYTES + 1)
        except OSError as error:
            raise InputError(
                f"prepare.path: {card}: cannot be read ({error.strerror}), and may have class names; fix or remove it"
            ) from None
        if len(content) > _MAX_CARD_BYTES:
            raise InputError(f"prepare.path: {card}: is larger than {_MAX_CARD_BYTES >> 20} MiB; shorten it")
        text = content.decode("utf-8", errors="replace")
        return card_class_names(text, self._columns.label, f"prepare.path: {card}")

    def _read_rows(self, split: str, shards: Sequence[str]) -> LabeledRows:
        """Read the labels and names of the images of one split, without the images."""
        columns = self._columns
        leaves = [columns.label] + ([f"{columns.image}.path"] if columns.has_path else [])
        values: list[LabelValue] = []
        names: list[str] = []
        counts: list[int] = []
        for shard in shards:
            file = self._open(shard)
            where = f"prepare.path: {self._root / shard}"
            n_rows, size = file.metadata.num_rows, (self._root / shard).stat().st_size
            if n_rows > size:
                raise InputError(f"{where}: has {n_rows:,} rows in {size:,} bytes, too few for images; get it again")
            if find_columns(file.schema_arrow, str(self._root / shard), columns.label) != columns:
                raise InputError(f"{where}: has other columns of images than the first shard; leave one kind")
            with _explain_damage(self._root / shard):
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=leaves)
                    values += _label_values(table[columns.label], where)
                    images = table[columns.image].to_pylist() if columns.has_path else [None] * len(table)
                    names += [_file_name(image) for image in images]
            counts.append(n_rows)
        for name in names:
            check_name(name, f"{self._root}: split {split or 'train'}")
        # Rows are numbered if a name is missing or occurs twice: paths are unique.
        if len(set(names)) < len(names) or not set(names).isdisjoint(_NO_NAMES):
            names = [f"{row:06d}" for row in range(len(names))]
        paths = [f"{split}/{name}" if split else name for name in names]
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        for shard, start, stop in zip(shards, starts, starts[1:], strict=False):
            self._paths[shard] = paths[start:stop]

        def where_of(row: int) -> str:
            shard = max(i for i, start in enumerate(starts[:-1]) if start <= row and counts[i])
            return f"prepare.path: {self._root / shards[shard]}: row {row - starts[shard]}"

        return LabeledRows(paths=paths, values=values, where=where_of)


def _image_batches(file: pq.ParquetFile, leaves: Sequence[str], where: str, packed: int) -> Iterator[pa.Array]:
    """Yield the column of images in batches of at most `_BATCH_ROWS` rows, and of `_BATCH_BYTES` or a single row.

    Args:
        packed: size of the file in bytes.

    Raises:
        InputError: a row group states that it unpacks to many times the size of the file.
    """
    for group in range(file.num_row_groups):
        # Of all columns: asking for the sizes of one aborts the process if the footer is damaged (pyarrow 26).
        unpacked = file.metadata.row_group(group).total_byte_size
        if unpacked > max(_BATCH_BYTES, _MAX_RATIO * packed):
            raise InputError(
                f"{where}: row group {group} of a file of {packed:,} bytes unpacks to {unpacked:,}; write the shard "
                "without compression if that is meant"
            )
        # Not by the mean: sizes differ, and rows may share one value of a dictionary, as large as all that is unpacked.
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, unpacked)))
        for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=leaves):
            yield batch.column(0)


def has_image_column(path: Path) -> bool:
    """Return whether a file is Parquet with a column of images, or a pointer to some file; False for a damaged one."""
    try:
        return _is_pointer(path) or bool(image_columns(pq.read_schema(path)))
    except (pa.ArrowException, OSError) as error:
        if lacks_resources(error):
            raise
        return False


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def shard_names(tree: FileTree) -> list[str]:
    """Return the names of the Parquet files of a folder."""
    return [name for name in tree.files if name.lower().endswith(SUFFIX)]


def _shards_by_split(tree: FileTree, root: Path) -> dict[str, list[str]]:
    """Return the shards of each split, in the order of their names; by the empty name if no name tells a split.

    Raises:
        InputError: only some of the shards have a split, or one has several; a shard is missing; or there are several
            subsets.
    """
    names = shard_names(tree)
    where = f"prepare.path: {root}"
    # data/ and train/ hold shards of one data set; mnist/ and fashion/ hold two subsets.
    folders = {
        "/".join(part for part in PurePosixPath(name).parts[:-1] if not folder_split(part)): name for name in names
    }
    if len(folders) > 1:
        names_of_folders = ", ".join(folder or "the top" for folder in sorted(folders))
        raise InputError(f"{where}: has several subsets ({names_of_folders}); give the folder of one")
    missing = missing_shard(names)
    if missing:
        raise InputError(f"{where}: the shard {missing} is missing; clone the folder again, or put it there")
    splits: dict[str, list[str]] = {}
    for name in names:
        splits.setdefault(split_of(name, where) or "", []).append(name)
    if "" in splits and len(splits) > 1:
        raise InputError(f"{where}: {splits[''][0]} belongs to no split; rename it, e.g. train-0.parquet, or remove it")
    return splits


def _label_values(column: pa.ChunkedArray, where: str) -> list[LabelValue]:
    try:
        values: list[LabelValue] = column.to_pylist()
    except UnicodeDecodeError:
        raise InputError(f"{where}: its labels are not UTF-8 text; write them again") from None
    return values


def _file_name(image: Any) -> str:
    """Return the last part of the path in a row; an empty name without one."""
    path = image.get("path") if isinstance(image, Mapping) else None
    return re.split(r"[/\\]", path)[-1] if path else ""


def _content(image: Any, max_bytes: int) -> bytes | UnreadableError:
    content = image.get("bytes") if isinstance(image, Mapping) else image
    if content is None:
        return UnreadableError("has no bytes in its shard")
    assert isinstance(content, bytes)
    return too_large(len(content), max_bytes) or content


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if lacks_resources(error):
            raise
        reason = short_reason(error)
        raise InputError(f"prepare.path: {path}: not readable as Parquet ({reason}); get it again") from None
