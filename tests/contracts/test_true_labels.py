"""Only reports, the visualizer and benchmarks read the true labels of labels that were changed on purpose."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_project
from tests.fixtures.planted import say_planted
from tests.fixtures.records import record_again
from tests.fixtures.source_tree import modules, tree
from tests.fixtures.training import TINY_STUDY, stage

_STAGES = ("finetune", "extract", "reduce", "filter", "train")
# `prepare` writes the column, and `prepared` reads it for `_READERS`.
_OWNERS = {"pipeline.artifacts.prepared", "pipeline.stages.prepare"}
_READERS = ("pipeline.reporting.", "viz.")


def _names(module: ast.AST) -> Iterator[str]:
    """Yield every name, attribute, argument, imported name and string of a syntax tree, without docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.FunctionDef(name=name):
                yield name
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text


def test_no_other_module_names_true_labels() -> None:
    naming = {name for name, path in modules().items() if any("true_label" in n.lower() for n in _names(tree(path)))}
    assert naming >= _OWNERS | {"pipeline.reporting.inputs", "viz.data"}
    assert [name for name in sorted(naming - _OWNERS) if not name.startswith(_READERS)] == []


def _functions_that_read(module: ast.Module) -> set[str]:
    """Return the functions that name true labels, or that name another such function of the module."""
    named = {node.name: set(_names(node)) for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    reading = {name for name, names in named.items() if any("true_label" in n.lower() for n in names)}
    while more := {name for name, names in named.items() if names & reading} - reading:
        reading |= more
    return reading


def test_no_other_module_calls_what_reads_true_labels() -> None:
    """Also by a function whose own name does not say so."""
    reading = _functions_that_read(tree(modules()["pipeline.artifacts.prepared"]))
    calling = {name for name, path in modules().items() if reading.intersection(_names(tree(path)))}
    assert calling >= {"pipeline.reporting.inputs", "viz.data"}
    assert [name for name in sorted(calling - _OWNERS) if not name.startswith(_READERS)] == []


def test_callers_of_callers_are_recognized() -> None:
    lines = ["def a():", "    return table[TRUE_LABEL]", "def b():", "    return a()", "def c():", "    return b()"]
    assert _functions_that_read(ast.parse("\n".join([*lines, "def d():", "    return e()"]))) == {"a", "b", "c"}


def _reads_of_all_columns(module: ast.Module) -> list[int]:
    """Return the lines that read a manifest without a list of columns."""
    return [
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in ("read_parquet", "read_table")
        and not (len(node.args) > 1 or any(keyword.arg == "columns" for keyword in node.keywords))
        and "manifest" in ast.unparse(node)
    ]


def test_no_manifest_is_read_with_all_its_columns() -> None:
    read = {name: _reads_of_all_columns(tree(path)) for name, path in modules().items()}
    assert {name: lines for name, lines in read.items() if lines} == {}


def test_reads_of_all_columns_are_recognized() -> None:
    lines = [
        'table = read_parquet(data.manifest("train"))',
        'part = read_parquet(data.manifest("train"), ["path"])',
        "points = read_parquet(data.points(network))",
        "columns = tables.read_parquet(manifest, columns=NAMES)",
        "again = tables.read_parquet(manifest)",
    ]
    assert _reads_of_all_columns(ast.parse("\n".join(lines))) == [1, 5]


def test_names_and_strings_are_recognized_and_docstrings_are_not() -> None:
    lines = [
        "def f(true_label):",
        '    """true_labels are not read."""',
        '    return table["TRUE_LABEL"], read_true_labels',
    ]
    names = set(_names(ast.parse("\n".join(lines))))
    assert names == {"f", "true_label", "table", "TRUE_LABEL", "read_true_labels"}


@pytest.fixture
def project(tmp_path: Path) -> DataPaths:
    """A prepared project with eight labels that were changed on purpose."""
    study = {**TINY_STUDY, "seeds": [0]}
    train = {"schedule": {"name": "cosine"}, "augmentation": {}}
    data = write_project(tmp_path, train=train, studies={"digits": None, "tiny": study})
    say_planted(data, dict.fromkeys(range(8), 3))
    return data


def _results(data: DataPaths) -> dict[str, bytes]:
    """Run the stages after `prepare` without earlier results, and return their outputs: file -> content."""
    folder = data.root.parent
    shutil.rmtree(folder / "work")
    for name in _STAGES:
        assert stage(name, folder) == 0
    files = {
        path.relative_to(data.root).as_posix(): path.read_bytes()
        for name in _STAGES
        for path in sorted((data.root / name).rglob("*"))
        # The provenance contains the hash of the manifest.
        if path.is_file() and not path.name.endswith("provenance.json")
    }
    # The fingerprint of a run depends on it, too.
    for path in (data.runs("tiny"), data.history("tiny")):
        rows = read_parquet(path).drop_columns(["fingerprint"]).to_pylist()
        files[path.relative_to(data.root).as_posix()] = repr(rows).encode()
    return files


@pytest.mark.slow
def test_other_true_labels_change_no_result(project: DataPaths) -> None:
    first = _results(project)
    manifest = read_parquet(project.manifest("train"))
    column = manifest.column_names.index("true_label")
    others = pa.array((manifest["label"].to_numpy() + np.arange(len(manifest))) % 4)
    write_parquet(project.manifest("train"), manifest.set_column(column, "true_label", others))
    record_again(project)
    second = _results(project)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
