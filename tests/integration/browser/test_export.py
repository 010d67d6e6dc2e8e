"""The exported page in a real browser, from a file, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.paths import DataPaths
from tests.fixtures.browser_app import alone, place_of
from tests.fixtures.chromium import clear
from tests.fixtures.points import CLASS_NAMES, NETWORK, write_points
from viz.data import Points, Source
from viz.export.page import make_content, write_page
from viz.filter_settings import FilterPreview, FilterSettings, preview_filter
from viz.state import selection_csv

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Request

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

_N, _N_DROPPED, _BY_HAND = 200, 20, 5
_NOTE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Points, FilterPreview]:
    folder = tmp_path_factory.mktemp("exported")
    data = DataPaths(root=folder / "data")
    # The color identifies the image, also after the compression of the sheet.
    images = np.zeros((_N, 32, 32, 3), dtype=np.uint8)
    images[..., 0] = np.arange(_N)[:, None, None]
    write_points(data, images, labels=np.arange(_N) % len(CLASS_NAMES), n_dropped=_N_DROPPED)
    source = Source(data)
    points = source.points(NETWORK)
    path, sha256 = points.paths[_BY_HAND].as_py(), points.sha256[_BY_HAND].as_py()
    override = Override(path=path, sha256=sha256, decision="drop", note=_NOTE, timestamp="", line=2)
    write_overrides(data.overrides, [override])
    preview = preview_filter(source, points, FilterSettings())
    write_page(folder / "map.html", make_content(points, preview, source.overrides(points)))
    return folder / "map.html", points, preview


@pytest.fixture
def opened(page: Page, exported: tuple[Path, Points, FilterPreview]) -> Iterator[Page]:
    """The page, ready. It has requested no other file."""
    outside: list[str] = []

    def record(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            outside.append(request.url)

    page.on("request", record)
    page.context.set_offline(True)
    page.goto(exported[0].as_uri())
    page.wait_for_selector("body[data-ready]")
    yield page
    assert not outside


def _lasso(page: Page, points: Points, label: int) -> None:
    """Drag a lasso around the points of a class."""
    page.click('[data-attr="dragmode"][data-val="lasso"]')
    places = np.array([place_of(page, points, int(row)) for row in np.flatnonzero(points.labels == label)])
    (left, top), (right, bottom) = places.min(axis=0) - 8, places.max(axis=0) + 8
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(x, y, steps=4)
    page.mouse.up()


def _saved(page: Page, folder: Path) -> str:
    """Return the content of the CSV file that the button saves."""
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == f"{NETWORK}.selection.csv"
    download.value.save_as(folder / "selection.csv")
    return (folder / "selection.csv").read_bytes().decode()


def _by_score(preview: FilterPreview, rows: NDArray[np.int64]) -> list[int]:
    ordered: list[int] = rows[np.argsort(-preview.scores[rows], kind="stable")].tolist()
    return ordered


@pytest.mark.slow
def test_a_point_is_explained_and_pinned_with_its_neighbors(
    opened: Page, exported: tuple[Path, Points, FilterPreview]
) -> None:
    _, points, preview = exported
    row = alone(points)
    opened.mouse.move(*place_of(opened, points, row))
    tooltip = opened.locator("#tooltip")
    expect(tooltip).to_be_visible()
    for text in (points.name(row), points.reasons[row].as_py(), f"score {preview.scores[row]:.3f}", "90 %"):
        expect(tooltip).to_contain_text(text)
    expect(tooltip.locator("canvas[data-plotted]")).to_have_count(1)
    red = tooltip.locator("canvas").evaluate("canvas => canvas.getContext('2d').getImageData(16, 16, 1, 1).data[0]")
    assert red == pytest.approx(row, abs=8)
    opened.mouse.move(5, 5)
    expect(tooltip).to_be_hidden()
    _pin(opened, points, row)


def _pin(opened: Page, points: Points, row: int) -> None:
    opened.mouse.click(*place_of(opened, points, row))
    card = opened.locator("#card")
    expect(card).to_contain_text(f"#{row}")
    labels = card.locator(".neighbors canvas").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert labels == [f"image {other}" for other in points.neighbors[row]]
    card.locator(".neighbors button").first.click()
    expect(card).to_contain_text(f"#{points.neighbors[row][0]}")


@pytest.mark.slow
def test_markup_that_gets_into_the_page_does_not_run(
    profile: BrowserContext, exported: tuple[Path, Points, FilterPreview]
) -> None:
    """It cannot fetch either: the policy covers mistakes of the page."""
    page = profile.new_page()
    page.goto(exported[0].as_uri())
    page.wait_for_selector("body[data-ready]")
    ran, fetched = page.evaluate(
        """async () => {
            window.ran = false;
            document.body.insertAdjacentHTML("beforeend", "<a id=trap href='javascript:ran=true' onclick='ran=true'>");
            const script = document.createElement("script");
            script.textContent = "ran = true";
            document.body.append(script);
            document.getElementById("trap").click();
            return [window.ran, await fetch("data:,x").then(() => true, () => false)];
        }"""
    )
    clear(profile)
    assert (ran, fetched) == (False, False)


@pytest.mark.slow
def test_filters_select_images_and_the_page_follows_the_system(opened: Page) -> None:
    count, legend = opened.locator("#count"), opened.locator("#legend")
    expect(count).to_have_text(f"{_N} shown, {_N_DROPPED + 1} dropped")
    expect(legend.locator("output")).to_have_text([str(_N - _N_DROPPED - 1), str(_N_DROPPED), "1"])
    opened.select_option("#class", label=CLASS_NAMES[3])
    expect(count).to_have_text(f"{_N // 4} shown, {_N_DROPPED // 4} dropped")
    opened.select_option("#decision", "0")
    expect(count).to_have_text(f"{_N_DROPPED // 4} shown, {_N_DROPPED // 4} dropped")
    expect(opened.locator("#grid button")).to_have_count(_N_DROPPED // 4)
    opened.fill("#min-score", "1")
    opened.press("#min-score", "Tab")
    expect(count).to_have_text("1 shown, 1 dropped")
    plotted = "document.getElementById('map').data.reduce((n, trace) => n + trace.x.length, 0)"
    opened.wait_for_function(f"{plotted} === 1")
    _switch_the_system_to_dark(opened)


def _switch_the_system_to_dark(opened: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    opened.emulate_media(color_scheme="light")
    light = opened.evaluate(background)
    opened.emulate_media(color_scheme="dark")
    assert opened.evaluate(background) != light


@pytest.mark.slow
def test_colorings_and_the_text_of_hostile_names(opened: Page, exported: tuple[Path, Points, FilterPreview]) -> None:
    _, points, preview = exported
    _choose_every_coloring(opened)
    _look_at_the_top_of_a_color(opened, points, preview)
    _read_names_paths_and_notes(opened, points)


def _choose_every_coloring(opened: Page) -> None:
    keys = opened.locator("#coloring option").evaluate_all("options => options.map(option => option.value)")
    assert keys == ["decision", "class", "score", "reason", "cluster", "arm", "correct"]
    for key in keys:
        opened.select_option("#coloring", key)
        if key != "score":
            assert sum(int(text) for text in opened.locator("#legend output").all_inner_texts()) == _N
    opened.select_option("#coloring", "score")
    expect(opened.locator("#legend")).to_contain_text("score (above 0.5: dropped)")


def _look_at_the_top_of_a_color(opened: Page, points: Points, preview: FilterPreview) -> None:
    """Check that the most suspect image is on top."""
    opened.select_option("#class", "1")
    opened.select_option("#coloring", "score")
    first = _by_score(preview, np.flatnonzero(points.labels == 1))[0]
    last = (
        "(() => { const { data } = document.getElementById('map'); return data.length === 1 && data[0].x.at(-1); })()"
    )
    opened.wait_for_function(f"{last} === {points.coordinates[first, 0]}")


def _read_names_paths_and_notes(opened: Page, points: Points) -> None:
    """Check that they stay text."""
    opened.select_option("#class", index=0)
    assert opened.locator("img").count() == 0
    assert opened.locator("#class option").all_inner_texts()[1:] == list(CLASS_NAMES)
    # The image with an override has the lowest score.
    opened.fill("#max-score", str(float(points.scores[_BY_HAND]) + 1e-6))
    opened.press("#max-score", "Tab")
    opened.locator("#grid button").first.click()
    expect(opened.locator("#card")).to_contain_text(f"drop by hand: {_NOTE}")
    expect(opened.locator("#card")).to_contain_text(points.paths[_BY_HAND].as_py())


@pytest.mark.slow
def test_the_grid_has_pages_by_score_and_the_lasso_saves_its_csv(
    opened: Page, exported: tuple[Path, Points, FilterPreview], tmp_path: Path
) -> None:
    _, points, preview = exported
    _turn_pages(opened, preview)
    _save_a_lasso(opened, points, preview, tmp_path)


def _turn_pages(opened: Page, preview: FilterPreview) -> None:
    reach = opened.locator("#range")
    expect(reach).to_have_text("1 to 60 of 200, by score")
    expect(opened.locator("#previous")).to_be_disabled()
    seen = []
    for _ in range(4):
        seen += opened.locator("#grid canvas").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        if opened.locator("#next").is_enabled():
            opened.click("#next")
    expect(reach).to_have_text("181 to 200 of 200, by score")
    assert seen == [f"image {row}" for row in _by_score(preview, np.arange(_N))]


def _save_a_lasso(opened: Page, points: Points, preview: FilterPreview, tmp_path: Path) -> None:
    """Check that the CSV file is that of Python."""
    _lasso(opened, points, label=2)
    inside = np.flatnonzero(points.labels == 2)
    expect(opened.locator("#count")).to_contain_text(f"{len(inside)} in the lasso")
    expect(opened.locator("#range")).to_have_text(f"1 to {len(inside)} of {len(inside)}, by score")
    assert _saved(opened, tmp_path) == selection_csv(points, preview, _by_score(preview, inside))
    # The lasso stays after a change of coloring, and can be cleared.
    opened.select_option("#coloring", "class")
    expect(opened.locator("#count")).to_contain_text(f"{len(inside)} in the lasso")
    opened.click("#clear-lasso")
    expect(opened.locator("#count")).to_have_text(f"{_N} shown, {_N_DROPPED + 1} dropped")
    assert _saved(opened, tmp_path) == selection_csv(points, preview, _by_score(preview, np.arange(_N)))


@pytest.mark.slow
def test_on_a_phone_the_map_covers_nothing(page: Page, exported: tuple[Path, Points, FilterPreview]) -> None:
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto(exported[0].as_uri())
    page.wait_for_selector("body[data-ready]")
    page.wait_for_function(
        """() => {
            const images = document.getElementById("images").getBoundingClientRect();
            const plots = [...document.querySelectorAll("#map canvas, #map svg")].map((e) => e.getBoundingClientRect());
            const low = Math.max(...plots.map((box) => box.bottom));
            return low <= images.top + 1 && Math.max(...plots.map((box) => box.height)) > 300
                && document.documentElement.scrollWidth <= 420;
        }"""
    )


@pytest.mark.slow
def test_a_browser_that_cannot_unpack_says_so(page: Page, exported: tuple[Path, Points, FilterPreview]) -> None:
    page.add_init_script("delete window.DecompressionStream")
    page.goto(exported[0].as_uri())
    expect(page.locator("#problem")).to_contain_text("DecompressionStream")
