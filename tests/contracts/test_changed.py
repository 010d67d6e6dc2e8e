"""`make quick` runs the tests about what differs from the last commit."""

from pathlib import Path

import pytest

import tests.fixtures.changed as changed
import tests.fixtures.tiny_project as tiny_project

_FILES = {
    "pipeline/optim/__init__.py": "from pipeline.optim.optimizers import lars",
    "pipeline/optim/optimizers.py": "",
    "pipeline/stages/train.py": "",
    "pipeline/reporting/render.py": "",
    "pipeline/reporting/page.html": "",
    "tests/fixtures/projects.py": "",
    "tests/fixtures/runs.py": "from tests.fixtures.projects import ROOT",
    "tests/unit/optim/test_optimizers.py": "from pipeline import optim",
    "tests/unit/reporting/test_page.py": (
        "from pipeline.reporting.render import write\nfrom tests.fixtures.runs import RUNS"
    ),
    "tests/integration/stages/test_train_stage.py": "",
    "tests/contracts/test_layers.py": "",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(changed, "_ROOT", tmp_path)
    monkeypatch.setattr(changed, "_TESTS", tmp_path / "tests")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("pipeline/optim/optimizers.py", {"unit/optim/test_optimizers.py"}),  # through the package that re-exports it
        ("pipeline/stages/train.py", {"integration/stages/test_train_stage.py"}),  # through its name
        ("pipeline/reporting/page.html", {"unit/reporting/test_page.py"}),  # through the modules of its folder
        ("tests/fixtures/projects.py", {"unit/reporting/test_page.py"}),  # through a helper of a helper
        ("tests/integration/stages/test_train_stage.py", {"integration/stages/test_train_stage.py"}),
        ("README.md", set()),
    ],
)
def test_the_tests_about_a_change_are_selected(project: Path, file: str, tests: set[str]) -> None:
    selected = changed.select_test_files([Path(file)])
    assert {str(path.relative_to(project / "tests")) for path in selected} == {"contracts/test_layers.py", *tests}


def test_of_many_files_that_import_a_module_the_smallest_run(project: Path) -> None:
    for number in range(30):
        text = "from pipeline.optim import optimizers" + number * " #"
        (project / f"tests/unit/test_{number:02}.py").write_text(text)
    selected = changed.select_test_files([Path("pipeline/optim/optimizers.py")])
    smallest = {f"test_{number:02}.py" for number in range(14)}  # and test_optimizers.py, which is smaller still
    assert {path.name for path in selected} == {"test_layers.py", "test_optimizers.py", *smallest}


@pytest.mark.parametrize("git", ["no checkout", "no git"])
def test_outside_a_checkout_nothing_is_selected(git: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if git == "no git":
        monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.UsageError):
        changed.changed_files()
    monkeypatch.setattr(tiny_project, "ROOT", project)
    with pytest.raises(pytest.skip.Exception):
        tiny_project.write_tiny_project(project / "tiny")
