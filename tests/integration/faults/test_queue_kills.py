"""The queue of docs/guides/headline.md, killed in the middle, goes on where it stopped and loses nothing."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fixtures.source_tree import ROOT
from tests.fixtures.tiny_project import environment, hashes, reproduced

__all__ = ["reproduced"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_STUDIES = ("first", "second")
_TIMEOUT_S = 300


def _queue() -> str:
    """Return the command of the guide, for the studies of this test."""
    guide = (ROOT / "docs/guides/headline.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```\n *(python -m pipeline repair .*?)\n *```", guide, re.DOTALL)
    changed, n_replaced = re.subn(
        r"for study in .*?; do", f"for study in {' '.join(_STUDIES)}; do", command, flags=re.DOTALL
    )
    assert n_replaced == 1
    return changed


@pytest.fixture
def make_project(reproduced: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies the reproduced project, with two studies of two runs that are not trained yet."""

    def make(name: str) -> Path:
        project = tmp_path / name
        shutil.copytree(reproduced, project)
        yaml = YAML()
        params = yaml.load(project / "params.yaml")
        digits = params["studies"].pop("digits")
        for number, study in enumerate(_STUDIES, start=1):
            params["studies"][study] = {**digits, "arms": ["full", "filtered"], "seeds": [number]}
        yaml.dump(params, project / "params.yaml")
        return project

    return make


def _start(project: Path) -> subprocess.Popen[str]:
    with (project / "queue.log").open("a") as log:
        return subprocess.Popen(
            ["bash", "-c", _queue()], cwd=project, env=environment(), stdout=log, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip


def _wait(queue: subprocess.Popen[str], moment: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not moment():
        assert queue.poll() is None, "the queue ended before the moment of the kill"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _new_runs(project: Path, before: set[str]) -> dict[str, int]:
    """Return the recorded runs that are not in `before`, with the times of their results."""
    results = (project / ".work/cells").glob("[0-9a-f]*/result.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in results if path.parent.name not in before}


def _has_checkpoint(project: Path, study: str) -> bool:
    return any((project / f".work/checkpoints/train@{study}").rglob("step-*"))


def test_a_killed_queue_goes_on_without_loss(make_project: Callable[[str], Path]) -> None:
    reference, project = make_project("reference"), make_project("killed")
    before = set(_new_runs(project, set()))
    undisturbed = _start(reference)
    assert undisturbed.wait(timeout=_TIMEOUT_S) == 0, (reference / "queue.log").read_text()
    moments: list[Callable[[], bool]] = [
        lambda: _has_checkpoint(project, "first"),
        lambda: len(_new_runs(project, before)) == 1,
        lambda: _has_checkpoint(project, "second"),
    ]
    recorded: dict[str, int] = {}
    for kill, moment in enumerate(moments):
        queue = _start(project)
        _wait(queue, moment)
        os.killpg(queue.pid, signal.SIGKILL)
        queue.wait()
        # The run that the first kill interrupts goes on before the second one, that of the third at the end.
        if kill > 0:
            assert "resumed from step" in (project / "queue.log").read_text()
        runs = _new_runs(project, before)
        assert runs.items() >= recorded.items(), "a finished run was lost or trained again"
        recorded = runs
    assert 1 <= len(recorded) < 4
    resumed = (project / "queue.log").read_text().count("resumed from step")
    assert _start(project).wait(timeout=_TIMEOUT_S) == 0, (project / "queue.log").read_text()
    assert (project / "queue.log").read_text().count("resumed from step") > resumed
    runs = _new_runs(project, before)
    assert len(runs) == 4
    assert runs.items() >= recorded.items()
    tables = {name: digest for name, digest in hashes(reference).items() if name.startswith("data/train/")}
    assert len([name for name in tables if name.endswith(".parquet")]) >= 4
    assert {name: digest for name, digest in hashes(project).items() if name in tables} == tables
