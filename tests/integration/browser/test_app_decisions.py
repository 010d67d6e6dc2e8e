"""Overrides in a real browser: each on the visible image, in the order of the keys, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.artifacts.overrides import read_overrides
from pipeline.artifacts.tables import read_parquet, write_parquet
from tests.fixtures.browser_app import N_DROPPED, Served, intercept, lasso, open_page, pick
from tests.fixtures.chromium import clear
from tests.fixtures.points import NETWORK
from viz.decisions import Decisions, Image

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

FOCUSED = "#grid .tile.focus"


def _ranked(served: Served) -> list[tuple[int, str]]:
    """Row and path of the dropped images, the most suspect first."""
    points = served.points
    order = np.argsort(-points.scores, kind="stable")[:N_DROPPED].tolist()
    return [(row, points.paths[row].as_py()) for row in order]


def _open_first(page: Page, served: Served, **state: object) -> None:
    open_page(page, served.link(network=NETWORK, **state))
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED)
    page.keyboard.press("ArrowRight")
    expect(page.locator(FOCUSED)).to_have_count(1)


@pytest.mark.slow
def test_keys_decide_the_chosen_image_once_and_in_order(served: Served, page: Page) -> None:
    ranked = _ranked(served)
    _open_first(page, served)
    _choose_keep_drop_and_undo(page, served, ranked)
    _hold_a_key_down(page, served)
    _decide_nothing_that_is_hidden(page, served)
    expect(page.locator(FOCUSED)).to_have_attribute("data-row", str(ranked[3][0]))
    _decide_consecutive_images(page, served, [path for _, path in ranked])


def _choose_keep_drop_and_undo(page: Page, served: Served, ranked: list[tuple[int, str]]) -> None:
    (first_row, first), (second_row, second) = ranked[:2]
    expect(page.locator(FOCUSED)).to_have_attribute("data-row", str(first_row))
    page.keyboard.press("k")
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED - 1)
    expect(page.locator(FOCUSED)).to_have_attribute("data-row", str(second_row))
    page.keyboard.press("d")
    expect(page.locator("#legend")).to_contain_text("dropped by hand 1")
    assert served.overrides() == [(first, "keep", ""), (second, "drop", "")]
    page.keyboard.press("u")
    expect(page.locator("#saved")).to_have_text(f"Undone: {second}.")
    expect(page.locator(FOCUSED)).to_have_attribute("data-row", str(second_row))
    assert served.overrides() == [(first, "keep", "")]


def _hold_a_key_down(page: Page, served: Served) -> None:
    """Check that it decides one image."""
    for _ in range(4):
        page.keyboard.down("d")
    page.keyboard.up("d")
    expect(page.locator("#legend")).to_contain_text("dropped by hand 1")
    assert [decision for _, decision, _ in served.overrides()] == ["keep", "drop"]


def _decide_nothing_that_is_hidden(page: Page, served: Served) -> None:
    for control, hidden, seen in (("view", "Training", "Explore"), ("width", "embedding", "embedding and images")):
        page.locator(f"#{control}").get_by_text(hidden, exact=True).click()
        expect(page.locator("#keep")).not_to_be_visible()
        page.keyboard.press("d")
        page.locator(f"#{control}").get_by_text(seen, exact=True).click()
        expect(page.locator("#keep")).to_be_visible()
    # Directly after a click on a row of buttons.
    page.keyboard.press("k")
    expect(page.locator("#saved")).to_have_text("Saved as keep: 1 image.")
    assert [decision for _, decision, _ in served.overrides()] == ["keep", "drop", "keep"]


def _decide_consecutive_images(page: Page, served: Served, paths: list[str]) -> None:
    """Press keys before the server has answered, from the fourth image on."""
    before = served.overrides()

    def slowly(route: Route) -> None:
        page.wait_for_timeout(100)
        route.continue_()

    intercept(page, "**/_dash-update-component*", slowly)
    for key in ("d", "d", "k", "u", "d"):
        page.keyboard.press(key)
    expect(page.locator("#saved")).to_have_text("Saved as drop: 1 image.")
    expect(page.locator("#legend")).to_contain_text("dropped by hand 4")
    assert served.overrides() == [*before, *((path, "drop", "") for path in (paths[3], paths[4], paths[6]))]


@pytest.mark.slow
def test_a_note_applies_to_one_decision_of_a_lasso_or_a_key(served: Served, page: Page) -> None:
    open_page(page, served.url)
    _drop_a_lasso_and_undo(page, served)
    page.keyboard.press("Escape")
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED)
    page.keyboard.press("ArrowRight")
    expect(page.locator(FOCUSED)).to_have_count(1)
    _note_one_of_two_decisions(page, served)


def _drop_a_lasso_and_undo(page: Page, served: Served) -> None:
    """Check that a lasso fills the gallery, and that its decisions are saved."""
    points = served.points
    lasso(page, points, 2)
    rows = np.flatnonzero(points.labels == 2)
    expect(page.locator("#place")).to_contain_text(f"{len(rows)} images")
    expect(page.locator("#drop-selection")).to_have_text(f"Drop selection ({len(rows)})")
    page.locator("#note").fill("blurred, all")
    page.locator("#drop-selection").click()
    expect(page.locator("#saved")).to_contain_text(f"{len(rows)} images")
    assert set(served.overrides()) == {(points.paths[row].as_py(), "drop", "blurred, all") for row in rows.tolist()}
    expect(page.locator("#legend")).to_contain_text(f"dropped by hand {len(rows)}")
    page.locator("#undo").click()
    expect(page.locator("#legend")).not_to_contain_text("by hand")
    assert served.overrides() == []


def _note_one_of_two_decisions(page: Page, served: Served) -> None:
    (row, first), (_, second) = _ranked(served)[:2]
    # Typing a note decides nothing.
    page.locator("#note").press_sequentially("duck")
    page.keyboard.press("Enter")
    page.keyboard.press("d")
    page.keyboard.press("d")
    expect(page.locator("#legend")).to_contain_text("dropped by hand 2")
    assert served.overrides() == [(first, "drop", "duck"), (second, "drop", "")]
    expect(page.locator("#note")).to_have_value("")
    page.locator(f"#grid .tile[data-row='{row}']").click()
    expect(page.locator("#card")).to_contain_text("drop by hand, 20")
    expect(page.locator("#card q")).to_have_text("duck")
    page.keyboard.press("d")
    expect(page.locator("#saved")).to_have_text("Saved as drop: 1 image.")
    assert served.overrides()[0] == (first, "drop", "duck")


@pytest.mark.slow
def test_relabels_and_decisions_of_others_are_shown_after_a_reload(served: Served, page: Page) -> None:
    points = served.points
    (first_row, first), (_, second), (third_row, third) = _ranked(served)[:3]
    _open_first(page, served)
    Decisions(served.data.overrides).decide([Image(third, points.sha256[third_row].as_py())], "keep", "elsewhere")
    expect(page.locator("#legend")).to_contain_text("kept by hand 1")
    _cancel_a_relabel(page, served)
    names = _relabel_two(page, served)
    expect(page.locator("#legend")).to_contain_text("relabeled by hand 2")
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED - 3)
    decided = read_overrides(served.data.overrides)
    assert [(line.path, line.decision, line.label) for line in decided] == [
        (third, "keep", ""),
        (first, "relabel", names[0]),
        (second, "relabel", names[1]),
    ]
    open_page(page, served.link(network=NETWORK, list="hand", image=first_row))
    expect(page.locator(f"#grid .tile[data-row='{first_row}']")).to_contain_text(f"→ {names[0]}")
    expect(page.locator("#card")).to_contain_text(f"relabel as {names[0]} by hand")
    page.keyboard.press("u")
    expect(page.locator("#saved")).to_have_text(f"Undone: {second}.")
    page.locator(f"#grid .tile[data-row='{third_row}']").click()
    page.keyboard.press("c")
    expect(page.locator("#saved")).to_have_text("Cleared: 1 image.")
    expect(page.locator("#legend")).not_to_contain_text("kept by hand")
    assert [line.path for line in read_overrides(served.data.overrides)] == [first]


def _cancel_a_relabel(page: Page, served: Served) -> None:
    points, (first_row, _), chosen = served.points, _ranked(served)[0], page.locator("#new-label")
    before = served.overrides()
    page.keyboard.press("r")
    expect(chosen).to_be_visible()
    expect(chosen).to_be_focused()
    expect(chosen).to_have_value(str(points.predicted[first_row]))
    expect(page.locator("#relabel-from")).to_contain_text(points.class_names[points.predicted[first_row]])
    # Keys choose in the list, and decide nothing.
    page.keyboard.press("k")
    page.keyboard.press("Escape")
    expect(chosen).not_to_be_visible()
    assert served.overrides() == before


def _relabel_two(page: Page, served: Served) -> list[str]:
    """Relabel the first image as suggested, and the second as another class; return both names."""
    points, ((first_row, _), (second_row, _)) = served.points, _ranked(served)[:2]
    page.keyboard.press("r")
    page.keyboard.press("Enter")
    expect(page.locator(FOCUSED)).to_have_attribute("data-row", str(second_row))
    page.locator("#relabel").click()
    other = next(label for label in range(4) if label not in (points.labels[second_row], points.predicted[second_row]))
    page.locator("#new-label").select_option(str(other))
    page.locator("#relabel-confirm").click()
    return [points.class_names[points.predicted[first_row]], points.class_names[other]]


@pytest.mark.slow
def test_a_failed_request_saves_nothing_and_the_image_stays_chosen(served: Served, profile: BrowserContext) -> None:
    # The fixture `page` fails on console errors, and a failed request is one.
    page = profile.new_page()
    (row, first), _ = _ranked(served)[:2]
    _open_first(page, served)
    for fail, message in (
        (lambda route: route.abort(), "NOT SAVED: the server does not answer"),
        (lambda route: route.fulfill(status=500), "NOT SAVED: the server fails (500)"),
    ):
        intercept(page, "**/decide", fail)
        page.locator("#note").fill("why")
        page.locator("#note").press("Enter")
        page.keyboard.press("d")
        expect(page.locator("#saved.failed")).to_have_text(message)
        expect(page.locator(FOCUSED)).to_have_attribute("data-row", str(row))
        expect(page.locator("#note")).to_have_value("why")
        page.unroute("**/decide")
    assert served.overrides() == []
    page.keyboard.press("d")
    expect(page.locator("#saved")).to_have_text("Saved as drop: 1 image.")
    assert served.overrides() == [(first, "drop", "why")]
    clear(profile)


@pytest.mark.slow
def test_notes_of_all_failed_decisions_come_back(served: Served, profile: BrowserContext) -> None:
    page = profile.new_page()
    _open_first(page, served)
    held: list[Route] = []
    intercept(page, "**/decide", lambda route: held.append(route))  # Playwright sets an attribute of the function
    for note, key in (("why", "k"), ("blurred", "d")):
        page.locator("#note").fill(note)
        page.locator("#note").press("Enter")
        page.keyboard.press(key)
        expect(page.locator("#note")).to_have_value("")
    page.locator("#note").press_sequentially("typing")
    held[0].fulfill(status=500)
    expect(page.locator("#note")).to_have_value("why; blurred; typing")
    assert served.overrides() == []
    clear(profile)


@pytest.mark.slow
def test_a_silent_server_and_replaced_files_are_reported(served: Served, page: Page) -> None:
    paths = [path for _, path in _ranked(served)]
    _open_first(page, served)
    _decide_without_an_answer(page)
    assert served.overrides() == [(paths[0], "drop", ""), (paths[1], "keep", "")]
    _replace_the_points(page, served)
    assert len(served.overrides()) == 2
    page.locator("#banner").get_by_text("Show them").click()
    expect(page.locator("#banner")).to_be_empty()
    expect(page.locator("#grid .tile")).to_have_count(N_DROPPED - 1)
    page.locator("#grid .tile").nth(2).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("d")
    expect(page.locator("#saved")).to_have_text("Saved as drop: 1 image.")
    assert len(served.overrides()) == 3


def _decide_without_an_answer(page: Page) -> None:
    """Drop the first image, whose answer is late, and keep the second; the key before the answer does nothing."""
    held: list[Route] = []
    intercept(page, "**/decide", lambda route: held.append(route))
    page.keyboard.press("d")
    expect(page.locator("#saved")).to_have_text("Saving…")
    expect(page.locator("#saved.failed")).to_contain_text("NOT SAVED: the server does not answer")
    page.keyboard.press("k")
    (request,) = held
    request.continue_()
    page.unroute("**/decide")
    expect(page.locator("#saved")).to_have_text("Saved as drop: 1 image.")
    page.keyboard.press("k")
    expect(page.locator("#saved")).to_have_text("Saved as keep: 1 image.")


def _replace_the_points(page: Page, served: Served) -> None:
    """Check that this is noticed, and that old rows are not decided."""
    table = read_parquet(served.data.points(NETWORK))
    write_parquet(served.data.points(NETWORK), table)
    # A redraw does not read the new files.
    pick(page, "coloring", "class")
    pick(page, "sort", "least suspect first")
    page.locator("h1").click()
    page.keyboard.press("d")
    expect(page.locator("#saved.failed")).to_contain_text("Reload the page")
    expect(page.locator("#banner")).to_contain_text("A stage has written new files", timeout=15_000)


@pytest.mark.slow
def test_zooming_while_colors_are_on_their_way_loses_none(served: Served, page: Page) -> None:
    _open_first(page, served)
    zoomed: list[bool] = []

    def after_a_zoom(route: Route) -> None:
        if not zoomed and "map-drawing.data...legend" in (route.request.post_data or ""):
            zoomed.append(True)
            plot = "document.querySelector('#map .js-plotly-plot')"
            page.evaluate(f"Plotly.relayout({plot}, {{'xaxis.range': [-1, 1], 'yaxis.range': [-1, 1]}})")
            page.wait_for_timeout(500)
        route.continue_()

    intercept(page, "**/_dash-update-component*", after_a_zoom)
    page.keyboard.press("d")
    expect(page.locator("#legend")).to_contain_text("dropped by hand 1")
    assert zoomed


def test_a_duplicated_tab_has_an_undo_history_of_its_own(served: Served, page: Page) -> None:
    page.goto(served.url)
    own = page.evaluate("sessionStorage.page")
    with page.expect_popup() as opened:
        page.evaluate("window.open(location.href)")  # copies the storage, as a duplicated tab does
    other = opened.value
    other.wait_for_function("own => sessionStorage.page && sessionStorage.page !== own", arg=own)
    page.reload()
    assert page.evaluate("sessionStorage.page") == own
    other.close()
