"""The commands of docs/guides/experiments.md run, in their order, on a project of seconds."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.forked import run_forked
from tests.fixtures.projects import ROOT
from tests.fixtures.tiny_project import environment, reproduced

__all__ = ["reproduced"]

pytestmark = pytest.mark.slow

_PAGE = ROOT / "docs" / "guides" / "experiments.md"
_COLUMNS = 80
_TIMEOUT_S = 600
_SHELL_CHARACTERS = set("|&;<>()$`\\*?[]#~\n")


def _commands() -> list[str]:
    fences = re.findall(r"^```\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [line for fence in fences for line in fence.splitlines()]


def _run(project: Path, command: str) -> str:
    """Run a command of Python in a fork; what the queue of experiments starts are new interpreters."""
    identity = {
        f"GIT_{role}_{key}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    environ = {**environment(), **identity, "COLUMNS": str(_COLUMNS)}
    assert not _SHELL_CHARACTERS & set(re.sub(r"\"[^\"]*\"|'[^']*'", "", command)), "a shell would change it"
    words = shlex.split(command)
    assert words[0] in ("dvc", "git", "python"), command
    if words[0] == "git":
        subprocess.run(words, cwd=project, env=environ, check=True, capture_output=True)
        return ""
    options = ["-m", *words] if words[0] == "dvc" else words[1:]
    done = run_forked([sys.executable, *options], cwd=project, environ=environ, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(1500)
def test_the_page_from_top_to_bottom(reproduced: Path, tmp_path: Path) -> None:
    """From a project with results, as the page has it."""
    project = Path(shutil.copytree(reproduced, tmp_path / "project"))
    said = {command: _run(project, command) for command in _commands()}
    assert len(said) > 10
    shown = next(text for command, text in said.items() if command.startswith("dvc exp show"))
    lines = shown.splitlines()
    assert max(map(len, lines)) <= _COLUMNS
    for name, share in {"drop-15": "0.15", "drop-1": "0.05", "drop-2": "0.25"}.items():
        (line,) = (line for line in lines if f"[{name}]" in line)
        assert share in line.split()
    assert "digits.vs_random" in shown
    differences = next(text for command, text in said.items() if command.startswith("dvc metrics diff"))
    assert "kept.resnet18" in differences
    page = (project / "dvc_plots" / "index.html").read_text(encoding="utf-8")
    assert "digits.accuracy" in page
    # The applied experiment is in data/, and the removed ones are gone.
    kept = json.loads((project / "data/report/metrics.json").read_text())["kept"]["resnet18"]
    assert kept == pytest.approx(0.85, abs=0.01)
    left = _run(project, "dvc exp list --name-only")
    assert left.split() == ["drop-15"]
