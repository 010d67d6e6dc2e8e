"""The project's modules and what they import, read from the syntax trees."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pipeline.artifacts.code import import_closure

ROOT = Path(__file__).parents[2]

PACKAGES = ("batchsieve", "pipeline", "viz")


@cache
def modules() -> dict[str, Path]:
    """Name -> file of every module of batchsieve, pipeline and viz."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module that a file imports anywhere; `from a import b` names a and a.b."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def project_imports(name: str) -> set[str]:
    """The modules of this project that one of them imports itself."""
    return {other for other in imported(modules()[name]) if other in modules()}


@cache
def libraries(name: str) -> frozenset[str]:
    """Top-level packages of others that importing and running a module can import."""
    found = {other.split(".")[0] for path in import_closure(name).values() for other in imported(path)}
    return frozenset(found - {*PACKAGES})


@cache
def layers() -> dict[str, str]:
    """Unit -> layer, as docs/architecture.md draws them; a unit is a folder or file below pipeline/."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(L\d) ([a-z_, ]+)", text, flags=re.MULTILINE)
    return {unit.strip(): layer for layer, units in lines for unit in units.split(",")}


def unit_of(name: str) -> str | None:
    """`pipeline.training.loop` -> `training`; None for the top of the package, batchsieve and viz."""
    parts = name.split(".")
    return parts[1] if parts[0] == "pipeline" and len(parts) > 1 and parts[1] != "__main__" else None
