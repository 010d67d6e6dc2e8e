"""`pytest --changed`: the test files that are about what differs from the last commit, for `make quick`.

These are the test files that differ themselves, those that import a changed module or a changed helper of the tests,
and those named after one in the folder of its package: tests/stages/test_train_*.py for pipeline/stages/train.py. A
file that is no Python counts as the modules of its folder. The contracts always run. What a change breaks farther away
is for `make test` to find.
"""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_ROOT = _TESTS.parent
_CHOSEN = pytest.StashKey[frozenset[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--changed", action="store_true", help="only test files about what differs from the last commit")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the files.

    Raises:
        pytest.UsageError: nothing differs, or nobody knows.
    """
    if config.getoption("--changed"):
        changed = changed_files()
        if not changed:
            raise pytest.UsageError("--changed: no file differs from the last commit; run `make test` instead")
        config.stash[_CHOSEN] = test_files_about(changed)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the other files unread."""
    chosen = config.stash.get(_CHOSEN, None)
    return True if chosen is not None and collection_path.suffix == ".py" and collection_path not in chosen else None


def changed_files() -> list[Path]:
    """All that differs from the last commit, new files too, relative to the project.

    Raises:
        pytest.UsageError: the project is no checkout of git, or git is missing.
    """
    commands = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    try:
        texts = [
            subprocess.run(["git", *command], cwd=_ROOT, capture_output=True, text=True, check=True).stdout
            for command in commands
        ]
    except (OSError, subprocess.CalledProcessError):
        raise pytest.UsageError("--changed: needs git and a checkout with a commit; run `make test` instead") from None
    return sorted({Path(line) for text in texts for line in text.splitlines()})


def test_files_about(changed: list[Path]) -> frozenset[Path]:
    """The test files to run for changes of these files, given relative to the project."""
    modules = {module for path in changed for module in _modules_of(path)}
    names = {(module.split(".")[-2], module.split(".")[-1]) for module in modules if "." in module}
    return frozenset(
        path
        for path in _TESTS.rglob("test_*.py")
        if path.relative_to(_ROOT) in changed
        or path.parent == _TESTS / "contracts"
        or not modules.isdisjoint(_imports(path))
        or any(path.parent.name == package and name in path.stem for package, name in names)
    )


def _modules_of(path: Path) -> Iterator[str]:
    """A module's name; of another file, those of the modules beside it. Helpers of the tests go by their paths."""
    top = path.parts[0]
    if top == "tests" and path.suffix == ".py":
        yield str(path)
    if top not in ("batchsieve", "pipeline", "viz", "benchmarks"):
        return
    beside = [path] if path.suffix == ".py" else [own.relative_to(_ROOT) for own in (_ROOT / path).parent.glob("*.py")]
    for own in beside:
        *package, name = own.with_suffix("").parts
        module = ".".join(package if name == "__init__" else [*package, name])
        yield module
        # Who imports the package has what it re-exports.
        exports = _ROOT.joinpath(*package, "__init__.py")
        if exports.is_file() and module in _imports(exports):
            yield ".".join(package)


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules that a file imports itself; of one of the tests also the paths of its helpers and of theirs."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for name in tuple(found):
        for helper in (path.parent / f"{name}.py", _TESTS / f"{name}.py"):
            if helper.is_file():
                found |= {str(helper.relative_to(_ROOT)), *(name for name in _imports(helper) if name.endswith(".py"))}
    return frozenset(found)
