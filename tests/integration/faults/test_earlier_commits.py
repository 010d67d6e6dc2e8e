"""Results of earlier versions of the code are read, or refused in one line, by every stage and command of this one.

COMMITS lists the commits whose own code makes the results, by default one of the history; a clone without it skips.
"""

import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from benchmarks.unpacking import unpack
from pipeline.__main__ import main
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.source_tree import ROOT
from tests.fixtures.tiny_project import STAGES, environment, write_tiny_project

_PACKED = sorted(ROOT.glob("docs/results/*/*/results.tar.xz"))
_TIMEOUT_S = 600  # for one command, while other jobs use the machine
_NUMBER = 562  # counted from the first commit; some of the next ones do not run themselves
_TRAIN_SIZE, _STEPS = 0.15, 6
_ITEMS = {
    "finetune": "--network",
    "extract": "--network",
    "reduce": "--network",
    "filter": "--network",
    "train": "--study",
}
# Each stage in turn: an interpreter that imports torch takes seconds to start.
_IN_ONE_PROCESS = """
import json, runpy, sys
for module, *arguments in json.loads(sys.argv[1]):
    print(module)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
"""
_COMMANDS = (
    ["pipeline", "validate"],
    ["pipeline", "plan"],
    ["pipeline", "verify", "."],
    ["pipeline", "compare", ".", "."],
    ["pipeline", "runs", "pack", "packed.tar.xz"],
    ["pipeline", "runs", "import", ".work"],
    ["pipeline", "export", "exported"],
    ["viz", "export", "map.html"],
)


@pytest.mark.parametrize("packed", _PACKED, ids=lambda packed: packed.parent.name)
def test_verify_of_an_earlier_archive_asks_for_its_images(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters and tables are read; what an archive leaves out is named, and nothing is called false."""
    unpack(packed, tmp_path)
    assert main(["verify", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert printed_error(shown).key == str(tmp_path / "data/prepare/test.npy")


def _commits() -> list[str]:
    """Return the chosen commits; by default one of the middle of the history."""
    if "COMMITS" in os.environ:
        return os.environ["COMMITS"].split()
    listed = subprocess.run(
        ["git", "rev-list", "--first-parent", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    return [listed[-_NUMBER]] if len(listed) >= _NUMBER else []


def _run_here(project: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this version in this process, which has imported torch; an unexpected error is raised."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(printed):
        patch.chdir(project)
        patch.setattr(sys, "argv", list(argv))
        module = importlib.import_module(f"{argv[0]}.__main__" if argv[0] in ("pipeline", "viz") else argv[0])
        try:
            code = module.main()
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(argv, code or 0, "", printed.getvalue())


def _stage_arguments(project: Path, stage: str) -> list[str]:
    params = YAML(typ="safe").load(project / "params.yaml")
    items = {"--network": params["networks"][0], "--study": next(iter(params["studies"]))}
    return [f"pipeline.stages.{stage}", *([_ITEMS[stage], items[_ITEMS[stage]]] if stage in _ITEMS else [])]


def _make_results(commit: str, folder: Path) -> None:
    """Run all stages of an earlier version on some of its digits, with few steps."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    params["prepare"]["train_size"] = _TRAIN_SIZE
    params["finetune"]["budget"] = {"steps": _STEPS}
    tsne = params["reduce"]["tsne"]
    tsne |= {key: 50 for key in tsne if "iter" in key}
    next(iter(params["studies"].values())).update(batch_sizes=[32], seeds=[0], budget={"steps": _STEPS})
    yaml.dump(params, folder / "params.yaml")
    stages = [_stage_arguments(folder, stage) for stage in STAGES]
    done = subprocess.run(
        [sys.executable, "-c", _IN_ONE_PROCESS, json.dumps(stages)], cwd=folder, env=environment(),
        capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, (commit, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("commit", _commits())
def test_no_result_of_an_earlier_version_is_a_traceback(commit: str, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    _make_results(commit, earlier)
    for parameters in ("theirs", "ours"):
        project = write_tiny_project(tmp_path / parameters, train_size=_TRAIN_SIZE, steps=(_STEPS, _STEPS))
        for name in ("data", ".work"):
            shutil.copytree(earlier / name, project / name, dirs_exist_ok=True)
        if parameters == "theirs":
            shutil.copy(earlier / "params.yaml", project)
        # The last stages first: each meets the files of the earlier version.
        commands = [*_COMMANDS, *(_stage_arguments(project, stage) for stage in reversed(STAGES[1:]))]
        for command in commands:
            done = _run_here(project, *command)
            shown = f"{commit}, parameters of {parameters}: {command}\n{done.stderr}"
            assert "Traceback" not in done.stderr, shown
            assert done.returncode in (0, 1, 2), shown
            assert done.returncode != 2 or "error: " in done.stderr.splitlines()[-1], shown
