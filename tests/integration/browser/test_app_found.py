"""What was found by trying the app in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fixtures.browser_app import N_DROPPED, N, Served, lasso, open_page, pick
from tests.fixtures.chart_texts import cut_texts

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from viz.data import Points

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
expect = playwright.expect


def _enter(page: Page, box: str, text: str) -> None:
    page.locator(box).click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)  # at once: on a slow machine the first digit of three would be taken alone
    page.keyboard.press("Enter")


@pytest.mark.slow
def test_help_class_names_curve_and_number_boxes(served: Served, page: Page) -> None:
    open_page(page, served.url)
    _open_and_close_the_help(page)
    assert served.overrides() == []
    _hide_the_class_names(page, served)
    _check_that_no_text_of_the_curve_is_cut(page)
    _enter_bad_numbers(page)


def _open_and_close_the_help(page: Page) -> None:
    page.locator("#help-open").click()
    expect(page.locator("#help")).to_contain_text("keep it with another label")
    page.keyboard.press("k")
    page.locator("#help-close").click()
    expect(page.locator("#help")).not_to_be_visible()


def _hide_the_class_names(page: Page, served: Served) -> None:
    names = page.locator("#map .annotation-text")
    expect(names).to_have_count(len(served.points.class_names))
    assert sorted(names.all_text_contents()) == sorted(served.points.class_names)
    page.locator("#names").get_by_text("class names").click()
    expect(names).to_have_count(0)


def _check_that_no_text_of_the_curve_is_cut(page: Page) -> None:
    """Check it for two scorers, and leave the page with that of the filter."""
    for scorer in ("scorer of the filter", "DBSCAN (embedding)"):
        if scorer != "scorer of the filter":
            pick(page, "scorer", scorer)
            expect(page.locator("#min_samples")).to_be_visible()
        expect(page.locator("#curve .annotation-text")).to_have_text("distance to neighbor 4 (units of the embedding)")
        assert cut_texts(page.locator("#curve")) == []
    page.locator("#reset").click()
    expect(page.locator("#min_samples")).not_to_be_visible()


def _enter_bad_numbers(page: Page) -> None:
    """Check that they are named and change nothing, and that a good number does."""
    legend = f"kept {N - N_DROPPED}dropped {N_DROPPED}"
    expect(page.locator("#legend")).to_have_text(legend)
    for control in ("share", "threshold"):
        for text in ("-3", "abc", "400") if control == "share" else ("-3", "abc"):
            _enter(page, f"#{control}-box", text)
            expect(page.locator("#number-problem")).to_contain_text("The last valid number stays in use")
            expect(page.locator("#legend")).to_have_text(legend)
        page.locator("#reset").click()
        expect(page.locator("#number-problem")).to_be_empty()
    _enter(page, "#share-box", "10")
    expect(page.locator("#number-problem")).to_be_empty()
    expect(page.locator("#legend")).to_have_text(f"kept {N - N // 10}dropped {N // 10}")


@pytest.mark.slow
def test_a_lasso_and_a_cell_of_the_matrix_select_images(served: Served, page: Page) -> None:
    points = served.points
    open_page(page, served.url)
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED)
    _remove_lassos(page, points)
    _select_a_cell(page, points)


def _remove_lassos(page: Page, points: Points) -> None:
    """Check that without the lasso the earlier list and its keys return."""
    for remove in ("double click", "Escape"):
        lasso(page, points, 2)
        expect(page.locator("#place")).to_contain_text(f"{(points.labels == 2).sum()} images")
        if remove == "Escape":
            page.keyboard.press("Escape")
        else:
            _double_click(page)
        expect(page.locator("#grid .tile")).to_have_count(N_DROPPED)
        page.keyboard.press("ArrowRight")
        expect(page.locator("#grid .tile.focus")).to_have_count(1)
    page.wait_for_function("!document.querySelector('#map .js-plotly-plot').data[0].selectedpoints")


def _double_click(page: Page) -> None:
    """Double-click the map until its selection is gone: on a busy machine Plotly sees clicks too far apart."""
    for _ in range(5):
        box = page.locator("#map").bounding_box()
        assert box is not None
        page.mouse.dblclick(box["x"] + 20, box["y"] + box["height"] - 20)
        try:
            page.wait_for_function(
                "!document.querySelector('#map .js-plotly-plot').data[0].selectedpoints", timeout=5000
            )
        except playwright.TimeoutError:
            continue
        return
    raise AssertionError("five double clicks removed no selection")


def _select_a_cell(page: Page, points: Points) -> None:
    pair = int(points.labels[-1]), int(points.predicted[-1])
    rows = np.flatnonzero((points.labels == pair[0]) & (points.predicted == pair[1])).tolist()
    page.locator(f"#matrix .cell[data-label='{pair[0]}'][data-suggested='{pair[1]}']").click()
    expect(page.locator("#list")).to_have_text("selected")
    expect(page.locator("#place")).to_contain_text(f"{len(rows)} images")
    expect(page.locator("#drop-selection")).to_have_text(f"Drop selection ({len(rows)})")
    page.wait_for_function(
        """(rows) => {
            const trace = document.querySelector("#map .js-plotly-plot").data[0];
            const marked = (trace.selectedpoints ?? []).map((place) => trace.customdata[place]);
            return marked.sort((a, b) => a - b).join() === rows.join();
        }""",
        arg=rows,
    )


@pytest.mark.slow
def test_two_scorers_show_one_map_and_the_images_that_differ(served: Served, page: Page) -> None:
    open_page(page, f"{served.url}?scorer-b=written&share-b=10&size=160")
    page.wait_for_function("document.querySelector('#grid .tile')?.offsetWidth === 160")
    page.locator("#view").get_by_text("Compare", exact=True).click()
    expect(page.locator("#list")).to_have_text("A and B differ")
    expect(page.locator("#map")).to_be_visible()
    expect(page.locator("#other")).not_to_be_visible()
    expect(page.locator("#differences")).to_contain_text(f"A drops {N_DROPPED}, B drops {N // 10}")
    expect(page.locator("#place")).to_contain_text(f"{N // 10 - N_DROPPED} images")
    _enter_bad_numbers_of_the_second_settings(page)
    page.locator("#view").get_by_text("Explore", exact=True).click()
    expect(page.locator("#list")).to_have_text("dropped")


def _enter_bad_numbers_of_the_second_settings(page: Page) -> None:
    for box, texts in (("#share-b", ("-3", "400", "abc")), ("#min_samples-b", ("0", "2.5", "abc"))):
        for text in texts:
            _enter(page, box, text)
            expect(page.locator("#number-problem-b")).to_contain_text("The last valid number stays in use")
            expect(page.locator("#differences")).to_contain_text(f"B drops {N // 10}")
        _enter(page, box, "10")
        expect(page.locator("#number-problem-b")).to_be_empty()


@pytest.mark.slow
def test_search_narrows_map_and_list_and_stands_in_a_short_address(served: Served, page: Page) -> None:
    points = served.points
    open_page(page, served.url)
    assert page.url == served.url
    pick(page, "list", "all shown")
    page.locator("#search").fill(f"row {points.scores.argmax()}")
    expect(page.locator("#place")).to_have_text("1 image, page 1 of 1")
    expect(page.locator("#notice")).to_have_text(f"1 of {N} images shown")
    page.wait_for_url(f"{served.url}?list=shown&search=row+{points.scores.argmax()}")
    open_page(page, page.url)
    expect(page.locator("#place")).to_have_text("1 image, page 1 of 1")
