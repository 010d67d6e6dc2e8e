"""Image folders with metadata.csv or metadata.jsonl: file names and labels in a table next to the images.

The library `datasets` calls both metadata files, and reads them from an `imagefolder`.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pipeline.datasets.decode import IMAGE_SUFFIXES, UnreadableError
from pipeline.datasets.file_tree import FileSource, FileTree, check_name, unsafe_name
from pipeline.datasets.labels import has_other_separator, path_key, read_label_records
from pipeline.datasets.table_labels import (
    DEFAULT_COLUMN,
    LabeledRows,
    LabelValue,
    Listing,
    card_class_names,
    folder_split,
    list_images,
    refuse_planted,
    split_of_folders,
)
from pipeline.errors import InputError

_CSV, _JSON_LINES = "metadata.csv", "metadata.jsonl"
_FILE_NAME = "file_name"
_CARD = "README.md"
_MAX_BYTES = 1 << 28
_LISTED = 8
_MAX_HEADER = 1 << 16
_SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True, kw_only=True)
class MetadataTables:
    """The tables of a folder, read but not yet understood.

    Attributes:
        root: folder of the only table, or the one around the splits' folders; empty for the top.
        contents: by name of the table.
        columns: of the first table.
    """

    root: str
    contents: dict[str, bytes]
    columns: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """Return `metadata.csv` or `metadata.jsonl`, which all tables are called."""
        return PurePosixPath(next(iter(self.contents))).name


def find_tables(source: FileSource, tree: FileTree) -> MetadataTables | None:
    """Read the tables named metadata.csv or metadata.jsonl; None without one that has the column `file_name`.

    Raises:
        InputError: a table cannot be read, or is neither UTF-8 with commas nor UTF-8 with a JSON object on each line;
            tables of both kinds; tables in folders that are no splits; or a table with labels changed on
            purpose.
    """
    names = {name for name in tree.files if PurePosixPath(name).name in (_CSV, _JSON_LINES)}
    if not names:
        return None
    contents: dict[str, bytes] = {}
    columns: dict[str, list[str]] = {}
    for name, content in source.read(names, _MAX_BYTES):
        where = f"prepare.path: {source.label}: {name}"
        if isinstance(content, UnreadableError):
            raise InputError(f"{where}: cannot be read ({content}); split or fix it")
        columns[name] = _columns(name, content, where)
        if _FILE_NAME in columns[name]:
            refuse_planted(columns[name], where)
            contents[name] = content
    if not contents:
        return None
    contents = {name: contents[name] for name in sorted(contents)}
    if len({PurePosixPath(name).name for name in contents}) > 1:
        raise InputError(f"prepare.path: {source.label}: has {', '.join(contents)}; keep those of one kind")
    folders = [PurePosixPath(name).parent for name in contents]
    roots = {folder.parent if len(contents) > 1 or folder_split(folder.name) else folder for folder in folders}
    if len(roots) > 1:
        raise InputError(
            f"prepare.path: {source.label}: {', '.join(contents)} belong to several data sets; give the folder of one"
        )
    root = str(roots.pop())
    return MetadataTables(
        root="" if root == "." else root, contents=contents, columns=tuple(columns[next(iter(contents))])
    )


def _columns(name: str, content: bytes, where: str) -> list[str]:
    """Return the columns of a table, which may be another one than that of the images.

    Raises:
        InputError: it is not in the format of its name.
    """
    if PurePosixPath(name).name == _JSON_LINES:
        return first_keys(content, source=where)
    header = _header(content)
    if _FILE_NAME not in header and has_other_separator(header, [_FILE_NAME]):
        raise InputError(f"{where}: its header has no commas; save it with commas")
    if _FILE_NAME not in header and _names_files_otherwise(content):
        raise InputError(f"{where}: its header is not UTF-8 with commas; save it as such")
    return header


def _header(content: bytes) -> list[str]:
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", errors="replace", newline="")
    try:
        return [name.strip() for name in next(filter(None, csv.reader(text)), [])]
    except csv.Error:
        return []


def _names_files_otherwise(content: bytes) -> bool:
    """Return whether the header has the column `file_name` in another encoding or with another separator."""
    start = content[:_MAX_HEADER].replace(b"\0", b"").lstrip(b"\xff\xfe\xef\xbb\xbf")
    cells = re.split(rb"[;,|\t]", next(filter(bytes.strip, start.splitlines()), b""))
    return _FILE_NAME.encode() in [cell.strip(b" \"'") for cell in cells]


def has_labels(tables: MetadataTables, label_column: str | None) -> bool:
    """Return whether the tables have the label column: the one that is set, or the column `label`."""
    return (label_column or DEFAULT_COLUMN) in tables.columns


def missing_column(tables: MetadataTables, label_column: str | None, source: FileSource) -> InputError:
    """Return the error that the tables lack the label column."""
    first = next(iter(tables.contents))
    others = ", ".join([name for name in tables.columns if name != _FILE_NAME][:_LISTED])
    fix = f"set prepare.label_column (--label-column of init and look) to one of: {others}" if others else "add it"
    return InputError(
        f"prepare.path: {source.label}: {first}: has no column {label_column or DEFAULT_COLUMN} for the labels; {fix}"
    )


def list_tables(tables: MetadataTables, source: FileSource, tree: FileTree, label_column: str | None) -> Listing:
    """Return the images that the tables list; their names are relative to the folder of their table.

    Args:
        tree: all files of the source.

    Raises:
        InputError: a name is unsafe, occurs twice or is no image of the folder; an image is in no table; only
            some of the images are in folders of splits; a folder's name has several splits; or as `list_images`.
    """
    column = label_column or DEFAULT_COLUMN
    _refuse_images_outside(tables, source, tree)
    tree = tree.below(tables.root)
    files = set(tree.files)
    images = set(_images(tree))
    # macOS writes some names decomposed, and tables seldom.
    composed = {path_key(name): name for name in tree.files}
    found: dict[str, tuple[LabelValue, str]] = {}
    for where, written, value in _records(tables, source, column):
        name = written if written in files else composed.get(path_key(written), written)
        if name not in files:
            raise InputError(f"{where}: there is no file {name}; correct the name, or remove the line")
        if name in found:
            raise InputError(f"{where}: {name} has a label in {found[name][1].rpartition(': ')[2]} already; keep one")
        found[name] = value, where
    if not found:
        raise InputError(f"prepare.path: {source.label}: {tables.file_name} lists no image; add lines below the header")
    for name in sorted(images - found.keys()):
        raise InputError(
            f"prepare.path: {source.label}: {name} is in no {tables.file_name}; add a line, or remove the image"
        )
    splits: dict[str, list[str]] = {}
    for name in sorted(found):
        splits.setdefault(split_of_folders(name, f"prepare.path: {source.label}") or "", []).append(name)
    if "" in splits and len(splits) > 1:
        raise InputError(f"{found[splits[''][0]][1]}: {splits[''][0]} belongs to no split; move it to train/ or test/")
    rows = {split: _rows(names, found) for split, names in splits.items()}
    return list_images(
        rows, _card_names(source, tables.root, tree, column), f"prepare.path: {source.label}: {tables.file_name}"
    )


def _images(tree: FileTree) -> list[str]:
    return [name for name in tree.files if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]


def _refuse_images_outside(tables: MetadataTables, source: FileSource, tree: FileTree) -> None:
    outside = [name for name in _images(tree) if tables.root and not name.startswith(f"{tables.root}/")]
    if outside:
        raise InputError(
            f"prepare.path: {source.label}: {min(outside)} is in no {tables.file_name}, which only {tables.root}/ has; "
            f"add one to its folder, or give {tables.root}/ as the path"
        )


def _rows(names: Sequence[str], found: Mapping[str, tuple[LabelValue, str]]) -> LabeledRows:
    return LabeledRows(
        paths=names,
        values=[found[name][0] for name in names],
        where=lambda index: f"{found[names[index]][1]}: {names[index]}",
    )


def _records(tables: MetadataTables, source: FileSource, column: str) -> Iterator[tuple[str, str, str]]:
    """Yield place, name below the root and label of each line of each table."""
    for table, content in tables.contents.items():
        label = f"prepare.path: {source.label}: {table}"
        folder = str(PurePosixPath(table).parent.relative_to(tables.root or "."))
        prefix = "" if folder == "." else f"{folder}/"
        for line, record in _lines(content, PurePosixPath(table).name, label, column):
            where, name = f"{label}: line {line}", record[_FILE_NAME].removeprefix("./")
            check_name(name, where.removeprefix("prepare.path: "))
            if problem := _name_problem(name):
                raise InputError(f"{where}: the name {name!r} {problem}")
            yield where, prefix + str(PurePosixPath(name)), record[column]


def _name_problem(name: str) -> str:
    """Return what is wrong with the name of an image, and the fix; empty for a good name."""
    fix = "give a path below the folder of the table"
    if not name:
        return f"is empty; {fix}"
    problem = unsafe_name(name)
    if problem.startswith("has a backslash"):
        return "has a backslash; write forward slashes"
    return f"leads out of the folder, or is not relative; {fix}" if problem else ""


def _lines(content: bytes, file_name: str, source: str, column: str) -> Iterator[tuple[int, dict[str, str]]]:
    required = (_FILE_NAME, column)
    if file_name == _JSON_LINES:
        return read_json_records(content, source=source, required=required)
    return read_label_records(content, source=source, required=required, allow_extra=True)


def _card_names(source: FileSource, root: str, tree: FileTree, column: str) -> tuple[str, ...] | None:
    """Return the class names of README.md next to the tables; None without any."""
    if _CARD not in tree.files:
        return None
    name = f"{root}/{_CARD}" if root else _CARD
    for _, content in source.read({name}, _MAX_BYTES):
        where = f"prepare.path: {source.label}: {name}"
        if isinstance(content, UnreadableError):
            raise InputError(f"{where}: cannot be read ({content}), and may have class names; fix or remove it")
        return card_class_names(content.decode("utf-8", errors="replace"), column, where)
    return None


def read_json_records(content: bytes, *, source: str, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield for each object its line, from 1, and the required values as text; blank lines are skipped.

    Whole numbers become their digits, and null becomes the empty text.

    Args:
        content: of the file, UTF-8.
        source: name of the file in messages.
        required: keys that every object has; others are not returned.

    Raises:
        InputError: the file is not UTF-8; or a line is no JSON object, lacks a required key, or has a value for it
            that is neither text nor a whole number.
    """
    for line, record in _objects(content, source):
        where = f"{source}: line {line}"
        missing = [name for name in required if name not in record]
        if missing:
            raise InputError(f"{where}: has no key {missing[0]}; add it")
        yield line, {name: _text(record[name], f"{where}: {name}") for name in required}


def first_keys(content: bytes, *, source: str) -> list[str]:
    """Return the keys of the first object; none of an empty file.

    Raises:
        InputError: the file is not UTF-8, or its first line is no JSON object.
    """
    _, record = next(_objects(content, source), (1, {}))
    return list(record)


def _objects(content: bytes, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: cannot be read as UTF-8 ({error}); save it as UTF-8") from None
    # Not splitlines, which would also split at characters that JSON allows within text.
    for line, part in enumerate(text.split("\n"), 1):
        if not part.strip():
            continue
        try:
            record = json.loads(part)
        except json.JSONDecodeError as error:
            problem = f"is not JSON ({error.msg} at character {error.colno})"
        except (ValueError, RecursionError):
            problem = "has a number of too many digits, or too many levels"
        else:
            problem = "" if isinstance(record, dict) else "is no JSON object"
        if problem:
            raise InputError(f"{source}: line {line}: {problem}; write one object per line")
        yield line, record


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"{where} is {repr(value)[:_SHOWN]}; give text or a whole number")
