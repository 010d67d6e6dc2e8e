"""Collect what a verification finds, one line for each."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import InputError

_MAX_LINES = 20
"""Most lines about one file."""
_MAX_TEXT = 100
_OF_ODD_VALUES = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, AssertionError,
)  # fmt: skip
"""Errors of this project's code at values that its stages cannot write: what cannot happen there is asserted."""


@dataclass(kw_only=True)
class Findings:
    """The result of the checks.

    Attributes:
        checked: what was compared, a sentence for each check.
        differences: contradictions, each `file: item: value, expected value`.
        later: openly recorded, but not stated before the runs: changes of a plan, runs older than it.
        notes: what could not be checked, and why.
    """

    checked: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _by_file: Counter[str] = field(default_factory=Counter)

    def differs(self, file: Path | str, item: str, value: object, expected: object) -> None:
        """Add a contradiction."""
        self.wrong(file, f"{item}: {shown(value)}, expected {shown(expected)}")

    def wrong(self, file: Path | str, reason: str) -> None:
        """Add a contradiction in words."""
        self._by_file[str(file)] += 1
        if self._by_file[str(file)] <= _MAX_LINES:
            self.differences.append(f"{file}: {reason}")

    def lines(self) -> Iterator[str]:
        """Yield all lines, as the command prints them."""
        yield from (f"checked  {line}" for line in self.checked)
        yield from (f"DIFFERS  {line}" for line in self.differences)
        for file, count in self._by_file.items():
            if count > _MAX_LINES:
                yield f"DIFFERS  {file}: {count - _MAX_LINES} more"
        yield from (f"amended  {line}" for line in self.later)
        yield from (f"note     {line}" for line in self.notes)

    @contextmanager
    def collecting_errors(self, subject: Path | str) -> Iterator[None]:
        """Add an error of the block, such as a damaged file, and continue after the block.

        Args:
            subject: what an error is about that names no file: values of another kind than a stage writes.
        """
        try:
            yield
        except InputError as error:
            file, separator, reason = str(error).partition(": ")
            # The advice after the semicolon is for the owner: to delete the file, or to train again.
            self.wrong(file, reason.partition("; ")[0] if separator else "damaged")
        except OSError as error:
            self.wrong(error.filename or subject, f"cannot be read ({error.strerror or type(error).__name__})")
        except _OF_ODD_VALUES as error:
            self.wrong(subject, f"has values that no stage writes ({type(error).__name__}: {shown(str(error))})")


def shown(value: object) -> str:
    """Return a value as one short text."""
    text = value if isinstance(value, str) else _as_json(value)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
