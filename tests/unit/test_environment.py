"""A Python without the requirements, or too old, gets one line and exit code 2 at every entry point."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pipeline.commands.doctor.packages import import_name
from pipeline.environment import MINIMUM_PYTHON, REQUIRED_MODULES, STAGE_MODULES, missing_module_hint
from tests.fixtures.projects import ROOT
from tests.fixtures.tiny_project import STAGES

_ENTRIES = [
    "batchsieve validate",
    "batchsieve find-issues",
    "pipeline validate",
    "pipeline.stages.prepare",
    "pipeline.stages.train --study digits",
    "viz",
    "viz export",
]
# All that an older Python reads before it is refused.
_READ_FIRST = [
    "batchsieve/__init__.py",
    "batchsieve/__main__.py",
    "batchsieve/cli.py",
    "pipeline/__init__.py",
    "pipeline/__main__.py",
    "pipeline/command_line.py",
    "pipeline/environment.py",
    "pipeline/errors.py",
    "pipeline/stages/__init__.py",
    "viz/__init__.py",
    "viz/__main__.py",
]


def _run(python: list[str], entry: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("DVC", "PYTHON"))}
    return subprocess.run(
        [*python, "-m", *entry.split()],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _assert_one_line(answer: "subprocess.CompletedProcess[str]", *parts: str) -> None:
    assert answer.returncode == 2, answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    for part in parts:
        assert part in answer.stderr


@pytest.mark.parametrize("entry", _ENTRIES)
def test_without_the_requirements(tmp_path: Path, entry: str) -> None:
    # -S leaves out site-packages, and with them all that is installed.
    answer = _run([sys.executable, "-S"], entry, tmp_path)
    _assert_one_line(answer, f"{sys.executable} ", "pip install 'batchsieve[stages,viz]'")
    assert "dvc checkout" not in answer.stderr
    # Outside a clone there is no Makefile.
    assert "make setup" not in answer.stderr


def test_in_a_clone_make_installs_the_requirements(tmp_path: Path) -> None:
    (tmp_path / "pipeline/stages").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    answer = _run([sys.executable, "-S"], "batchsieve validate", tmp_path)
    _assert_one_line(answer, "make setup", ". .venv/bin/activate")


# Pretends, as sitecustomize, that the libraries of the extra `stages` are not installed.
_WITHOUT_STAGES = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize("stage", [pytest.param(name, marks=[] if name in STAGE_MODULES else pytest.mark.slow)
                                   for name in STAGES])  # fmt: skip
def test_a_stage_without_the_extra_for_stages(tmp_path: Path, stage: str) -> None:
    """A bare training node has none of it. The other stages need it at most later, where they say so."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {import_name(Requirement(line)) for line in extras["stages"]}
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_STAGES.format(names=names))
    item = {"train": " --study tiny"}.get(stage, "" if stage in ("prepare", "report") else " --network tiny")
    python_path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    answer = _run([sys.executable], f"pipeline.stages.{stage}{item}", tmp_path, PYTHONPATH=python_path)
    _assert_one_line(answer, "params.yaml" if stage not in STAGE_MODULES else "batchsieve[stages,viz]")


def test_where_there_is_an_environment_it_is_to_be_activated(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    answer = _run([sys.executable, "-S"], "pipeline.stages.prepare", tmp_path, DVC_ROOT=str(tmp_path))
    _assert_one_line(answer, ". .venv/bin/activate", "`dvc checkout`")
    assert "make setup" not in answer.stderr


@pytest.mark.parametrize("entry", _ENTRIES)
def test_python_3_8(tmp_path: Path, entry: str) -> None:
    """By its version number; the syntax is the test below."""
    pretend = f"import runpy, sys; sys.version_info = (3, 8, 18, 'final', 0); sys.argv = {['-m', *entry.split()[1:]]}"
    name = entry.split()[0]
    code = f"{pretend}; runpy.run_module({name!r}, run_name='__main__', alter_sys=False)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    _assert_one_line(answer, "Python 3.8.18", "3.11")


@pytest.mark.parametrize("file", _READ_FIRST)
def test_python_3_8_can_read_what_refuses_it(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 8))
    annotated = any(getattr(node, "annotation", None) or getattr(node, "returns", None) for node in ast.walk(tree))
    # 3.8 would evaluate `str | None`.
    assert not annotated or "from __future__ import annotations\n" in text


@cache
def _older_pythons() -> list[str]:
    names = [f"python3.{minor}" for minor in range(8, MINIMUM_PYTHON[1])]
    result = [path for name in names if (path := shutil.which(name))]
    result += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.[89].*/bin/python"))]
    # pyenv has a script of each name, which fails where that version is not the chosen one.
    return [path for path in result if subprocess.run([path, "-V"], capture_output=True, check=False).returncode == 0]


@pytest.mark.parametrize("entry", _ENTRIES)
def test_an_older_python(tmp_path: Path, entry: str) -> None:
    if not _older_pythons():
        pytest.skip("needs a Python 3.8, 3.9 or 3.10")
    for python in _older_pythons():
        _assert_one_line(_run([python], entry, tmp_path), f"{python} ", "3.11")


def test_a_bug_keeps_its_traceback() -> None:
    assert missing_module_hint("pipeline.no_such_module") is None
    assert missing_module_hint("viz") is None
    assert missing_module_hint("batchsieve.no_such_module") is None
    assert missing_module_hint("_lzma") is None
    assert missing_module_hint(None) is None
    assert "dash;" in str(missing_module_hint("dash")).split()


def test_the_modules_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(REQUIRED_MODULES) == {import_name(Requirement(line)) for line in project["dependencies"]}


@pytest.mark.slow
def test_dvc_of_another_python_loses_no_output(tmp_path: Path) -> None:
    """The stage's outputs are gone when it ends, and come back from the cache as the line says."""
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin/python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  prepare:\n    cmd: python -m pipeline.stages.prepare\n    params: [prepare]\n"
        "    outs: [data/prepare/train.npy]\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def dvc(python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        # The requirements are next to this Python's DVC, not in PYTHONPATH.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{python.parent}:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    here = Path(sys.executable)
    assert dvc(here, "init", "-q").returncode == 0
    assert dvc(here, "repro").returncode == 0
    made = (tmp_path / "data/prepare/train.npy").read_bytes()
    params = tmp_path / "params.yaml"
    params.write_text(re.sub("image_size: 16", "image_size: 20", params.read_text()))
    answer = dvc(bare, "repro")
    assert answer.returncode != 0
    (line,) = (line for line in answer.stderr.splitlines() if line.startswith("error: "))
    assert "`dvc checkout`" in line
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "data/prepare/train.npy").exists()
    assert dvc(here, "checkout").returncode == 0
    assert (tmp_path / "data/prepare/train.npy").read_bytes() == made
