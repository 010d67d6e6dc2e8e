"""A killed export ends, with --force, in the bytes of an undisturbed one; a page is the old one or the new one."""

import hashlib
import signal
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.paths import DataPaths
from tests.fixtures.interrupted_study import HOOKS
from tests.fixtures.projects import NETWORK, folder_arguments
from tests.fixtures.report import params_tree, params_with, write_artifacts
from tests.fixtures.training import run

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_artifacts(DataPaths(root=folder / "data"), params_with([NETWORK]))
    YAML().dump(params_tree([NETWORK]), folder / "params.yaml")
    return folder


def _export(project: Path, module: str, out: Path, *options: str, kill_at: int | None = None) -> int:
    """Export, with SIGKILL before the `kill_at`-th call that opens, renames or removes a file of the export."""
    files = folder_arguments(project)[:4]  # parameters and artifacts
    # A page is written under a temporary name next to it.
    part = f"/.{out.name}" if out.suffix else str(out)
    fault = {} if kill_at is None else {"PYTHONPATH": str(HOOKS), "FAULT": f"SIGKILL self {part} {kill_at}"}
    done = run([sys.executable, "-m", module, "export", str(out), *files, *options], environ=fault)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".tmp")
    }


@pytest.mark.parametrize("kill_at", [1, 5, 12, 20])
def test_a_folder(project: Path, kill_at: int, tmp_path: Path) -> None:
    assert _export(project, "pipeline", tmp_path / "whole") == 0
    whole, killed = _digests(tmp_path / "whole"), tmp_path / "killed"
    assert _export(project, "pipeline", killed, kill_at=kill_at) == -signal.SIGKILL
    assert _digests(killed).items() < whole.items(), "each file is whole or absent"
    assert _export(project, "pipeline", killed, "--force") == 0
    assert _digests(killed) == whole
    assert not list(killed.rglob(".*.tmp"))


def test_a_page(project: Path, tmp_path: Path) -> None:
    page = tmp_path / "map.html"
    page.write_text("the page before")
    assert _export(project, "viz", page, kill_at=0) == -signal.SIGKILL
    assert page.read_text() == "the page before"
    assert _export(project, "viz", page) == 0
    assert page.read_text() != "the page before"
