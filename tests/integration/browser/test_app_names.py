"""Controls have names for screen readers, and buttons say what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.browser_app import Served, open_page
from tests.fixtures.points import NETWORK

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

pytestmark = pytest.mark.slow

_NAMES = {
    "button": {
        "network": f"network {NETWORK}",
        "coloring": "Color by decision",
        "classes": "Classes shown all",
        "scorer": "Scorer scorer of the filter",
        "scope": "Settings for all classes",
        "list": "list dropped",
        "sort": "order most suspect first",
    },
    "textbox": {"search": "Search", "note": "note (optional)"},
    "spinbutton": {"threshold-box": "eps (units of the embedding)", "share-box": "Dropped (%)"},
}
_OF_COMPARE = {
    "button": {"network-b": f"network of B {NETWORK}", "scorer-b": "scorer of B DBSCAN (embedding)"},
    "spinbutton": {"share-b": "dropped (%)", "min_samples-b": "min_samples"},
}


def _check_names(page: Page, names: dict[str, dict[str, str]]) -> None:
    for role, of_role in names.items():
        for control, name in of_role.items():
            named = page.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]  # a role of ARIA
            expect(named).to_have_attribute("id", control)


def test_controls_have_names(served: Served, page: Page) -> None:
    open_page(page, served.url)
    _check_names(page, _NAMES)
    for group in ("scores shown", "threshold", "dropped (%)", "size"):
        expect(page.get_by_role("group", name=group, exact=True).get_by_role("slider").first).to_be_visible()
    page.locator("#view").get_by_text("Compare").click()
    _check_names(page, _OF_COMPARE)


def test_a_button_without_a_chosen_image_says_so(served: Served, page: Page) -> None:
    open_page(page, served.url)
    for press in (page.locator("#keep").click, lambda: page.keyboard.press("r")):
        press()
        expect(page.locator("#saved")).to_have_text("Choose an image first.")
        expect(page.locator("#relabel-dialog")).not_to_be_visible()
    assert served.overrides() == []
