"""Write the column `cases` of docs/reliability.md: how many cases pytest collects for the tests that a row names.

python docs/tooling/reliability_counts.py

The last cell of a row names files of tests, and after a file the functions that count; without functions all do. `the
same` is the first file of the row above.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "reliability.md"
_TOKEN = re.compile(r"`(tests/[\w/]+\.py|test_\w+)`|(the same)")
_CASES = "cases"


def with_counts(page: str, collected: Sequence[str]) -> str:
    """Return `page` with the numbers of cases in each table that has the column.

    Args:
        collected: node ids, as `pytest --collect-only -q` prints them.

    Raises:
        ValueError: a row names no test, or one that is not collected.
    """
    lines, column, file = [], None, ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            column = None
        elif _CASES in cells:
            column = cells.index(_CASES)
        elif column is not None and not set(line) <= set("|-: "):
            named = list(_named(cells[-1], file))
            if not named:
                raise ValueError(f"no test in the last cell of: {line}")
            file = named[0][0]
            cells[column] = str(sum(_count(path, function, collected) for path, function in named))
            line = f"| {' | '.join(cells)} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def files_of(page: str) -> list[str]:
    """Return the files of tests that the page names."""
    return sorted({path for path, _ in _TOKEN.findall(page) if path.startswith("tests/")})


def defined_tests(files: Sequence[str]) -> list[str]:
    """Return a node id of each function in `files`, without running pytest."""
    trees = {file: ast.parse((_ROOT / file).read_text(encoding="utf-8")) for file in files}
    return [f"{file}::{node.name}" for file in files for node in trees[file].body if isinstance(node, ast.FunctionDef)]


def _named(cell: str, before: str) -> Iterator[tuple[str, str]]:
    """Yield file and function of each test in a cell; an empty function stands for the whole file."""
    found: list[tuple[str, list[str]]] = []
    for name, same in _TOKEN.findall(cell):
        if same or name.startswith("tests/"):
            found.append((name or before, []))
        elif found:
            found[-1][1].append(name)
    for path, functions in found:
        yield from ((path, function) for function in functions or [""])


def _count(path: str, function: str, collected: Sequence[str]) -> int:
    name = re.compile(rf"{re.escape(path)}::{function}(\[|$)" if function else rf"{re.escape(path)}::")
    count = sum(name.match(node) is not None for node in collected)
    if not count:
        raise ValueError(f"{path}: has no test {function}")
    return count


def collect(files: Sequence[str]) -> list[str]:
    """Return the node ids of all tests in `files`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *files]
    # The caller's own options may change what is printed.
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=_ROOT, env=own, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_counts(text, collect(files_of(text))), encoding="utf-8")
