"""Provenance of results: digests of files, parameters and code."""

import ast
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import write_json
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.errors import DataError, InputError

_PROJECT = Path(__file__).resolve().parents[2]
_OWN_PACKAGES = ("pipeline", "viz")

# Digests of this process, by the file's device, number, size and times.
_DIGESTS: dict[tuple[int, ...], str] = {}
# Network file systems have clocks of a second.
_CLOCK_TICK_NS = 3_000_000_000

# Packages that affect the content of an artifact. The version of Python does not, and differs between machines with
# the same requirements.lock. It is recorded with the costs, so that equal results have equal files.
_PACKAGES = ("numpy", "opentsne", "pillow", "pyarrow", "scikit-learn", "scipy", "timm", "torch", "torchvision")


def import_closure(module: str, *, exclude: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Return all modules of this project that importing and running `module` can import, with their files.

    This includes imports inside functions, and the `__init__` files of packages.

    Args:
        exclude: modules to leave out, with the modules that only they import.
    """
    closure: dict[str, Path] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        path = _module_file(name)
        if path is None or name in closure or name in exclude:
            continue
        closure[name] = path
        pending.extend(_imports(path.read_text(encoding="utf-8")))
        pending.extend(".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 1))
    return dict(sorted(closure.items()))


def code_digest(module: str, *, exclude: frozenset[str] = frozenset()) -> str:
    """Return the SHA-256 of the syntax trees of the import closure, without docstrings and comments.

    Args:
        exclude: modules left out, with what they alone import: they cannot change a result.

    Raises:
        AssertionError: `module` or a name in `exclude` is not a module of this project, e.g. after a rename.
    """
    # A stale name would silently change what the digest covers.
    missing = sorted(name for name in {module, *exclude} if _module_file(name) is None)
    assert not missing, f"not modules of this project: {missing}"
    digest = hashlib.sha256()
    for name, path in import_closure(module, exclude=exclude).items():
        digest.update(f"{name}\n{_without_docstrings(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()


def _module_file(module: str) -> Path | None:
    if module.split(".")[0] not in _OWN_PACKAGES:
        return None
    base = _PROJECT.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


# Cached by text: closures share most of their files, and parsing takes milliseconds each.
@cache
def _imports(text: str) -> tuple[str, ...]:
    return tuple(_imported(ast.parse(text)))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            # `from package import module` imports a module too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Including the docstrings of attributes: a bare string has no effect.
            node.body = [statement for statement in node.body if not _is_docstring(statement)] or [ast.Pass()]
        _remove_version(node)
    # Python 3.13 leaves empty lists out by default.
    options: dict[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return ast.dump(tree, **options)


def _remove_version(node: ast.AST) -> None:
    """Remove what only some versions of Python write for the same code."""
    if getattr(node, "type_params", None) == []:
        del node.type_params  # type: ignore[attr-defined]
    if isinstance(node, ast.JoinedStr):
        node.values = [value for value in node.values if not (isinstance(value, ast.Constant) and value.value == "")]


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def sha256_of_file(path: Path) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digest(path: Path) -> str:
    """Return the hex digest of a file's bytes, read once in a process as long as nothing touches the file.

    Any write sets the time of the last change (ctime), which no program can set back.
    """
    now, before = time.time_ns(), path.stat()
    if not stat.S_ISREG(before.st_mode):
        raise DataError(f"{path}: not a regular file; remove it, and run the stage that writes it")
    stamp = (before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns)
    if (known := _DIGESTS.get(stamp)) is not None:
        return known
    digest = sha256_of_file(path)
    # Another write within the clock's tick would leave the same stamp.
    if now - before.st_ctime_ns > _CLOCK_TICK_NS:
        _DIGESTS[stamp] = digest
    return digest


def write_provenance(
    path: Path,
    *,
    stage: str,
    parameters: Mapping[str, Any],
    inputs: Sequence[Path],
    outputs: Sequence[Path],
    renamed_later: Mapping[Path, Path] | None = None,
) -> None:
    """Write the provenance of `outputs`: stage, parameters, package versions, and the digests of inputs and outputs.

    The record has no dates and no machine names, so equal results give equal bytes. File names are relative to the
    folder of `path`. Its key `sha256` is the digest of all others.

    Args:
        renamed_later: further outputs, by the file that has their content now and is renamed after the record is there.
    """
    later = {os.path.relpath(output, path.parent): file_digest(file) for output, file in (renamed_later or {}).items()}
    record = {
        "stage": stage,
        "parameters": dict(parameters),
        "versions": dict(_versions()),
        "inputs": _digests(inputs, path.parent),
        "outputs": _digests(outputs, path.parent) | later,
    }
    write_json(path, {**record, "sha256": _digest_of_record(record)})


def read_provenance(path: Path) -> dict[str, Any]:
    """Read what `write_provenance` wrote.

    Returns:
        The record; those of earlier versions have no key `sha256`.

    Raises:
        DataError: the file is missing, damaged, or has changed since it was written.
    """
    fix = "run the stage that writes it again"
    if not path.exists():
        raise DataError(f"{path}: missing; {fix}")
    try:
        record = read_untrusted_json(path, may_be_link=True)
    except InputError as error:
        raise DataError(str(error)) from None
    if not isinstance(record, dict):
        raise DataError(f"{path}: holds no record of a stage; {fix}")
    texts = {"stage": str, "parameters": dict, "versions": dict, "inputs": dict, "outputs": dict}
    for key, kind in texts.items():
        if not isinstance(record.get(key), kind):
            raise DataError(f"{path}: its key {key} is missing or damaged; {fix}")
    for key in ("versions", "inputs", "outputs"):
        if not all(isinstance(value, str) for value in record[key].values()):
            raise DataError(f"{path}: its key {key} is damaged; {fix}")
    # No version wrote another key, so one is `sha256` with a damaged name.
    is_whole = not record.keys() - texts.keys() - {"sha256"}
    if "sha256" in record:
        is_whole &= record["sha256"] == _digest_of_record({key: record[key] for key in texts})
    if not is_whole:
        raise DataError(f"{path}: has changed since it was written; {fix}")
    return record


def _digest_of_record(record: Mapping[str, Any]) -> str:
    # As the file has it: `write_json` writes numbers that are not finite as null.
    written = json.loads(json.dumps(record), parse_constant=lambda _: None)
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def _digests(files: Sequence[Path], folder: Path) -> dict[str, str]:
    return {os.path.relpath(file, folder): file_digest(file) for file in files}


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
