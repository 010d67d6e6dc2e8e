"""The app in a real browser, served by a separate process on synthetic artifacts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.config.params import load_params
from tests.fixtures.browser_app import (
    N_DROPPED,
    N,
    Served,
    alone,
    hover,
    lasso,
    open_page,
    pick,
    place_of,
    write_app,
)
from tests.fixtures.points import CLASS_NAMES, NETWORK
from viz.callbacks.url import read_settings
from viz.data import Source
from viz.filter_settings import FilterSettings, Limit, preview_filter
from viz.layout import WIDTHS
from viz.state import selection_csv, settings_from_json

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect


# Returns whether exactly these rows are highlighted on a map.
_MARKED = """([graph, rows]) => {
    const trace = document.querySelector(`#${graph} .js-plotly-plot`)._fullData[0];
    const marked = (trace.selectedpoints ?? []).map((place) => trace.customdata[place]);
    return marked.sort((a, b) => a - b).join() === rows.join();
}"""


def test_map_legend_hover_and_card(served: Served, page: Page) -> None:
    points, row = served.points, alone(served.points)
    open_page(page, served.url)
    expect(page.locator("#legend")).to_have_text(f"kept {N - N_DROPPED}dropped {N_DROPPED}")
    hover(page, points, row)
    tooltip = page.locator("#left .dcc-tooltip-bounding-box")
    expect(tooltip).to_contain_text(points.name(row))
    expect(tooltip).to_contain_text(f"score {points.scores[row]:.3f}")
    expect(tooltip).to_contain_text(points.reasons[row].as_py())
    page.mouse.click(*place_of(page, points, row))
    expect(page.locator("#card")).to_contain_text(points.paths[row].as_py())
    expect(page.locator("#card .tile")).to_have_count(points.neighbors.shape[1])
    page.wait_for_function("[...document.querySelectorAll('#card img')].every((image) => image.naturalWidth === 16)")


@pytest.mark.slow
def test_moving_eps_reclusters(served: Served, page: Page) -> None:
    open_page(page, served.url)
    pick(page, "scorer", "DBSCAN (embedding)")
    expect(page.locator("#unit")).to_have_text("eps (units of the embedding)")
    handle = page.locator("#threshold [role=slider]")
    handle.focus()
    for _ in range(10):
        handle.press("ArrowLeft")
    moved = page.locator("#threshold [role=slider]").get_attribute("aria-valuenow")
    page.wait_for_function(
        "(value) => Number(new URLSearchParams(location.search).get('threshold')) === value", arg=float(str(moved))
    )
    address = page.evaluate("location.search")
    assert re.fullmatch(r"\?scorer=dbscan&threshold=[0-9.]+", address)
    rule = settings_from_json(read_settings(address))
    source = Source(served.data)
    noise = preview_filter(source, source.points(NETWORK), rule).noise
    assert 0 < noise.sum() < N, address
    expect(page.locator("#legend")).to_have_text(f"kept {N - noise.sum()}dropped {noise.sum()}")
    expect(page.locator("#place")).to_contain_text(f"{noise.sum()} images")


@pytest.mark.slow
def test_zoom_is_kept_when_colors_and_filters_change(served: Served, page: Page) -> None:
    open_page(page, served.url)
    box = page.locator("#map").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    initial = _span(page)
    for _ in range(8):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)
    zoomed = _span(page)
    assert zoomed[1] < 0.6 * initial[1]
    pick(page, "coloring", "class")
    expect(page.locator("#legend > span")).to_have_count(len(CLASS_NAMES))
    # A legend of two lines reduces the height of the map, and x has the scale of y.
    assert _span(page) == pytest.approx(zoomed, rel=0.1, abs=1e-6)
    assert page.url.endswith("?color=class")
    open_page(page, page.url)
    assert _span(page)[1] > 1.5 * zoomed[1]


def _span(page: Page) -> tuple[float, float]:
    """Return center and width of the x axis of the map."""
    low, high = page.evaluate("document.querySelector('#map .js-plotly-plot')._fullLayout.xaxis.range")
    return (low + high) / 2, high - low


@pytest.mark.slow
def test_comparing_two_networks(served: Served, page: Page) -> None:
    write_app(served.folder, networks=(NETWORK, "resnet34"))
    source = Source(served.data)
    points = source.points(NETWORK)
    rule = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.4, min_samples=5))
    only_a = preview_filter(source, points, rule).noise & ~points.is_noise
    assert only_a.any()
    state = {"view": "compare", "list": "a", "scorer-b": "written"}
    open_page(page, served.link(scorer="dbscan", threshold=0.4, **state))
    expect(page.locator("#differences")).to_contain_text(f"B drops {N_DROPPED}")
    expect(page.locator("#legend")).to_contain_text(f"only A drops {only_a.sum()}")
    expect(page.locator("#place")).to_contain_text(f"{only_a.sum()} images")
    lasso(page, points, 1)
    selected = int((points.labels == 1).sum())
    page.wait_for_function(
        f"document.querySelector('#other .js-plotly-plot').data[0].selectedpoints?.length === {selected}"
    )
    # The other direction, and after a redraw.
    lasso(page, points, 2, "other")
    rows = np.flatnonzero(points.labels == 2).tolist()
    page.wait_for_function(_MARKED, arg=["map", rows])
    page.locator("#share-b").fill("6")
    page.locator("#share-b").press("Enter")
    expect(page.locator("#differences")).not_to_contain_text(f"B drops {N_DROPPED}")
    for graph in ("map", "other"):
        page.wait_for_function(_MARKED, arg=[graph, rows])
    expect(page.locator("#drop-selection")).to_have_text(f"Drop selection ({len(rows)})")
    hover(page, points, alone(points), "other")


@pytest.mark.slow
def test_a_link_restores_the_view_and_its_filter_is_written(served: Served, page: Page) -> None:
    address = f"{served.url}?scorer=dbscan&threshold=0.75&min_samples=3&color=class&classes=1&list=shown&sort=class"
    open_page(page, address)
    expect(page.locator("#unit")).to_have_text("eps (units of the embedding)")
    expect(page.locator("#min_samples")).to_have_value("3")
    expect(page.locator("#legend > span")).to_have_count(1)
    expect(page.locator("#place")).to_contain_text("60 images")
    # The page writes the address as it was.
    page.locator("#names").get_by_text("class names").click()
    page.wait_for_url(f"{address}&names=off")
    _write_the_filter_after_its_difference(served, page)


def _write_the_filter_after_its_difference(served: Served, page: Page) -> None:
    before = served.params.read_text()
    page.locator("#propose").click()
    # The file has a share, so the dialog opens with it.
    expect(page.locator("#difference")).to_contain_text("+  drop_fraction: ")
    page.locator("#write-as").get_by_text("threshold").click()
    expect(page.locator("#difference")).to_contain_text("+  eps: 0.75")
    assert served.params.read_text() == before
    page.locator("#write").click()
    expect(page.locator("#written")).to_contain_text("Written to")
    assert load_params(served.params).filter.eps == 0.75
    page.locator("#close").click()
    expect(page.locator("#dialog")).not_to_be_visible()


@pytest.mark.slow
def test_a_list_has_pages_and_is_saved_as_csv(served: Served, page: Page) -> None:
    source = Source(served.data)
    points = source.points(NETWORK)
    open_page(page, served.url)
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED)
    with page.expect_download() as download:
        page.locator("#csv").click()
    rows = np.argsort(-points.scores, kind="stable")[:N_DROPPED].tolist()
    expected = selection_csv(points, preview_filter(source, points, FilterSettings()), rows)
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected
    pick(page, "list", "all shown")
    expect(page.locator("#place")).to_have_text(f"{N} images, page 1 of 4")
    page.locator("h1").click()  # keys go to the page
    page.keyboard.press("PageDown")
    expect(page.locator("#place")).to_have_text(f"{N} images, page 2 of 4")
    page.locator("#previous").click()
    expect(page.locator("#place")).to_have_text(f"{N} images, page 1 of 4")


@pytest.mark.slow
def test_light_and_dark(served: Served, page: Page) -> None:
    open_page(page, served.url)
    color = "getComputedStyle(document.body).backgroundColor"
    colors = {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 25, 28)"}
    for system, other in (("light", "dark"), ("dark", "light")):
        page.emulate_media(color_scheme="dark" if system == "dark" else "light")
        page.wait_for_function(f"{color} === '{colors[system]}'")
        page.locator("#theme").click()
        assert page.evaluate(color) == colors[other]
        # As if nothing had been chosen.
        page.evaluate("delete document.documentElement.dataset.theme")


@pytest.mark.slow
def test_a_small_screen_shows_every_view_width_and_line(served: Served, page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    open_page(page, served.url)
    for scorer in ("scorer of the filter", "DBSCAN (embedding)"):
        if scorer != "scorer of the filter":
            pick(page, "scorer", scorer)
            expect(page.locator("#min_samples")).to_be_visible()
        _check_lines(page)
    for view in ("Explore", "Compare", "Training"):
        page.locator("#view").get_by_text(view, exact=True).click()
        for width, name in WIDTHS.items():
            page.locator("#width").get_by_text(name, exact=True).click()
            expect(page.locator("#page")).to_have_class(f"{view.lower()} {width} single")
            _check_content(page, view, width)


def _check_lines(page: Page) -> None:
    """Check that all lines of the table are visible."""
    lines = page.locator("#table tbody tr")
    expect(lines).to_have_count(1 + len(CLASS_NAMES))
    for line in range(1 + len(CLASS_NAMES)):
        expect(lines.nth(line)).to_be_in_viewport(ratio=1)


def _check_content(page: Page, view: str, width: str) -> None:
    if view == "Training":
        expect(page.locator("#training-view")).to_be_visible()
        return
    expect(page.locator("#map")).to_be_visible(visible=width != "pictures")
    expect(page.locator("#grid")).to_be_visible(visible=width != "map")
    expect(page.locator("#network-b")).to_be_visible(visible=view == "Compare")
    expect(page.locator("#threshold-box")).to_be_visible()
    if view == "Compare":
        expect(page.locator("#scorer-b")).to_have_text("DBSCAN (embedding)")
        # One map shows two settings of one network.
        expect(page.locator("#other")).not_to_be_visible()


@pytest.mark.slow
def test_missing_artifacts_name_the_command_to_run(served: Served, page: Page) -> None:
    served.data.points(NETWORK).unlink()
    page.goto(served.url)
    expect(page.locator("#problem")).to_contain_text("run `dvc repro`")
    page.locator("#csv").click()
    expect(page.locator("#saved.failed")).to_contain_text("No list to save: ")
    page.get_by_text("Training", exact=True).click()
    expect(page.locator("#training")).to_contain_text("dvc repro")
