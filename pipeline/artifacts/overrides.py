"""data/overrides.csv: manual decisions to keep, drop or relabel single images."""

import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import atomic_path
from pipeline.errors import InputError

COLUMNS = ("path", "sha256", "decision", "label", "note", "timestamp")
DECISIONS = ("keep", "drop", "relabel")

# Files of earlier versions, without relabels.
_OLD_COLUMNS = tuple(column for column in COLUMNS if column != "label")
_LISTED = 10  # classes, in a message
# Columns of text that others may have chosen, which a spreadsheet must not run.
_TEXTS = ("path", "label", "note")

# What a spreadsheet runs as a formula, after any quotes (OWASP, "CSV Injection"; full-width signs in some locales).
_FORMULA = re.compile(r"[\s']*[=+\-@＝＋－＠]")


@dataclass(frozen=True, kw_only=True)
class Override:
    """One record of the file.

    Attributes:
        path, sha256: of the image, as in the manifest; both must match, so that a decision never applies to another
            image.
        decision: keep, drop or relabel; a relabeled image is kept.
        label: name of the new class for relabel, in NFC without surrounding white space; else empty.
        note: as typed. In the file, an apostrophe precedes a path, label or note that a spreadsheet would run as a
            formula.
        line: last line of the record in the file, from 1.
    """

    path: str
    sha256: str
    decision: str
    label: str = ""
    note: str
    timestamp: str
    line: int

    @property
    def keeps(self) -> bool:
        """Whether the image is kept."""
        return self.decision != "drop"

    @property
    def action(self) -> str:
        """The decision in words, `relabel as dog`."""
        return f"relabel as {self.label}" if self.decision == "relabel" else self.decision


def read_overrides(file: Path) -> list[Override]:
    """Read all decisions, in the order of the file; of equal ones for one image the last counts.

    Raises:
        InputError: the file is missing or not UTF-8 CSV, has other columns, an unknown decision, a relabel without a
            label or another decision with one, or two different decisions for one image.
    """
    overrides: dict[tuple[str, str], Override] = {}
    for override in _records(file):
        image = override.path, override.sha256
        earlier = overrides.pop(image, override)
        if earlier.action != override.action:
            raise InputError(
                f"{file}: line {override.line}: {override.path!r} is to {override.action}, but to "
                f"{earlier.action} in line {earlier.line}; remove one of the two lines"
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
            fields = [
                _escaped(getattr(override, column)) if column in _TEXTS else getattr(override, column)
                for column in COLUMNS
            ]
            # Before Python 3.13 the csv module does not quote a carriage return, which would end the line.
            (quoted if "\r" in "".join(fields) else plain).writerow(fields)


def _escaped(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def locate_overrides(
    overrides: Sequence[Override],
    *,
    file: Path,
    paths: Sequence[str],
    sha256: Sequence[str],
    class_names: Sequence[str],
) -> dict[int, Override]:
    """Return the overrides by the row of their image in a manifest.

    Args:
        file: name of the overrides' file in errors.
        paths, sha256: of all images, row by row.
        class_names: of the labels.

    Raises:
        InputError: an override names an image that is not in the manifest, or whose content has changed, or an unknown
            class.
    """
    rows, names = {path: row for row, path in enumerate(paths)}, set(class_names)
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
        if override.decision == "relabel" and override.label not in names:
            close = get_close_matches(override.label, class_names, n=1)
            known = ", ".join([*class_names[:_LISTED], *(["..."] if len(names) > _LISTED else [])])
            fix = f"write {close[0]!r}" if close else f"write one of {known}"
            raise InputError(f"{where}: label {override.label!r} is not a class; {fix}, or remove the line")
        located[row] = override
    return located


def apply_labels(
    labels: NDArray[np.int64], overrides: Mapping[int, Override], class_names: Sequence[str]
) -> NDArray[np.int64]:
    """Return the labels (N,) after overrides, as a copy.

    Args:
        labels: (N,) as given.
        overrides: by row, of `locate_overrides`.
        class_names: one per class.
    """
    corrected, indices = labels.copy(), {name: index for index, name in enumerate(class_names)}
    for row, override in overrides.items():
        if override.decision == "relabel":
            corrected[row] = indices[override.label]
    return corrected


def _records(file: Path) -> Iterator[Override]:
    header = ",".join(COLUMNS)
    try:
        # A spreadsheet may have written a byte order mark.
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            columns = tuple(next(reader, ()))
            if columns not in (COLUMNS, _OLD_COLUMNS):
                raise InputError(f"{file}: line 1: the header must be exactly {header}")
            for fields in reader:
                if fields:
                    yield _override(file, reader.line_num, columns, fields)
    except FileNotFoundError:
        raise InputError(f"{file}: missing; create it with the line {header}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 CSV ({error}); fix or restore it") from None


def _override(file: Path, line: int, columns: Sequence[str], fields: list[str]) -> Override:
    where = f"{file}: line {line}"
    if len(fields) != len(columns):
        raise InputError(
            f"{where}: has {len(fields)} fields, needs the {len(columns)} of the header; "
            "quote a field that holds a comma"
        )
    values = dict(zip(columns, fields, strict=True))
    for name in _TEXTS:
        if _FORMULA.match(values.get(name, "")):
            values[name] = values[name].removeprefix("'")
    # As names of classes are.
    values["label"] = unicodedata.normalize("NFC", values.get("label", "")).strip()
    decision, label = values["decision"], values["label"]
    if decision not in DECISIONS:
        raise InputError(f"{where}: decision {decision!r} must be keep, drop or relabel")
    if decision == "relabel" and not label:
        raise InputError(f"{where}: relabel needs a class; write its name in the column label of {','.join(COLUMNS)}")
    if decision != "relabel" and label:
        raise InputError(f"{where}: {decision} has the label {label!r}; leave it empty, or write relabel")
    return Override(**values, line=line)
