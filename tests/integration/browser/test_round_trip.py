"""Overrides in the browser change exactly those images when the filter runs again, by the button of the page."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.artifacts.files import write_array
from pipeline.paths import DataPaths
from tests.fixtures.browser_app import serve_app
from tests.fixtures.forked import run_forked
from tests.fixtures.projects import NETWORK, name_networks
from tests.fixtures.records import record_again
from tests.fixtures.tiny_project import environment
from tests.fixtures.view import view_data
from viz.data import Source

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 300


def _repro(project: Path) -> None:
    """Run the filter with DVC, on the existing outputs of the earlier stages."""
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", f"filter@{NETWORK}"]
    done = run_forked(command, cwd=project, environ=environment(), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def _kept(data: DataPaths) -> set[str]:
    with data.kept(NETWORK).open(encoding="utf-8", newline="") as file:
        return {row["path"] for row in csv.DictReader(file)}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The code and synthetic outputs of all stages before the filter, under git and DVC."""
    for name in ("pipeline", "viz"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copy(ROOT / "tests" / "params.yaml", tmp_path / "params.yaml")
    name_networks(tmp_path / "params.yaml", [NETWORK])  # with what the study needs, which DVC asks for
    data = view_data(tmp_path)
    # For near duplicates, which this filter does not search for.
    for file in (data.features(NETWORK), data.features(NETWORK, "test"), data.features_by_network(NETWORK)):
        write_array(file, np.zeros((0, 2), dtype=np.float32))
    record_again(data)
    data.overrides.write_text("path,sha256,decision,label,note,timestamp\n")
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow
def test_decisions_change_what_the_filter_keeps_when_run_again(project: Path, page: Page) -> None:
    data = DataPaths(root=project / "data")
    _repro(project)
    before = _kept(data)
    with serve_app(project) as url:
        page.goto(url)
        points = Source(data).points(NETWORK)
        order = np.argsort(-points.scores, kind="stable")
        gone = [int(row) for row in order if not points.kept[row]]
        assert len(gone) >= 2
        page.locator("#grid .tile").first.wait_for()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#grid .tile.focus")).to_have_attribute("data-row", str(gone[0]))
        page.keyboard.press("k")
        expect(page.locator("#saved")).to_contain_text("1 image")
        page.locator("#list").click()
        page.get_by_role("option").get_by_text("all shown", exact=True).click()
        trusted = int(order[-1])
        page.locator("#sort").click()
        page.get_by_role("option").get_by_text("least suspect first", exact=True).click()
        page.locator(f"#grid .tile[data-row='{trusted}']").click()
        expect(page.locator("#card")).to_contain_text(f"#{trusted}")
        page.keyboard.press("d")
        expect(page.locator("#legend")).to_contain_text("dropped by hand 1")
        page.locator("#run-filter").click()
        expect(page.locator("#run-status")).to_have_text(f"The filter of {NETWORK} has ended.")
        n = len(gone)
        expect(page.locator("#banner")).to_contain_text(
            f"The filter drops {n} images instead of {n}: 1 newly dropped, 1 newly kept."
        )
        # Leave the page before its server stops.
        page.goto("about:blank")
    kept, dropped = (points.paths[row].as_py() for row in (gone[0], trusted))
    assert _kept(data) - before == {kept}
    assert before - _kept(data) == {dropped}
