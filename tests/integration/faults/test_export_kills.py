"""A killed export ends, with --force, in the bytes of an undisturbed one; a page is the old one or the new one."""

import hashlib
import random
import signal
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.paths import DataPaths
from tests.fixtures.interrupted_study import HOOKS, KILL_SEED, MORE_KILLS
from tests.fixtures.projects import NETWORK, folder_arguments
from tests.fixtures.report import params_tree, params_with, write_artifacts
from tests.fixtures.training import run
from viz.__main__ import main as show

pytestmark = pytest.mark.subprocess


def _seeded_moments(count: int) -> list[tuple[signal.Signals, int]]:
    """Return signals, and the numbers of the calls before which they come."""
    rng = random.Random(KILL_SEED)
    return [(rng.choice([signal.SIGKILL, signal.SIGTERM]), rng.randint(1, 20)) for _ in range(count)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_artifacts(DataPaths(root=folder / "data"), params_with([NETWORK]))
    YAML().dump(params_tree([NETWORK]), folder / "params.yaml")
    return folder


@pytest.fixture(scope="module")
def whole(project: Path) -> dict[str, str]:
    """Digests of the files of an undisturbed export."""
    assert main(_arguments(project, project / "whole")) == 0
    return _digests(project / "whole")


def _arguments(project: Path, out: Path, *options: str) -> list[str]:
    return ["export", str(out), *folder_arguments(project)[:4], *options]  # parameters and artifacts


def _kill(project: Path, module: str, out: Path, sent: signal.Signals, *, kill_at: int) -> None:
    """Export, with a signal before the `kill_at`-th call that opens, renames or removes a file of the export."""
    # A page is written under a temporary name next to it.
    part = f"/.{out.name}" if out.suffix else str(out)
    fault = {"PYTHONPATH": str(HOOKS), "FAULT": f"{sent.name} self {part} {kill_at}"}
    done = run([sys.executable, "-m", module, *_arguments(project, out)], environ=fault)
    assert done.returncode == -sent, done.stderr


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".tmp", ".lock")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "kill_at"),
    [
        (signal.SIGKILL, 12), (signal.SIGTERM, 7),
        (signal.SIGKILL, 1), (signal.SIGKILL, 5), (signal.SIGKILL, 20), (signal.SIGTERM, 16),
        *_seeded_moments(MORE_KILLS),
    ],
)  # fmt: skip
def test_a_folder(project: Path, whole: dict[str, str], sent: signal.Signals, kill_at: int, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    _kill(project, "pipeline", killed, sent, kill_at=kill_at)
    assert _digests(killed).items() < whole.items(), "each file is whole or absent"
    assert main(_arguments(project, killed, "--force")) == 0
    assert _digests(killed) == whole
    assert not [path for path in killed.rglob(".*") if path.suffix in (".tmp", ".lock")]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_page(project: Path, sent: signal.Signals, tmp_path: Path) -> None:
    page, undisturbed = tmp_path / "map.html", tmp_path / "undisturbed.html"
    page.write_text("the page before")
    _kill(project, "viz", page, sent, kill_at=0)
    assert page.read_text() == "the page before"
    for file in (page, undisturbed):
        assert show(_arguments(project, file)) == 0
    assert page.read_bytes() == undisturbed.read_bytes()
