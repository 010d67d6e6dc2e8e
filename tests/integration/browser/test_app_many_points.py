"""More points than the map draws, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fixtures.browser_app import N_DROPPED, Served, lasso, open_page, pick, place_of_xy, serve_points

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect


MAX_PLOTTED = 1_000
N = 2_000


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Served]:
    """The app on more points than it draws."""
    with serve_points(tmp_path, n=N, side=4, max_plotted=MAX_PLOTTED) as running:
        yield running


@pytest.mark.slow
def test_the_lasso_selects_points_that_are_not_drawn(crowd: Served, page: Page) -> None:
    points = crowd.points
    open_page(page, crowd.url)
    expect(page.locator("#notice")).to_contain_text(f"{MAX_PLOTTED:,} of {N:,} images are plotted")
    expect(page.locator("#legend")).to_contain_text(f"kept {N - N_DROPPED:,}")
    first, second, third = (np.flatnonzero(points.labels == label) for label in (1, 2, 3))
    lasso(page, points, 2)
    expect(page.locator("#place")).to_contain_text(f"{len(second):,} images")
    page.keyboard.down("Shift")
    lasso(page, points, 1)
    page.keyboard.up("Shift")
    expect(page.locator("#drop-selection")).to_have_text(f"Drop selection ({len(first) + len(second):,})")
    page.locator("#map [data-title*=Box]").click()
    around = points.coordinates[third]
    (left, bottom), (right, top) = (place_of_xy(page, x, y) for x, y in (around.min(axis=0), around.max(axis=0)))
    page.mouse.move(right + 6, top - 6)
    page.mouse.down()
    page.mouse.move(left - 6, bottom + 6, steps=6)
    page.mouse.up()
    expect(page.locator("#drop-selection")).to_have_text(f"Drop selection ({len(third):,})")
    page.locator("#drop-selection").click()
    expect(page.locator("#saved")).to_contain_text(f"{len(third):,} images")
    assert {path for path, _, _ in crowd.overrides()} == {points.paths[row].as_py() for row in third.tolist()}


_PLOTTED = """(coordinates) => {
    const { x, y, customdata } = document.querySelector("#map .js-plotly-plot")._fullData[0];
    const rows = [...customdata];
    const placed = rows.every((row, at) => x[at] === coordinates[row][0] && y[at] === coordinates[row][1]);
    return placed && new Set(rows).size === rows.length ? rows.length : -1;
}"""


@pytest.mark.slow
def test_colors_filters_and_zoom_load_no_coordinates_again(crowd: Served, page: Page) -> None:
    points = crowd.points
    coordinates = points.coordinates.astype(np.float32).tolist()
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url) if "/coordinates" in request.url else None)
    open_page(page, crowd.url)
    _expect_plotted(page, coordinates, f"=== {MAX_PLOTTED}")
    pick(page, "coloring", "class")
    expect(page.locator("#legend > span")).to_have_count(len(points.class_names))
    _expect_plotted(page, coordinates, f"=== {MAX_PLOTTED}")
    page.locator("#search").fill("path:_ship")
    _expect_plotted(page, coordinates, f"=== {N // len(points.class_names)}")
    page.locator("#search").fill("")
    _expect_plotted(page, coordinates, f"=== {MAX_PLOTTED}")
    _zoom_in(page)
    expect(page.locator("#notice")).to_contain_text("all in the visible part")
    _expect_plotted(page, coordinates, f"> 0 && n < {MAX_PLOTTED}")
    assert len(loaded) == 1


def _expect_plotted(page: Page, coordinates: list[list[float]], condition: str) -> None:
    """Wait until the number n of different points that are plotted, each in its place, fulfills `n <condition>`."""
    page.wait_for_function(
        f"(coordinates) => {{ const n = ({_PLOTTED})(coordinates); return n {condition}; }}", arg=coordinates
    )


def _zoom_in(page: Page) -> None:
    """Zoom into a part of the map."""
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    for _ in range(8):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(100)
