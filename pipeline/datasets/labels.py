"""Label files: read a CSV with a label for each image, and relabel a data set by it."""

import bisect
import csv
import difflib
import io
import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TextIO

from pipeline.datasets.image_set import ImageSet
from pipeline.errors import InputError

_COLUMNS = ("path", "label")
# An unknown path is compared with so many sorted paths before and after it.
_COMPARED = 1000
_AMBIGUOUS = -1


def class_name(text: str) -> str:
    """Return the canonical form of a class name: Unicode's NFC, without surrounding white space."""
    return unicodedata.normalize("NFC", text).strip()


def path_key(path: str) -> str:
    """Return the canonical form of a path: Unicode's NFC, since macOS writes some paths decomposed."""
    return unicodedata.normalize("NFC", path)


def read_label_records(
    file: Path | bytes, *, source: str, required: Sequence[str], optional: Sequence[str] = (), allow_extra: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield for each record of a UTF-8 CSV its first line, from 1, and its fields by column; blank lines are skipped.

    Args:
        file: the file, or its content.
        source: name of the file in messages.
        required: required columns, in any order.
        optional: columns that are returned if present.
        allow_extra: whether other columns are allowed; they are not returned.

    Raises:
        InputError: the file is missing, empty or not UTF-8 CSV; a column is missing, repeated or not allowed; or a
            record has another number of fields than the header.
    """
    records = _records(file, source, required)
    line, header = next(records, (1, []))
    if not header:
        raise InputError(f"{source}: is empty; give it the header {','.join(required)} and a line per image")
    # People write a space after a comma.
    columns = _columns([name.strip() for name in header], f"{source}: line {line}", required, optional, allow_extra)
    for line, fields in records:
        if len(fields) != len(header):
            raise InputError(
                f"{source}: line {line}: has {len(fields)} fields, needs the {len(header)} of the header; "
                "quote a field that holds a comma"
            )
        yield line, {name: fields[index] for name, index in columns.items()}


def _records(file: Path | bytes, source: str, required: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    try:
        # A spreadsheet may have written a byte order mark.
        with _open_text(file, encoding="utf-8-sig") as text:
            reader = csv.reader(text, strict=True)
            line = 1
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1
    except FileNotFoundError:
        columns = f"columns {','.join(required)}" if len(required) > 1 else f"column {required[0]}"
        raise InputError(f"{source} does not exist; give a CSV with the {columns}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source}: cannot be read as UTF-8 CSV ({error}); fix it, or save it as UTF-8") from None


def _open_text(file: Path | bytes, encoding: str) -> TextIO:
    if isinstance(file, bytes):
        return io.TextIOWrapper(io.BytesIO(file), encoding=encoding, newline="")
    return file.open(encoding=encoding, newline="")


def has_other_separator(header: Sequence[str], required: Sequence[str]) -> bool:
    """Return whether a header of one cell has the required columns with semicolons or tabs between them."""
    if len(header) != 1:
        return False
    return any({*required} <= {name.strip(" \"'") for name in header[0].split(separator)} for separator in ";\t")


def _columns(
    header: list[str], where: str, required: Sequence[str], optional: Sequence[str], allow_extra: bool
) -> dict[str, int]:
    """Return the index of each used column.

    Raises:
        InputError: a column is missing, repeated or not allowed.
    """
    missing = [name for name in required if name not in header]
    if missing:
        close = difflib.get_close_matches(missing[0], header, n=1)
        fix = f"rename {close[0]!r}" if close else "add it"
        if has_other_separator(header, required):
            fix = "save it with commas"
        raise InputError(f"{where}: has no column {missing[0]} among {','.join(header)!r}; {fix}")
    used = [name for name in (*required, *optional) if name in header]
    if not allow_extra and len(header) > len(used):
        raise InputError(f"{where}: has the columns {','.join(header)!r}; leave {' and '.join(used)} alone")
    twice = [name for name in used if header.count(name) > 1]
    if twice:
        raise InputError(f"{where}: has the column {twice[0]} twice; remove or rename one of the two")
    return {name: header.index(name) for name in used}


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRecord:
    """One record of a label file.

    Attributes:
        path: of the image, as in the manifest up to Unicode's composition.
        name: of the class.
        line: first line of the record in the file, from 1.
    """

    path: str
    name: str
    line: int


@dataclass(frozen=True, kw_only=True)
class LabelFile:
    """The content of a label file.

    Attributes:
        source: name of the file in messages.
        labels: one for each image that the file lists; paths are unique.
    """

    source: str
    labels: tuple[LabelRecord, ...]


def read_label_file(file: Path, *, key: str) -> LabelFile:
    """Read the labels in a UTF-8 CSV with the columns `path` and `label`, in either order.

    Args:
        key: the setting or argument that names the file, for messages.

    Raises:
        InputError: the file is missing, empty or not UTF-8 CSV, has other columns, or lists an image twice.
    """
    source = f"{key}: {file}"
    labels: dict[str, LabelRecord] = {}
    for line, record in read_label_records(file, source=source, required=_COLUMNS):
        label = LabelRecord(path=record["path"], name=record["label"], line=line)
        earlier = labels.setdefault(path_key(label.path), label)
        if earlier is not label:
            raise InputError(
                f"{source}: line {label.line}: {label.path!r} has a label in line {earlier.line} already; "
                "remove one of the two lines"
            )
    if not labels:
        raise InputError(f"{source}: lists no image; add lines below the header, or remove the key")
    return LabelFile(source=source, labels=tuple(labels.values()))


def locate_labels(
    file: LabelFile,
    *,
    paths: Sequence[str],
    class_names: Sequence[str],
    test_paths: Set[str],
    excluded: Set[str] = frozenset(),
) -> dict[int, int]:
    """Return the class number that the file gives each training image, by row.

    Args:
        paths: of the training images, row by row.
        class_names: by class number.
        excluded: paths of unused images of the data set; lines for them are ignored.

    Raises:
        InputError: a line about a test image, or about no image or class of the data set.
    """
    rows = _rows_by_path(paths)
    numbers = {class_name(name): number for number, name in enumerate(class_names)}
    in_test, unused = ({path_key(path) for path in some} for some in (test_paths, excluded))
    located = {}
    for label in file.labels:
        where, path = f"{file.source}: line {label.line}", path_key(label.path)
        if path in in_test:
            raise InputError(f"{where}: {label.path!r} is a test image, and those keep their labels; remove the line")
        if path not in rows and path not in unused:
            raise InputError(
                f"{where}: {label.path!r} is not among the training images; {_nearest_path(label.path, paths)}"
            )
        number = numbers.get(class_name(label.name))
        if number is None:
            raise InputError(f"{where}: {label.name!r} is not a class; {_nearest_class(label.name, class_names)}")
        row = rows.get(path)
        if row == _AMBIGUOUS:
            raise InputError(
                f"{where}: {label.path!r} matches two images, whose paths differ only in Unicode's composition; "
                "rename one of them"
            )
        if row is not None:
            located[row] = number
    return located


def relabel(images: ImageSet, file: LabelFile, *, excluded: Set[str]) -> ImageSet:
    """Return the data set with the file's labels for the training images that the file lists.

    Args:
        excluded: paths of unreadable images, which are not in `images`.

    Raises:
        InputError: as `locate_labels`.
    """
    located = locate_labels(
        file,
        paths=[sample.path for sample in images.train],
        class_names=images.class_names,
        test_paths={sample.path for sample in images.test},
        excluded=excluded,
    )
    train = tuple(replace(sample, label=located.get(row, sample.label)) for row, sample in enumerate(images.train))
    changed = sum(new.label != old.label for new, old in zip(train, images.train, strict=True))
    return replace(images, train=train, n_relabelled=changed)


def _rows_by_path(paths: Iterable[str]) -> dict[str, int]:
    """Return the row of each canonical path; `_AMBIGUOUS` where two paths have the same form."""
    rows: dict[str, int] = {}
    for row, path in enumerate(paths):
        key = path_key(path)
        rows[key] = _AMBIGUOUS if key in rows else row
    return rows


def _nearest_path(path: str, paths: Sequence[str]) -> str:
    # Comparing with each of a million paths takes a minute: compare files of the same name, else neighbors in order.
    same_name = [other for other in paths if PurePosixPath(other).name == PurePosixPath(path).name]
    ordered = sorted(paths)
    position = bisect.bisect(ordered, path)
    candidates = same_name or ordered[max(0, position - _COMPARED) : position + _COMPARED]
    (close,) = difflib.get_close_matches(path, candidates[: 2 * _COMPARED], n=1, cutoff=0.0)
    return f"the nearest is {close!r}; give a path of data/prepare/train.parquet, or remove the line"


def _nearest_class(name: str, class_names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, class_names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = ", ..." if len(class_names) > 10 else ""
    return f"give one of {', '.join(class_names[:10])}{more}"
