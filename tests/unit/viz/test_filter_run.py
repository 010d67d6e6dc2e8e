"""The button that runs the filter again: what it starts, what it says, and where it refuses."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dash import html

from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.dash_components import all_of
from tests.fixtures.projects import NETWORK, name_networks, write_params
from viz.callbacks.filter_run import answer
from viz.filter_run import FilterRun, RunStatus
from viz.layout import page

pytestmark = pytest.mark.subprocess

_DVC_YAML = """\
stages:
  filter:
    matrix:
      network: [resnet18]
    cmd: python -c "open('out.txt', 'w').write(open('in.txt').read())"
    deps: [in.txt]
    outs: [out.txt]
  other:
    cmd: python -c "1/0"
"""


def _project(folder: Path, program: str) -> FilterRun:
    """Write a project, and a program in place of DVC."""
    write_params(folder)
    (folder / "dvc.yaml").write_text(_DVC_YAML)
    (folder / "program.py").write_text(program)
    program_line = [sys.executable, str(folder / "program.py")]
    return FilterRun(folder / "params.yaml", DataPaths(root=folder / "data"), program=program_line)


def _ended(run: FilterRun) -> RunStatus:
    deadline = time.monotonic() + 60
    while (status := run.status()).is_running:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return status


def test_one_run_at_a_time_of_the_filter_alone(tmp_path: Path) -> None:
    run = _project(
        tmp_path,
        "import sys, pathlib, time\n"
        "pathlib.Path('arguments.txt').write_text(' '.join(sys.argv[1:]))\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n",
    )
    assert answer(run, None) == ("", "", False)
    text, style, disabled = answer(run, NETWORK)
    assert (text.startswith(f"The filter of {NETWORK} is running"), style, disabled) == (True, "", True)
    text, style, disabled = answer(run, NETWORK)
    assert (text.startswith("Not started: "), style, disabled) == (True, "failed", True)
    (tmp_path / "go").touch()
    assert _ended(run) == RunStatus(is_running=False, text=f"The filter of {NETWORK} has ended.")
    assert (tmp_path / "arguments.txt").read_text() == f"repro --single-item filter@{NETWORK}"
    assert answer(run, NETWORK)[2]
    _ended(run)


def test_the_error_of_the_stage_is_shown(tmp_path: Path) -> None:
    run = _project(
        tmp_path, "import sys\nprint('running')\nprint('error: filter.eps: too small')\nprint('ERROR: x')\nsys.exit(1)"
    )
    run.start(NETWORK)
    _ended(run)
    assert answer(run, None) == (f"The filter of {NETWORK} failed: filter.eps: too small", "failed", False)


@pytest.mark.parametrize(
    ("network", "spoil", "named"),
    [
        ("vgg", None, "vgg"),
        (NETWORK, "dvc.yaml", "has no dvc.yaml"),
        (NETWORK, "params.yaml", "params.yaml: no such file"),
    ],
)
def test_where_there_is_no_stage_nothing_starts(network: str, spoil: str | None, named: str, tmp_path: Path) -> None:
    run = _project(tmp_path, "open('started', 'w')")
    if spoil:
        (tmp_path / spoil).unlink()
    with pytest.raises(InputError, match=named):
        run.start(network)
    assert run.status() == RunStatus(is_running=False, text="")
    assert not (tmp_path / "started").exists()


def test_data_of_another_project_is_refused(tmp_path: Path) -> None:
    _project(tmp_path, "")
    run = FilterRun(tmp_path / "params.yaml", DataPaths(root=tmp_path / "other"))
    with pytest.raises(InputError, match="other"):
        run.start(NETWORK)


def test_a_log_that_cannot_be_written_is_a_message(tmp_path: Path) -> None:
    run = _project(tmp_path, "open('started', 'w')")
    (tmp_path / ".work").write_text("a file in place of the folder")
    text, style, disabled = answer(run, NETWORK)
    assert text.startswith(f"Not started: {tmp_path / '.work'}")
    assert (style, disabled) == ("failed", False)
    assert not (tmp_path / "started").exists()


def test_the_page_has_the_button() -> None:
    buttons = [
        button
        for button in all_of(page([NETWORK], [(0, "cat")]), html.Button)
        if getattr(button, "id", "") == "run-filter"
    ]
    assert [button.children for button in buttons] == ["Run the filter again"]


@pytest.mark.slow
def test_dvc_runs_the_stage_and_says_that_nothing_changed(tmp_path: Path) -> None:
    _project(tmp_path, "")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=tmp_path, check=True)
    (tmp_path / "in.txt").write_text("one")
    run = FilterRun(tmp_path / "params.yaml", DataPaths(root=tmp_path / "data"))
    run.start(NETWORK)
    assert _ended(run).text == f"The filter of {NETWORK} has ended."
    assert (tmp_path / "out.txt").read_text() == "one"
    run.start(NETWORK)
    assert _ended(run).text.endswith("no parameter, decision or input has changed.")


def test_without_its_log_the_status_is_still_known(tmp_path: Path) -> None:
    """The page asks for it every few seconds, and others may remove the work folder."""
    run = _project(tmp_path, "import sys\nsys.exit(1)")
    run.start(NETWORK)
    _ended(run)
    shutil.rmtree(tmp_path / ".work")
    assert run.status() == RunStatus(is_running=False, text=f"The filter of {NETWORK} failed: exit code 1", failed=True)


def test_a_run_that_did_not_start_leaves_the_earlier_status(tmp_path: Path) -> None:
    run = _project(tmp_path, "")
    name_networks(tmp_path / "params.yaml", [NETWORK, "resnet34"])
    run.start(NETWORK)
    ended = _ended(run)
    (tmp_path / ".work").rename(tmp_path / "old")
    (tmp_path / ".work").write_text("a file in place of the folder")
    with pytest.raises(InputError):
        run.start("resnet34")
    assert run.status() == ended
