"""data/overrides.csv: manual decisions to keep or drop single images."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.artifacts.files import atomic_path
from pipeline.errors import InputError

COLUMNS = ("path", "sha256", "decision", "note", "timestamp")
DECISIONS = ("keep", "drop")

# What a spreadsheet runs as a formula, after any quotes (OWASP, "CSV Injection"; full-width signs in some locales).
_FORMULA = re.compile(r"[\s']*[=+\-@＝＋－＠]")


@dataclass(frozen=True, kw_only=True)
class Override:
    """One record of the file.

    Attributes:
        path, sha256: of the image, as in the manifest; both must match, so that a decision never applies to another
            image.
        decision: keep or drop.
        note: as typed. In the file, an apostrophe precedes a note that a spreadsheet would run as a formula.
        line: last line of the record in the file, from 1.
    """

    path: str
    sha256: str
    decision: str
    note: str
    timestamp: str
    line: int


def read_overrides(file: Path) -> list[Override]:
    """Read all decisions, in the order of the file; of equal ones for one image the last counts.

    Raises:
        InputError: the file is missing or not UTF-8 CSV, has other columns, or has a decision that is neither keep nor
            drop, or two different decisions for one image.
    """
    overrides: dict[tuple[str, str], Override] = {}
    for override in _records(file):
        image = override.path, override.sha256
        earlier = overrides.pop(image, override)
        if earlier.decision != override.decision:
            raise InputError(
                f"{file}: line {override.line}: {override.path!r} is to {override.decision}, but to "
                f"{earlier.decision} in line {earlier.line}; remove one of the two lines"
            )
        overrides[image] = override
    return list(overrides.values())


def write_overrides(file: Path, overrides: Iterable[Override]) -> None:
    """Write a file that `read_overrides` reads, atomically; the `line` of an override is ignored."""
    with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8", newline="") as text:
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        plain.writerow(COLUMNS)
        for override in overrides:
            escaped = replace(override, note=f"'{override.note}") if _FORMULA.match(override.note) else override
            fields = [getattr(escaped, column) for column in COLUMNS]
            # Before Python 3.13 the csv module does not quote a carriage return, which would end the line.
            (quoted if "\r" in "".join(fields) else plain).writerow(fields)


def locate_overrides(
    overrides: Sequence[Override], *, file: Path, paths: Sequence[str], sha256: Sequence[str]
) -> dict[int, Override]:
    """Return the overrides by the row of their image in a manifest.

    Args:
        file: name of the overrides' file in errors.
        paths, sha256: of all images, row by row.

    Raises:
        InputError: an override names an image that is not in the manifest, or whose content has changed.
    """
    rows = {path: row for row, path in enumerate(paths)}
    located = {}
    for override in overrides:
        row = rows.get(override.path)
        where = f"{file}: line {override.line}: {override.path!r}"
        if row is None:
            raise InputError(f"{where} is not among the training images; fix the path or remove the line")
        if sha256[row] != override.sha256:
            raise InputError(
                f"{where} has sha256 {override.sha256!r}, the image now has {sha256[row]}; "
                "decide again and write the new sha256, or remove the line"
            )
        located[row] = override
    return located


def _records(file: Path) -> Iterator[Override]:
    header = ",".join(COLUMNS)
    try:
        # A spreadsheet may have written a byte order mark.
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            if tuple(next(reader, ())) != COLUMNS:
                raise InputError(f"{file}: line 1: the header must be exactly {header}")
            for fields in reader:
                if fields:
                    yield _override(file, reader.line_num, fields)
    except FileNotFoundError:
        raise InputError(f"{file}: missing; create it with the line {header}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 CSV ({error}); fix or restore it") from None


def _override(file: Path, line: int, fields: list[str]) -> Override:
    if len(fields) != len(COLUMNS):
        raise InputError(
            f"{file}: line {line}: has {len(fields)} fields, needs the {len(COLUMNS)} of the header; "
            "quote a field that holds a comma"
        )
    values = dict(zip(COLUMNS, fields, strict=True))
    if values["decision"] not in DECISIONS:
        raise InputError(f"{file}: line {line}: decision {values['decision']!r} must be keep or drop")
    if _FORMULA.match(values["note"]):
        values["note"] = values["note"].removeprefix("'")
    return Override(**values, line=line)
