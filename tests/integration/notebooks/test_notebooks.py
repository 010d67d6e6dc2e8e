"""The notebooks: their content, and that they run from top to bottom."""

import ast
import base64
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML

from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.config.renamed_keys import with_old_keys
from pipeline.paths import DataPaths
from tests.fixtures.notebooks import NOTEBOOKS, by_stem, read, run_here
from tests.fixtures.report import ROOT, Outcome, default_outcome, params_tree, params_with, write_artifacts

IMPORTS = {"batchsieve", "numpy", "pandas", "textwrap"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


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
    """Run a copy of the notebook in a separate kernel in `notebooks` of the project."""
    from nbclient import NotebookClient

    folder = project / "notebooks"
    folder.mkdir(exist_ok=True)
    notebook = read(path)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(project / ".ipython")}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


def pictures_of_page(notebook: Any) -> list[Image.Image]:
    """Return the pictures in the page that nbconvert makes of a notebook that was run."""
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter().from_notebook_node(notebook)
    found = re.findall(r'<img[^>]*\ssrc="data:image/png;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(content))) for content in found]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml and nothing else."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / ".jupyter"))
    YAML().dump(params_tree(), tmp_path / "params.yaml")
    return tmp_path


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_features_and_maps",
        "02_what_was_dropped",
        "03_batch_scaling",
        "04_the_verdict",
    ]


@each_notebook
def test_it_is_sound_and_holds_no_results(path: Path) -> None:
    import nbformat

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
def test_it_imports_the_public_module_and_few_others(path: Path) -> None:
    assert "batchsieve" in imports(path)
    assert set(imports(path)) - IMPORTS == set()


def write_results(data: DataPaths, outcome: Outcome = default_outcome) -> None:
    """Write all outputs of `dvc repro` for two networks and a study."""
    write_artifacts(data, params_with(), outcome)
    write_json(data.resources, {"train@digits": {"wall_s": 61.5, "images_per_s": 387.1}, "prepare": {"wall_s": 1.1}})


@pytest.mark.parametrize(
    "path",
    [path if path == NOTEBOOKS[-1] else pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs_from_top_to_bottom(path: Path, project: Path) -> None:
    write_results(DataPaths(root=project / "data"))
    notebook = execute(path, project)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert cell.outputs, cell.source
        assert [output.text for output in cell.outputs if output.get("name") == "stderr"] == []
        # Sites that show notebooks, and nbconvert, run no script of Plotly.
        assert not [kind for output in cell.outputs for kind in output.get("data", {}) if "plotly" in kind]
    charts = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert charts > 0
    assert [min(picture.size) > 100 for picture in pictures_of_page(notebook)] == [True] * charts
    # It ends with a conclusion.
    assert "".join(output.get("text", "") for output in cells[-1].outputs).strip()


@pytest.mark.parametrize("old_keys", [False, True])
@each_notebook
def test_without_artifacts_its_first_cell_names_the_command_to_run(
    path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, *, old_keys: bool
) -> None:
    if old_keys:
        YAML().dump(with_old_keys(params_tree()), project / "params.yaml")
    (project / "notebooks").mkdir()
    monkeypatch.chdir(project / "notebooks")
    first = next(cell for cell in read(path).cells if cell.cell_type == "code")
    with pytest.raises(SystemExit) as ended:
        exec(first.source, {})
    said = str(ended.value.code)
    assert said.startswith("error: ")
    assert said.endswith("missing; run `dvc repro`")
    assert "\n" not in said


def write_scored(project: Path) -> DataPaths:
    """Write results of a filter by another scorer than the default."""
    params = params_tree()
    params["filter"] = {"scorer": {"name": "knn_agreement"}, "drop_fraction": 0.05}
    YAML().dump(params, project / "params.yaml")
    data = DataPaths(root=project / "data")
    write_results(data)
    return data


def assert_names_scorer(path: Path, shown: str) -> None:
    assert "scorer of the filter: knn_agreement" in shown
    assert "DBSCAN calls" not in f"{read(path)} {shown}"
    assert "DBSCAN's" not in f"{read(path)} {shown}"


@pytest.mark.slow
def test_random_images_are_of_all_classes_and_the_scorer_is_named(project: Path) -> None:
    """Rows of an image folder are sorted by class."""
    write_scored(project)
    more = "print('rising:', bool(np.all(np.diff(random_dropped) > 0)), 'of', len(random_dropped))"
    path = by_stem("02_what_was_dropped")
    shown = run_here(path, project, more)
    assert shown.endswith("rising: False of 6\n")
    assert_names_scorer(path, shown)


@pytest.mark.slow
def test_without_pca_all_features_are_used_and_scorer_is_named(project: Path) -> None:
    data = write_scored(project)
    for network in ("resnet18", "resnet34"):
        write_json(data.reduce_metrics(network), read_json(data.reduce_metrics(network)) | {"pca": None})
        data.provenance("reduce", network).unlink()  # of the file before
    path = by_stem("01_features_and_maps")
    shown = run_here(path, project)
    assert "no PCA: the embedding uses all features" in shown
    assert_names_scorer(path, shown)


def nothing_finished(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"status": "diverged", "reason": "the training loss stopped being finite"}


def some_failed_others_metered(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row["batch_size"] == 512:
        return {"status": "skipped", "reason": "batch 512 is larger than the 74 images of arm filtered", "steps": None}
    if row["batch_size"] == 128 and row["arm"] == "full" and row["seed"] == 1:
        return {"status": "diverged", "reason": "the training loss stopped being finite"}
    return {**default_outcome(row), "critical_batch": 1234.0, "critical_batch_low": 900.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["03_batch_scaling", "04_the_verdict"])
@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (
            some_failed_others_metered,
            {
                "03_batch_scaling": "more than 900",
                "04_the_verdict": "secondary: filtered against full at equal steps",
            },
        ),
        (
            nothing_finished,
            {
                "03_batch_scaling": "0 of 27 runs finished",
                "04_the_verdict": "primary: filtered against random at equal steps: nothing to compare",
            },
        ),
    ],
)
def test_runs_without_a_result_do_not_stop_it(
    name: str, outcome: Outcome, said: Mapping[str, str], project: Path
) -> None:
    write_results(DataPaths(root=project / "data"), outcome)
    assert said[name] in run_here(by_stem(name), project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("margin", "verdict"), [(0.5, "helps, +1.0"), (2.0, "equivalent within ±2.00 percentage points")]
)
def test_the_verdict_is_that_of_the_statistics_by_the_stated_plan(margin: float, verdict: str, project: Path) -> None:
    """Filtered is a point better than every other arm in each seed and class, and six seeds can show it."""
    params = params_tree(seeds=list(range(6)))
    params["report"] |= {"margin": margin, "primary": "full"}
    YAML().dump(params, project / "params.yaml")
    data = DataPaths(root=project / "data")
    write_artifacts(
        data,
        params_with(seeds=list(range(6))),
        lambda row: {"top1": 0.9 + 0.01 * (row["arm"] == "filtered") + 1e-4 * (row["seed"] * len(row["arm"]) % 5)},
    )
    arms = np.array(read_parquet(data.runs("digits"), ["arm"])["arm"].to_pylist())
    labels = read_parquet(data.manifest("test"), ["label"])["label"].to_numpy()
    # All images of class 0 are wrong but in the filtered arm.
    write_array(data.correct("digits"), (labels > 0) | (arms[:, None] == "filtered"))
    data.provenance("train", "digits").unlink()  # of the file before
    shown = run_here(by_stem("04_the_verdict"), project)
    assert shown.count(f"primary: filtered against full at equal steps: {verdict}") == 1
    assert shown.count(f"secondary: filtered against random at equal steps: {verdict}") == 1
    outcome = verdict.split()[0].removesuffix(",")
    assert shown.rstrip().splitlines()[-1].startswith(f"digits: {outcome}, +1.0")
    assert len(re.findall(r"\+100\.00 \(\+\d+\.\d\d to \+\d+\.\d\d\)", shown)) == 4
    assert len(re.findall(r"\+0\.00 \(−\d+\.\d\d to \+\d+\.\d\d\)", shown)) == 6
