"""The app in a cell of a notebook: a page of another server on this machine shows it in a frame."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import viz
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.points import CLASS_NAMES, NETWORK, write_points
from viz.notebook import Explorer

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[3]
N = 120


@pytest.fixture
def explorer(tmp_path: Path) -> Iterator[Explorer]:
    data = DataPaths(root=tmp_path / "data")
    images = np.zeros((N, 8, 8, 3), dtype=np.uint8)
    write_points(data, images, labels=np.arange(N) % len(CLASS_NAMES))
    shutil.copy(ROOT / "tests" / "params.yaml", tmp_path / "params.yaml")
    running = viz.explore(NETWORK, params=tmp_path / "params.yaml", data=data.root)
    yield running
    running.close()


@pytest.fixture
def notebook(explorer: Explorer, tmp_path: Path) -> Iterator[str]:
    """URL of a page with the output of the cell."""
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "index.html").write_text(
        f"<!doctype html><link rel=icon href=data:,><body>{explorer._repr_html_()}</body>", encoding="utf-8"
    )

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_the_cell_shows_the_map_and_returns_the_selection(explorer: Explorer, notebook: str, page: Page) -> None:
    page.goto(notebook)
    frame = page.frame_locator("iframe")
    frame.locator("#legend > span").first.wait_for()
    assert explorer.selection == []
    frame.locator("[data-title*=Box]").first.click()
    box = frame.locator("#map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3, steps=5)
    page.mouse.up()
    frame.locator("#keep-selection:enabled").wait_for()
    assert explorer.selection == list(range(N))
    assert explorer.selected()["path"].to_pylist()[0].endswith("0.png")
    file = explorer._source.data.points(NETWORK)
    write_parquet(file, read_parquet(file))
    with pytest.raises(InputError) as refused:
        explorer.selected()
    assert refused.value.key == str(file)


def test_a_given_port_is_served_or_rejected(tmp_path: Path) -> None:
    params = ROOT / "tests" / "params.yaml"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = viz.explore(params=params, data=tmp_path, port=port)
    assert running.url.startswith(f"http://127.0.0.1:{port}/")
    again = viz.explore(params=params, data=tmp_path, port=port)  # the cell runs once more
    assert again.url == running.url
    running.close()  # is no longer the one that serves
    third = viz.explore(params=params, data=tmp_path, port=port)
    third.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(InputError) as refused:
            viz.explore(params=params, data=tmp_path, port=taken)
    assert str(taken) in str(refused.value)
    assert refused.value.key == "port"


def test_an_unknown_network_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        viz.explore("alexnet", params=ROOT / "tests" / "params.yaml", data=tmp_path)
    assert "alexnet" in str(refused.value)
    assert refused.value.key == "network"
