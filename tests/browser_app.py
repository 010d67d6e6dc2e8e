"""The app as a process of its own, and what a hand does on its page."""

from __future__ import annotations

import csv
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import numpy as np
import pytest
from made_up_points import CLASS_NAMES, NETWORK, write_points

from pipeline.paths import DataPaths
from viz.data import Points, Source

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
N, GOING = 240, 12


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running app."""

    url: str
    data: DataPaths
    params: Path

    @property
    def points(self) -> Points:
        return Source(self.data).points(NETWORK)

    def link(self, **state: object) -> str:
        """An address with that state of the page."""
        return f"{self.url}?{urlencode({'state': json.dumps(state)})}"

    def overrides(self) -> list[tuple[str, str, str]]:
        """Path, decision and note of each line that people's decisions have."""
        if not self.data.overrides.exists():
            return []
        with self.data.overrides.open(encoding="utf-8", newline="") as file:
            return [(row["path"], row["decision"], row["note"]) for row in csv.DictReader(file)]


@contextmanager
def serve_points(folder: Path, *, n: int = N, side: int = 16) -> Iterator[Served]:
    """The app on `n` made-up points, of which `GOING` go."""
    data = DataPaths(root=folder / "data")
    images = np.zeros((n, side, side, 3), dtype=np.uint8)
    images[..., 0] = (np.arange(n) % 256)[:, None, None]
    write_points(data, images, labels=np.arange(n) % len(CLASS_NAMES), n_going=GOING)
    params = folder / "params.yaml"
    shutil.copy(ROOT / "tests" / "params.yaml", params)
    with serve_app(folder) as url:
        yield Served(url=url, data=data, params=params)


@contextmanager
def serve_app(project: Path) -> Iterator[str]:
    """`python -m viz` on a folder with params.yaml and data/; its address. No request may fail in it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = ["--params", str(project / "params.yaml"), "--data", str(project / "data")]
    command = [sys.executable, "-m", "viz", "--port", str(port), *files]
    log = project / "viz.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}/"
            _wait_for(url, process, log)
            yield url
        finally:
            process.terminate()
            process.wait(30)
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that only look."""
    with serve_points(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """For tests that change files."""
    with serve_points(tmp_path) as running:
        yield running


def open_page(page: Page, address: str) -> None:
    """Go there, and wait until the map is drawn."""
    page.goto(address)
    page.locator("#legend > span").first.wait_for()
    # Drawn by WebGL.
    page.wait_for_function("document.getElementById('map').querySelector('.js-plotly-plot')?._fullData?.[0]?.x?.length")


def place_of(page: Page, points: Points, row: int, graph: str = "map") -> tuple[float, float]:
    """Pixels of a point in the window."""
    x, y = points.coordinates[row].tolist()
    return place_of_xy(page, x, y, graph)


def place_of_xy(page: Page, x: float, y: float, graph: str = "map") -> tuple[float, float]:
    """Pixels of a place on a map."""
    left, top = page.evaluate(
        """([id, x, y]) => {
            const place = document.getElementById(id);
            const plot = place.querySelector(".js-plotly-plot") ?? place;
            const { xaxis, yaxis } = plot._fullLayout;
            const box = plot.getBoundingClientRect();
            return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)];
        }""",
        [graph, float(x), float(y)],
    )
    return left, top


def alone(points: Points) -> int:
    """The point farthest from all others, so that the pointer hits it and no other."""
    distances = np.linalg.norm(points.coordinates[:, None] - points.coordinates, axis=2)
    np.fill_diagonal(distances, np.inf)
    return int(distances.min(axis=1).argmax())


def pick(page: Page, control: str, name: str) -> None:
    """Choose from a list."""
    page.locator(f"#{control}").click()
    page.get_by_role("option").get_by_text(name, exact=True).click()


def lasso(page: Page, points: Points, label: int, graph: str = "map") -> None:
    """Drag around the points of a class."""
    page.locator(f"#{graph} [data-title*=Lasso]").click()
    rows = np.flatnonzero(points.labels == label)
    xy = points.coordinates[rows]
    outermost = rows[np.concatenate([xy.argmin(axis=0), xy.argmax(axis=0)])].tolist()
    places = before = np.zeros((4, 2))
    # The map may still be given its size.
    while not places.any() or not np.array_equal(places, before):
        before = places
        page.wait_for_timeout(300)
        places = np.array([place_of(page, points, row, graph) for row in outermost])
    (left, top), (right, bottom) = places.min(axis=0) - 6, places.max(axis=0) + 6
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(x, y, steps=6)
    page.mouse.up()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return
