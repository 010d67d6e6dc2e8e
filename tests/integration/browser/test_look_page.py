"""The page of `look` in a real browser, from a file, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from batchsieve import Look, look
from tests.fixtures.looking import colored

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

# Of the background of a card, and of its text: 0 to 255.
_LUMINANCES = """() => {
    const luminance = (color) => {
        const [red, green, blue] = color.match(/[0-9.]+/g).map(Number);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const style = getComputedStyle(document.querySelector(".look-card"));
    return [luminance(style.backgroundColor), luminance(style.color)];
}"""

_SCRIPT = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def result() -> Look:
    images, labels = colored()
    images[1], images[22] = images[0], images[7]
    labels[[4, 20, 21]] = "blue", "red", "red"
    labels[labels == "red"] = _SCRIPT
    return look(images, labels, features=images.reshape(len(images), -1))


@pytest.fixture(scope="module")
def written(result: Look, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("look") / "look.html")


@pytest.fixture
def opened(page: Page, written: Path) -> Page:
    page.context.set_offline(True)
    page.goto(written.as_uri())
    page.wait_for_selector("body[data-ready]")
    return page


@pytest.mark.slow
def test_suspects_are_on_the_first_screen_and_chosen_by_label(opened: Page, result: Look) -> None:
    cards = opened.locator(".look-card")
    rows = [int(card.get_attribute("data-row") or -1) for card in cards.all()]
    assert rows == result.suspects().tolist()
    first = cards.first.bounding_box()
    assert first is not None
    assert opened.viewport_size is not None
    assert first["y"] + first["height"] < opened.viewport_size["height"]
    assert opened.locator("#map canvas").count() >= 1
    opened.locator("#pair").select_option(f"{_SCRIPT} → blue")
    issues = result.issues
    chosen = [row for row in rows if (issues.label[row], issues.suggested_label[row]) == (_SCRIPT, "blue")]
    assert 0 < len(chosen) < len(rows)
    expect(opened.locator(".look-card:visible")).to_have_count(len(chosen))
    # Pictures of the suspect and of its neighbors are in the file.
    assert cards.first.locator("img").evaluate_all("images => images.every((image) => image.complete)")


@pytest.mark.slow
def test_a_point_shows_its_picture_and_opens_its_card(opened: Page, result: Look) -> None:
    row = int(result.suspects()[0])
    hovered = "{points: [{curveNumber: 0, customdata: row}], event: {clientX: 9, clientY: 9}}"
    opened.evaluate(f"row => map.emit('plotly_hover', {hovered})", row)
    tooltip = opened.locator("#tooltip")
    expect(tooltip).to_be_visible()
    expect(tooltip).to_contain_text(str(result.issues.reason[row]))
    opened.locator("#pair").select_option(index=1)
    opened.evaluate("row => map.emit('plotly_click', {points: [{curveNumber: 0, customdata: row}]})", row)
    expect(opened.locator(f"#image-{row}")).to_be_focused()
    # While a card has the focus, its point alone has a ring.
    assert opened.evaluate("map.data[1].x.length") == 1
    opened.locator("#pair").focus()
    opened.wait_for_function("n => map.data[1].x.length === n", arg=len(result.suspects()))


@pytest.mark.slow
def test_near_duplicates_with_different_labels_are_open(opened: Page) -> None:
    different, same = opened.locator(".look-duplicates").all()
    expect(different).to_contain_text("1 near duplicate with different labels")
    expect(different.locator(".look-pair img").first).to_be_visible()
    expect(same).to_contain_text("1 near duplicate with the same label")
    assert same.locator("img").first.is_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Page, scheme: Literal["light", "dark"]) -> None:
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": 420, "height": 900})
    opened.wait_for_function("document.documentElement.scrollWidth <= 420")
    page, text = opened.evaluate(_LUMINANCES)
    assert (page < 60 and text > 180) if scheme == "dark" else (page > 200 and text < 60)
    assert opened.locator(".look-card").first.is_visible()
