"""CSV files in which people give labels: their records, and the one spelling of a class name or path."""

import csv
import difflib
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import InputError


def class_name(text: str) -> str:
    """A class name as all are compared: composed (NFC), without white space around it."""
    return unicodedata.normalize("NFC", text).strip()


def path_key(path: str) -> str:
    """A path as all are compared: composed (NFC); macOS writes some decomposed."""
    return unicodedata.normalize("NFC", path)


def label_records(
    file: Path, *, source: str, needs: Sequence[str], may_have: Sequence[str] = (), others: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line where it begins, from 1, and fields by column, of each record of a UTF-8 CSV; blank lines are no records.

    Args:
        source: what to call the file in messages.
        needs: columns that must be there, in any order.
        may_have: columns that are passed on where they are there.
        others: whether there may be more columns, which are not passed on.

    Raises:
        InputError: the file is missing, empty or not UTF-8 CSV, lacks a column, has one twice or one
            too many, or a record of another number of fields.
    """
    records = _records(file, source, needs)
    line, header = next(records, (1, []))
    if not header:
        raise InputError(f"{source}: is empty; give it the header {','.join(needs)} and a line per image")
    columns = _columns(header, f"{source}: line {line}", needs, may_have, others)
    for line, fields in records:
        if len(fields) != len(header):
            raise InputError(
                f"{source}: line {line}: has {len(fields)} fields, needs the {len(header)} of the header; "
                "quote a field that holds a comma"
            )
        yield line, {name: fields[place] for name, place in columns.items()}


def _records(file: Path, source: str, needs: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    try:
        # A spreadsheet may have written a byte order mark.
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            line = 1
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1
    except FileNotFoundError:
        columns = f"columns {','.join(needs)}" if len(needs) > 1 else f"column {needs[0]}"
        raise InputError(f"{source} does not exist; give a CSV with the {columns}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source}: cannot be read as UTF-8 CSV ({error}); mend it, or save it as UTF-8") from None


def _columns(
    header: list[str], where: str, needs: Sequence[str], may_have: Sequence[str], others: bool
) -> dict[str, int]:
    """Column -> its place among the fields."""
    missing = [name for name in needs if name not in header]
    if missing:
        close = difflib.get_close_matches(missing[0], header, n=1)
        mend = f"rename {close[0]!r}" if close else "add it"
        raise InputError(f"{where}: has no column {missing[0]} among {','.join(header)!r}; {mend}")
    used = [name for name in (*needs, *may_have) if name in header]
    if not others and len(header) > len(used):
        raise InputError(f"{where}: has the columns {','.join(header)!r}; leave {' and '.join(used)} alone")
    twice = [name for name in used if header.count(name) > 1]
    if twice:
        raise InputError(f"{where}: has the column {twice[0]} twice; remove or rename one of the two")
    return {name: header.index(name) for name in used}
