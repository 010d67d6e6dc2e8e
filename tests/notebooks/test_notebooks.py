"""The notebooks: what they may hold, and that they run from top to bottom."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from made_up_report import ROOT, params_tree, write_network, write_prepared
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from ruamel.yaml import YAML

from pipeline.paths import DataPaths

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIBRARIES = {"pathlib", "numpy", "pyarrow", "matplotlib.figure", "IPython.display"}
PROJECT = ("pipeline.artifacts.", "pipeline.config.", "pipeline.selection.", "viz.figures.")
SINGLE = {"pipeline.errors", "pipeline.paths", "pipeline.stats"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_of(path: Path) -> Iterator[ast.AST]:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            yield from ast.walk(ast.parse(cell.source))


def imports(path: Path) -> Iterator[str]:
    for node in code_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module


def execute(path: Path, project: Path) -> Any:
    """Run a copy of the notebook in a kernel of its own, in the project's folder `notebooks`."""
    folder = project / "notebooks"
    folder.mkdir(exist_ok=True)
    notebook = read(path)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(project / ".ipython")}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds params.yaml and nothing else yet."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / ".jupyter"))
    YAML().dump(params_tree(), tmp_path / "params.yaml")
    return tmp_path


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["01_features_and_maps.ipynb", "02_what_was_dropped.ipynb"]


@each_notebook
def test_it_is_sound_and_holds_no_results(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == {"language_info": {"name": "python"}}
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@each_notebook
def test_it_defines_nothing(path: Path) -> None:
    assert [ast.unparse(node) for node in code_of(path) if isinstance(node, DEFINITIONS)] == []


@each_notebook
def test_it_imports_figures_and_the_lowest_layers_alone(path: Path) -> None:
    other = set(imports(path)) - LIBRARIES - SINGLE
    assert [name for name in sorted(other) if not name.startswith(PROJECT)] == []


@each_notebook
def test_it_runs_from_top_to_bottom(path: Path, project: Path) -> None:
    data = DataPaths(root=project / "data")
    write_prepared(data)
    for network in params_tree()["networks"]:
        write_network(data, network)
    cells = [cell for cell in execute(path, project).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert cell.outputs, cell.source
        assert [output.text for output in cell.outputs if output.get("name") == "stderr"] == []


@each_notebook
def test_without_artefacts_its_first_cell_says_what_to_run(path: Path, project: Path) -> None:
    with pytest.raises(CellExecutionError) as caught:
        execute(path, project)
    assert caught.value.ename == "SystemExit"
    assert caught.value.evalue.startswith("error: ")
    assert caught.value.evalue.endswith("missing; run `dvc repro`")
    assert "\n" not in caught.value.evalue
