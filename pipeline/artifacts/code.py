"""What a module's results depend on in this repository: its import closure and a digest of it."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]
_PACKAGES = ("pipeline", "viz")


def import_closure(module: str, *, passive: frozenset[str] = frozenset()) -> dict[str, Path]:
    """All modules of this project that importing and running `module` can import, with their files.

    Imports inside functions count; packages' `__init__` files too.

    Args:
        passive: modules left out, with what they alone import.
    """
    closure: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in closure or name in passive:
            continue
        closure[name] = path
        waiting.extend(_imports(path.read_text(encoding="utf-8")))
        waiting.extend(".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 1))
    return dict(sorted(closure.items()))


def code_digest(module: str, *, passive: frozenset[str] = frozenset()) -> str:
    """SHA-256 over the syntax trees of the closure, without docstrings and comments.

    Args:
        passive: modules left out, with what they alone import: they cannot change a result.
    """
    digest = hashlib.sha256()
    for name, path in import_closure(module, passive=passive).items():
        digest.update(f"{name}\n{_without_docstrings(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()


def _file_of(module: str) -> Path | None:
    if module.split(".")[0] not in _PACKAGES:
        return None
    base = _PROJECT.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


# By text, since closures share most of their files, and these take milliseconds each.
@cache
def _imports(text: str) -> tuple[str, ...]:
    return tuple(_imported(ast.parse(text)))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            # `from package import module` names a module too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Below attributes too: a string that stands alone does nothing.
            node.body = [statement for statement in node.body if not _is_text(statement)] or [ast.Pass()]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
