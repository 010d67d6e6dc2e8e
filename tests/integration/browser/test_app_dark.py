"""Every view in light and in dark: each text is readable on what is behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from tests.fixtures.browser_app import Served, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

# Contrast by WCAG 2.1, which asks for 3 of large text.
_UNREADABLE = """() => {
    const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
        .getContext("2d", { willReadFrequently: true });
    const parsed = (color) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = color;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (rgb) => {
        const [red, green, blue] = rgb.slice(0, 3).map((value) => value / 255)
            .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = parsed(getComputedStyle(at).backgroundColor);
            if (color[3] > 200) return color;
        }
        return parsed("canvas");
    };
    const texts = [...document.querySelectorAll("body *")].filter((element) =>
        [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
        && element.checkVisibility({ opacityProperty: true, visibilityProperty: true })
        && !element.closest("script, style, [disabled], [aria-disabled=true], .hovertext"));
    return texts.flatMap((element) => {
        const style = getComputedStyle(element);
        const colors = [parsed(element.closest("svg") ? style.fill : style.color), behind(element)];
        const [high, low] = colors.map(luminance).sort((a, b) => b - a);
        const contrast = (high + 0.05) / (low + 0.05);
        const text = element.textContent.trim().slice(0, 40);
        return contrast < 3 ? [`${element.tagName} ${element.className} ${text}: ${contrast.toFixed(2)}`] : [];
    });
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_every_view_are_readable(served: Served, page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    open_page(page, served.url)
    expect(page.locator("#grid .tile").first).to_be_visible()
    assert page.evaluate(_UNREADABLE) == []
    page.locator("#network").click()
    assert page.evaluate(_UNREADABLE) == []
    page.keyboard.press("Escape")
    for view in ("Compare", "Training", "Review"):
        page.locator("#view").get_by_text(view, exact=True).click()
        if view == "Review":
            expect(page.locator("#review .large")).to_be_visible()
        assert page.evaluate(_UNREADABLE) == [], view
    for open_dialog, close in (("#help-open", "#help-close"), ("#propose", "#close"), ("#relabel", "#relabel-cancel")):
        page.locator(open_dialog).click()
        expect(page.locator(close)).to_be_visible()
        assert page.evaluate(_UNREADABLE) == [], open_dialog
        page.locator(close).click()
    page.keyboard.press("d")
    expect(page.locator("#decisions .decision")).to_have_count(1)
    assert page.evaluate(_UNREADABLE) == []
