"""Marks state what a test needs: the marks from the code are right, and a process without a mark is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.needs import needs_of

_TESTS = Path(__file__).parents[1]

_SUITE = """
import importlib, subprocess, sys
import pytest

hidden = importlib.import_module("subprocess")
QUIET = [sys.executable, "-c", ""]

def _start():
    subprocess.run(QUIET)

def test_seen(): _start()
def test_hidden(): hidden.run(QUIET)
@pytest.mark.subprocess
def test_marked(): hidden.run(QUIET)
def test_git(): hidden.run(["git", "--version"])

@pytest.fixture(scope="module")
def started(): hidden.run(QUIET)
def test_first(started): pass
def test_second(started): pass
@pytest.mark.subprocess
def test_ranks(): hidden.run([*QUIET, "torch.distributed.run"])
"""


@pytest.mark.slow
def test_a_process_without_its_mark_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(_SUITE)
    options = [
        "-p",
        "tests.fixtures.needs",
        "-q",
        "--noconftest",
        "-rA",
        "-W",
        "ignore",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(_TESTS.parent)}
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    outcomes = {
        line.split("::")[1].split(" ")[0]: line.split(" ")[0] for line in answer.stdout.splitlines() if "::" in line
    }
    assert outcomes == {
        "test_seen": "PASSED",
        "test_hidden": "FAILED",
        "test_marked": "PASSED",
        "test_git": "PASSED",
        "test_first": "FAILED",
        "test_second": "FAILED",
        "test_ranks": "FAILED",
    }, answer.stdout
    assert "@pytest.mark.subprocess" in answer.stdout
    assert "@pytest.mark.distributed" in answer.stdout


def test_marks_follow_helpers_of_other_files() -> None:
    def needs(path: str, function: str) -> set[str]:
        return set(needs_of(_TESTS / path, function))

    assert needs("fixtures/chromium.py", "page") == set(), "pytest lists the fixtures of a test"
    assert needs("fixtures/chromium.py", "profile") == {"browser", "subprocess"}
    assert needs("fixtures/browser_app.py", "running_app") == {"subprocess"}
    assert needs("integration/faults/test_kills.py", "test_of_three_processes_that_cannot_share_evenly_one_waits") == {
        "subprocess",
        "distributed",
    }
    assert needs("unit/training/test_loop.py", "test_separable_images_are_learned") == set()
