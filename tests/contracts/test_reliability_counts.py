"""The numbers of cases in docs/reliability.md are those that pytest collects."""

import runpy
from typing import Any

import pytest

from tests.fixtures.source_tree import ROOT

_PROGRAM: dict[str, Any] = runpy.run_path(str(ROOT / "docs/tooling/reliability_counts.py"))
_PAGE = """Text with | a bar.

| fault | cases | test |
|---|---|---|
| one | 7 | `tests/a/test_x.py`: `test_one` |
| all of it | 0 | the same |
| two files | 0 | `tests/a/test_x.py`: `test_one`, `test_two`; `tests/b/test_y.py` |

| what | test |
|---|---|
| not counted | `tests/a/test_x.py` |
"""
_COLLECTED = ["tests/a/test_x.py::test_one[1]", "tests/a/test_x.py::test_one[2]", "tests/a/test_x.py::test_two",
              "tests/a/test_x.py::test_one_more", "tests/b/test_y.py::test_z"]  # fmt: skip


def test_rows_get_the_number_of_their_cases() -> None:
    page = _PROGRAM["with_counts"](_PAGE, _COLLECTED)
    counts = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith(("| one", "| all", "| two"))]
    assert counts == ["2", "4", "4"]
    assert page.replace("| 2 |", "| 7 |", 1).replace("| 4 |", "| 0 |") == _PAGE
    assert _PROGRAM["files_of"](_PAGE) == ["tests/a/test_x.py", "tests/b/test_y.py"]


def test_a_test_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no test test_two"):
        _PROGRAM["with_counts"](_PAGE, [name for name in _COLLECTED if "two" not in name])


def test_every_test_that_the_page_names_exists() -> None:
    page = _PROGRAM["PAGE"].read_text(encoding="utf-8")
    counted = _PROGRAM["with_counts"](page, _PROGRAM["defined_tests"](_PROGRAM["files_of"](page)))
    assert counted.count("\n") == page.count("\n")


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_page_is_current() -> None:
    page = _PROGRAM["PAGE"].read_text(encoding="utf-8")
    counted = _PROGRAM["with_counts"](page, _PROGRAM["collect"](_PROGRAM["files_of"](page)))
    assert page == counted, "run `python docs/tooling/reliability_counts.py`"
