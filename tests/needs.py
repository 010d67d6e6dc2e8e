"""Marks every test by what it needs, read from the code that it and its fixtures name, so that nobody keeps the marks.

`subprocess`: starts a process; git and its like, which take milliseconds, do not count. `distributed`: starts
processes that share a job. `browser`: drives Chromium. What the code does not show, a library or a stage that starts
a process, is marked by hand: an audit fails each test that starts one without the mark.
"""

import ast
import shutil
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parent
_STARTERS = {"subprocess": {"run", "Popen", "call", "check_call", "check_output"}, "os": {"fork", "forkpty"}}
_STARTING_CLASSES = {"NotebookClient"}
# Of milliseconds; libraries ask some of them about the machine.
_QUICK_PROGRAMS = {"git", "tar", "uname", "lscpu", "ldconfig"}
_SEVERAL = {"ranks", "workers"}


@dataclass(frozen=True)
class _Module:
    """The top level of a file: its definitions, and the names that it imports from other files of the tests."""

    defined: dict[str, ast.AST] = field(default_factory=dict)
    imported: dict[str, tuple[Path, str]] = field(default_factory=dict)


def needs_of(path: Path, function: str) -> frozenset[str]:
    """What a function of a file in tests/ shows, with all that it names there, as the names of marks."""
    found: set[str] = set()
    seen: set[tuple[Path, str]] = set()
    waiting = [(path, function)]
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            shown, named = _read(*place)
            found |= shown
            waiting.extend(named)
    return frozenset(found)


@cache
def _read(path: Path, name: str) -> tuple[frozenset[str], tuple[tuple[Path, str], ...]]:
    """What one definition shows by itself, and the definitions in tests/ that it names."""
    module = _module(path)
    if name in module.imported:
        return frozenset(), (module.imported[name],)
    if (path, name) == (_TESTS / "chromium.py", "browser"):
        return frozenset({"browser", "subprocess"}), ()
    node = module.defined.get(name)
    parts = [] if node is None else list(ast.walk(node))
    shown = frozenset(mark for part in parts for mark in _shown(part))
    names = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    local = {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    local |= {part.arg for part in parts if isinstance(part, ast.arg)}
    return shown, tuple((path, other) for other in names - local if other in {*module.defined, *module.imported})


def _shown(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call | ast.Dict):
        return
    keyed: list[tuple[object, ast.expr]] = []
    if isinstance(node, ast.Dict):
        keyed = [(key.value, v) for key, v in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)]
    else:
        if _is_starter(node.func) and not _is_quick(node):
            yield "subprocess"
        # A result that names its number of workers starts none.
        if not _name_of(node.func)[:1].isupper():
            keyed = [(keyword.arg, keyword.value) for keyword in node.keywords]
    if any(key in _SEVERAL and _is_several(value) for key, value in keyed):
        yield "distributed"


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_starter(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr in _STARTERS.get(function.value.id, ())
    return _name_of(function) in _STARTING_CLASSES


def _is_quick(call: ast.Call) -> bool:
    command = call.args[0] if call.args else None
    program = command.elts[0] if isinstance(command, ast.List) and command.elts else None
    return isinstance(program, ast.Constant) and program.value in _QUICK_PROGRAMS


def _is_several(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value > 1


@cache
def _module(path: Path) -> _Module:
    module = _Module()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            sources = (folder / f"{node.module}.py" for folder in (path.parent, _TESTS))
            source = next((source for source in sources if source.is_file()), None)
            if source is not None:
                module.imported.update({alias.asname or alias.name: (source, alias.name) for alias in node.names})
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            module.defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            module.defined.update({target.id: node for target in targets if isinstance(target, ast.Name)})
    return module


def _fixtures(item: pytest.Function) -> Iterator[pytest.FixtureDef[Any]]:
    """All that the test asks for, those of its fixtures too."""
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        yield from fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marks."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        needs = set(needs_of(item.path, item.originalname))
        for fixture in _fixtures(item):
            code = getattr(fixture.func, "__code__", None)
            if code is not None and _TESTS in Path(code.co_filename).parents:
                needs |= needs_of(Path(code.co_filename), code.co_name)
        needs |= {mark.name for mark in item.iter_markers()} & {"subprocess"}
        if "subprocess" not in needs:
            continue
        if item.path.parent == _TESTS / "distributed":
            needs.add("distributed")
        for need in needs:
            item.add_marker(need)


class _Audit:
    """The processes that this one starts."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.by_fixture: dict[object, list[str]] = {}

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[0]]
            words = [word.decode() if isinstance(word, bytes) else str(word) for word in command]
            # What is not there is not started.
            if Path(words[0]).name not in _QUICK_PROGRAMS and shutil.which(words[0]) is not None:
                self.started.append(" ".join(words)[:200])
        elif event in ("os.fork", "os.posix_spawn"):
            self.started.append(event)


_audit = _Audit()


def pytest_configure() -> None:
    """Watch this process; an audit hook stays to its end."""
    sys.addaudithook(_audit.note)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """A fixture that starts a process makes every test that asks for it start one, whichever comes first."""
    before = len(_audit.started)
    try:
        return (yield)
    finally:
        if started := _audit.started[before:]:
            _audit.by_fixture[fixturedef] = started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that started a process and is not marked so."""
    _audit.started.clear()
    yield
    assert isinstance(item, pytest.Function)
    started = [*_audit.started, *(line for fixture in _fixtures(item) for line in _audit.by_fixture.get(fixture, ()))]
    if started and item.get_closest_marker("subprocess") is None:
        pytest.fail(f"it starts a process without @pytest.mark.subprocess: {started[0]}", pytrace=False)
    ranks = [command for command in started if "torch.distributed.run" in command]
    if ranks and item.get_closest_marker("distributed") is None:
        pytest.fail(f"it starts ranks without @pytest.mark.distributed: {ranks[0]}", pytrace=False)
