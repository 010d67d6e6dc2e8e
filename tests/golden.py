"""Texts of the writers as checked-in files: `check_golden` compares, `pytest --update-golden` rewrites.

A golden file holds a writer's whole text for made-up inputs, so that one diff shows a changed wording and other tests
assert values, error classes and keys. Its numbers must be equal on all machines.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipeline.errors import InputError

FOLDER = Path(__file__).with_suffix("")
"""tests/golden: one file for each text."""


class _Option:
    """Whether this run of pytest has the flag; the workers of xdist have the options of the run."""

    update = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the files in tests/golden that differ")


def pytest_configure(config: pytest.Config) -> None:
    """Read the flag."""
    _Option.update = config.getoption("--update-golden")


def check_golden(name: str, text: str) -> None:
    """Compare a text with its golden file, or rewrite the file under `--update-golden`.

    Args:
        name: of the file in tests/golden, of this text alone.
        text: all that the writer wrote.

    Raises:
        pytest.fail.Exception: the texts differ, or there is no such file.
    """
    compare_or_update(FOLDER / name, text, update=_Option.update)


def compare_or_update(path: Path, text: str, *, update: bool) -> None:
    """`check_golden` for any file; see there."""
    # As bytes: a file keeps the line ends of its text.
    golden = path.read_bytes().decode() if path.is_file() else None
    if golden == text:
        return
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return
    difference = difflib.unified_diff((golden or "").splitlines(), text.splitlines(), "golden", "now", lineterm="")
    pytest.fail(
        f"{path.name}: {'differs' if golden is not None else 'missing'}; if the new text is right, run this test with "
        "--update-golden and commit the file\n" + "\n".join(difference),
        pytrace=False,
    )


def refusals(
    cases: Mapping[str, Callable[[], object]],
    *,
    hidden: Mapping[str, str] | None = None,
    error: type[Exception] = InputError,
) -> str:
    """The errors of calls with bad input, as the text of a golden file: a line for each case.

    Args:
        cases: name of the case -> the call that has to be refused.
        hidden: text -> what stands for it in the lines, such as a temporary folder's path.
        error: the class of the errors.
    """
    lines = []
    for name, call in cases.items():
        try:
            call()
        except error as refused:
            message = str(refused)
        else:
            pytest.fail(f"{name}: is not refused")
        assert "\n" not in message, name
        for text, stands_for in (hidden or {}).items():
            message = message.replace(text, stands_for)
        lines.append(f"{name} -> {message}\n")
    return "".join(lines)
