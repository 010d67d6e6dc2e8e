"""Print the counts of docs/decisions/house.md for commits: `python docs/tooling/house_counts.py 60df56d HEAD`."""

import argparse
import ast
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_CODE = ("pipeline", "viz", "batchsieve")
# Modules that a batch passes through between the images and the update of the weights.
_BATCH = ("batching", "training/step", "training/loop", "training/gradients", "training/exact_gradients", "datasets")


def main() -> None:
    """Print a row of the table for each count, with a column for each commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", metavar="COMMIT", nargs="+", help="commit to count, for example HEAD")
    commits = parser.parse_args().commits
    columns = [_counts(commit) for commit in commits]
    print("| count |", " | ".join(commits), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} |", " | ".join(column[name] for column in columns), "|")


def _counts(commit: str) -> dict[str, str]:
    archive = subprocess.run(["git", "archive", commit], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        root = Path(folder)
        return {name: count(root) for name, count in _COUNTS.items()}


def _modules(root: Path) -> list[int]:
    """Return the lines of each module of the code."""
    return [len(path.read_text().splitlines()) for top in _CODE for path in sorted((root / top).rglob("*.py"))]


def _lines_of_modules(root: Path) -> str:
    lines = _modules(root)
    return f"{sum(lines) / len(lines):.0f}, {max(lines)}"


def _short_modules(root: Path) -> str:
    paths = [path for top in _CODE for path in (root / top).rglob("*.py") if path.name != "__init__.py"]
    return str(sum(len(path.read_text().splitlines()) < 50 for path in paths))


def _functions(paths: list[Path]) -> Iterator[ast.FunctionDef]:
    for path in paths:
        yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def _parameters_on_the_path_of_a_batch(root: Path) -> str:
    pipeline = root / "pipeline"
    paths = [path for path in pipeline.rglob("*.py") if str(path.relative_to(pipeline)).startswith(_BATCH)]
    names = [[arg.arg for arg in (*f.args.args, *f.args.kwonlyargs)] for f in _functions(paths)]
    return str(max((len([name for name in each if name != "self"]) for each in names), default=0))


def _words(path: Path) -> int:
    return len(path.read_text().split())


def _readme(root: Path) -> str:
    readme = root / "README.md"
    return f"{len(readme.read_text().splitlines())} lines, {_words(readme):,} words"


def _pages(root: Path) -> str:
    pages = [path for path in (root / "docs").rglob("*.md") if "results" not in path.parts]
    return f"{len(pages)}, {sum(map(_words, pages)):,} words"


def _size_of_results(root: Path) -> str:
    return f"{sum(path.stat().st_size for path in (root / 'docs/results').rglob('*') if path.is_file()) / 1e6:.1f} MB"


def _in_tests(pattern: str) -> Callable[[Path], str]:
    def count(root: Path) -> str:
        return f"{sum(len(re.findall(pattern, path.read_text())) for path in (root / 'tests').rglob('*.py')):,}"

    return count


_COUNTS: dict[str, Callable[[Path], str]] = {
    "modules of pipeline, viz and batchsieve, with `__init__.py`": lambda root: str(len(_modules(root))),
    "their lines": lambda root: f"{sum(_modules(root)):,}",
    "mean and maximum lines of a module": _lines_of_modules,
    "modules under 50 lines, without `__init__.py`": _short_modules,
    "most parameters of a function on the path of a batch": _parameters_on_the_path_of_a_batch,
    "README.md": _readme,
    "pages of docs without results": _pages,
    "code dependencies in dvc.yaml": lambda root: str(
        len(re.findall(r"^ +- (?:pipeline|viz|batchsieve)\S*$", (root / "dvc.yaml").read_text(), re.MULTILINE))
    ),
    "docs/results": _size_of_results,
    "assertions on the wording of errors (`match=`)": _in_tests(r"\bmatch="),
    "test functions": _in_tests(r"(?m)^def test_"),
}

if __name__ == "__main__":
    main()
