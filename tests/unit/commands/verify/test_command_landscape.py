"""`verify` compares the files of a landscape with its record, and says where the record or the runs are others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json
from tests.fixtures.forgeries import data_of, edit_json, edit_table
from tests.fixtures.verified import STUDY_NAME, folders, run_verify, write_report, write_verified_project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose landscape was measured before its report was written."""
    folder = write_verified_project(tmp_path_factory.mktemp("honest"), keep_weights="first_seed", seeds=[0, 1])
    options = ["--study", STUDY_NAME, "--images", "8", "--directions", "1"]
    assert main(["landscape", *options, *folders(folder)]) == 0
    write_report(folder)
    return folder


def _n_compared(lines: list[str]) -> int:
    (line,) = [line for line in lines if line.endswith("digests of files in the provenance of the stages")]
    return int(line.split()[1])


def test_an_honest_landscape_is_compared(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data_of(project).provenance("landscape", STUDY_NAME)
    record = read_json(path)
    code, lines = run_verify(project, capsys)
    assert code == 0, lines
    path.unlink()
    code, without_record = run_verify(project, capsys)
    assert code == 0, without_record
    assert any(line.startswith(f"note     {path}: missing;") for line in without_record)
    n_files = len(record["inputs"]) + len(record["outputs"])
    assert n_files == 7
    assert _n_compared(lines) == _n_compared(without_record) + n_files


def _edit_figure(folder: Path) -> Path:
    path = data_of(folder).landscape_figure(STUDY_NAME)
    path.write_bytes(path.read_bytes().replace(b"</svg>", b"<!-- smoother --></svg>"))
    return path


def _edit_numbers(folder: Path) -> Path:
    path = data_of(folder).landscape(STUDY_NAME)
    edit_table(path, top_eigenvalue=0.5)
    write_report(folder)
    return path


def _rename_study(folder: Path) -> Path:
    path = data_of(folder).provenance("landscape", STUDY_NAME)
    edit_json(path, stage="landscape@another")
    return path


@pytest.mark.parametrize("edit", [_edit_figure, _edit_numbers, _rename_study])
def test_an_edited_file_is_named(
    edit: Callable[[Path], Path], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edit(project)
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert any(line.startswith(f"DIFFERS  {path}: ") for line in lines), lines


def test_a_missing_figure_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupted measurement leaves none."""
    figure = data_of(project).landscape_figure(STUDY_NAME)
    figure.unlink()
    write_report(project)
    code, lines = run_verify(project, capsys)
    assert code == 0, lines
    assert any(line.startswith(f"note     {figure}: missing;") for line in lines)


def test_a_landscape_of_earlier_runs_is_no_contradiction(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report leaves it out, so nothing that is shown rests on it."""
    data = data_of(project)
    record = data.provenance("landscape", STUDY_NAME)
    edit_json(record, inputs={f"../train/{STUDY_NAME}.parquet": "0" * 64})
    code, lines = run_verify(project, capsys)
    assert code == 0, lines
    assert any(line.startswith(f"note     {record}: was measured with another ") for line in lines)
