"""The app on a phone of 390 pixels: nothing is wider, the map covers nothing, and images are reviewed by touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.artifacts.overrides import read_overrides
from tests.fixtures.browser_app import N_DROPPED, Served, open_page
from viz.layout import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

pytestmark = pytest.mark.slow

_WIDTH, _HEIGHT = 390, 844
_CONTENT = {"review": "#review .large img", "training": "#training"}


@pytest.fixture
def phone(page: Page) -> Page:
    page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT})
    return page


def _widest(page: Page) -> list[str]:
    """Return the elements that reach beyond the right edge and can be seen there."""
    found: list[str] = page.evaluate(
        """(width) => [...document.querySelectorAll("#page *")].filter((element) => {
            const box = element.getBoundingClientRect();
            if (!box.width || box.right <= width + 1) return false;
            for (let parent = element.parentElement; parent; parent = parent.parentElement) {
                if (getComputedStyle(parent).overflowX !== "visible" && parent !== document.body
                    && parent !== document.documentElement) return false;
            }
            return true;
        }).map((element) => `${element.tagName} #${element.id} .${element.className}`)""",
        _WIDTH,
    )
    return found


def test_nothing_is_wider_than_the_screen(served: Served, phone: Page) -> None:
    for view in VIEWS:
        phone.goto(f"{served.url}?view={view}")
        phone.locator(_CONTENT.get(view, "#legend > span")).first.wait_for()
        phone.locator("#table tbody tr").first.wait_for(state="attached")
        phone.wait_for_function(f"document.documentElement.scrollWidth <= {_WIDTH}")
        assert _widest(phone) == [], view


def test_a_view_that_was_switched_to_is_no_wider_than_the_screen(served: Served, phone: Page) -> None:
    """The image of the review is the chosen one of the next view."""
    phone.goto(f"{served.url}?view=review")
    phone.locator("#review .large img").wait_for()
    for view, title in VIEWS.items():
        phone.locator("#view").get_by_text(title, exact=True).click()
        phone.locator(f"#page.{view}").wait_for()
        phone.locator(_CONTENT.get(view, "#card .chosen img")).first.wait_for()
        phone.wait_for_function(f"document.documentElement.scrollWidth <= {_WIDTH}")
        assert _widest(phone) == [], view


def test_the_map_covers_nothing_and_a_touched_image_opens_its_card(served: Served, phone: Page) -> None:
    open_page(phone, served.url)
    phone.wait_for_function(
        """() => {
            const images = document.getElementById("images").getBoundingClientRect();
            const plotted = [...document.querySelectorAll("#map canvas")].map((one) => one.getBoundingClientRect());
            return plotted.length && Math.max(...plotted.map((box) => box.bottom)) <= images.top + 1
                && Math.max(...plotted.map((box) => box.height)) > 300;
        }"""
    )
    # The controls come after the images.
    order = "id => document.getElementById(id).getBoundingClientRect().top"
    assert phone.evaluate(order, "middle") < phone.evaluate(order, "images") < phone.evaluate(order, "choices")
    phone.locator("#grid .tile").first.click()
    expect(phone.locator("#card .chosen")).to_be_visible()


def test_images_are_reviewed_with_the_thumb(served: Served, phone: Page) -> None:
    points = served.points
    rows = np.argsort(-points.scores, kind="stable")[:2].tolist()
    phone.goto(f"{served.url}?view=review")
    large, keep, drop = (phone.locator(name) for name in ("#review .large", "#keep", "#drop"))
    expect(large).to_have_attribute("data-row", str(rows[0]))
    # The image and the buttons are on one screen.
    expect(large.locator("img")).to_be_in_viewport(ratio=0.9)
    for button in (keep, drop):
        expect(button).to_be_in_viewport(ratio=1)
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 40
    keep.click()
    expect(large).to_have_attribute("data-row", str(rows[1]))
    drop.click()
    expect(phone.locator("#review .progress")).to_have_text(f"2 of {N_DROPPED} reviewed")
    decided = [(line.path, line.decision) for line in read_overrides(served.data.overrides)]
    assert decided == [(points.paths[rows[0]].as_py(), "keep"), (points.paths[rows[1]].as_py(), "drop")]
