"""Threads that wait spin for a bounded time, in every process that imports the project first."""

import os
import subprocess
import sys

import pytest

ASK = "import os, {module}; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"


def _seen(module: str, **own: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", ASK.format(module=module)]
    found = subprocess.run(command, env={**kept, **own}, capture_output=True, text=True, check=True)
    return found.stdout.split()


@pytest.mark.parametrize("module", ["pipeline", "pipeline.stages.train", "viz.app"])
def test_the_spinning_is_bounded(module: str) -> None:
    assert _seen(module) == ["1000", "None"]


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_the_user_has_set_wins(name: str) -> None:
    value = {"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": "active"}[name]
    found = dict(zip(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"), _seen("pipeline", **{name: value}), strict=True))
    assert found == {"GOMP_SPINCOUNT": "None", "OMP_WAIT_POLICY": "None", name: value}


@pytest.mark.slow
def test_openmp_reads_it_in_time() -> None:
    """libgomp prints the settings that it has read when it is loaded, with torch."""
    shown = "import pipeline.models.resnet, torch"
    command = [sys.executable, "-c", shown]
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = {**kept, "OMP_DISPLAY_ENV": "verbose"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert "GOMP_SPINCOUNT = '1000'" in said
