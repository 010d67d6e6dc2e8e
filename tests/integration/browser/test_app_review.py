"""Review in a real browser: by keys alone, with undo of any decision."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.artifacts.overrides import read_overrides
from tests.fixtures.browser_app import Served, write_app
from tests.fixtures.view import decide
from viz.review import MAX_LISTED

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

N_TO_REVIEW = 72

_RING_AT = """([x, y]) => {
    const ring = document.querySelector("#map .js-plotly-plot")._fullData[1];
    return Math.abs(ring.x[0] - x) < 1e-5 && Math.abs(ring.y[0] - y) < 1e-5;
}"""

pytestmark = pytest.mark.slow


@pytest.fixture
def served(served: Served) -> Served:
    write_app(served.folder, n_dropped=N_TO_REVIEW)
    return served


def _open(page: Page, address: str, n_decided: int = 0) -> None:
    page.goto(address)
    expect(page.locator("#review .progress")).to_have_text(f"{n_decided} of {N_TO_REVIEW} reviewed")


def _shown(page: Page, row: int) -> None:
    expect(page.locator("#review .large")).to_have_attribute("data-row", str(row))


def test_images_are_reviewed_by_keys_alone(served: Served, page: Page) -> None:
    points = served.points
    rows = np.argsort(-points.scores, kind="stable")[:N_TO_REVIEW].tolist()
    _open(page, f"{served.url}?view=review")
    # What changes the map and the gallery does nothing here.
    for control in ("#width", "#size", "#csv"):
        expect(page.locator(control)).not_to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("#help")).not_to_be_visible()
    _shown(page, rows[0])
    # Skip the second image, go back, and leave it for later.
    page.keyboard.press("ArrowRight")
    _shown(page, rows[1])
    page.keyboard.press("ArrowLeft")
    _shown(page, rows[0])
    keys = ["k", "d", "d", "r"] * (N_TO_REVIEW // 4)
    for row, key in zip(rows, keys, strict=True):
        if key == "r":
            # The suggested label of the shown image.
            _shown(page, row)
        page.keyboard.press(key)
        if key == "r":
            expect(page.locator("#new-label")).to_be_focused()
            page.keyboard.press("Enter")
    expect(page.locator("#review .progress")).to_have_text(f"{N_TO_REVIEW} of {N_TO_REVIEW} reviewed")
    decided = [(line.path, line.decision, line.label) for line in read_overrides(served.data.overrides)]
    names = {"k": "keep", "d": "drop", "r": "relabel"}
    assert decided == [
        (points.paths[row].as_py(), names[key], points.class_names[points.predicted[row]] if key == "r" else "")
        for row, key in zip(rows, keys, strict=True)
    ]
    page.keyboard.press("u")
    expect(page.locator("#review .progress")).to_have_text(f"{N_TO_REVIEW - 1} of {N_TO_REVIEW} reviewed")
    _shown(page, rows[-1])
    # Back to an image with a decision; N finds the one without.
    page.keyboard.press("ArrowLeft")
    _shown(page, rows[-2])
    page.keyboard.press("n")
    _shown(page, rows[-1])
    page.keyboard.press("k")
    expect(page.locator("#review .progress")).to_have_text(f"{N_TO_REVIEW} of {N_TO_REVIEW} reviewed")


def test_any_decision_is_undone_and_n_finds_its_image(served: Served, page: Page) -> None:
    points = served.points
    rows = np.argsort(-points.scores, kind="stable")[:N_TO_REVIEW].tolist()
    _open(page, f"{served.url}?view=review")
    for key in "kdk":
        page.keyboard.press(key)
    expect(page.locator("#decisions .decision")).to_have_count(3)
    _shown(page, rows[3])
    page.locator(f"#decisions .undo-one[data-row='{rows[1]}']").click()
    expect(page.locator("#saved")).to_have_text(f"Undone: {points.paths[rows[1]].as_py()}.")
    expect(page.locator("#decisions .decision")).to_have_count(2)
    expect(page.locator("#review .progress")).to_have_text(f"2 of {N_TO_REVIEW} reviewed")
    # Faster than the server answers.
    for _ in range(15):
        page.keyboard.press("n")
    _shown(page, rows[18])
    for _ in range(N_TO_REVIEW - 18):
        page.keyboard.press("n")
    _shown(page, rows[1])
    # A reload goes on where the review was.
    page.keyboard.press("d")
    _open(page, f"{served.url}?view=review", 3)
    _shown(page, rows[3])
    _undo_by_the_keyboard(page)
    _ask_for_the_next_of_a_made_up_queue(page)


def test_the_oldest_of_many_decisions_is_undone(served: Served, page: Page) -> None:
    points = served.points
    decide(served.data, points, dict.fromkeys(range(MAX_LISTED + 5), "keep"))
    page.goto(f"{served.url}?view=review")
    decisions = page.locator("#decisions .decision")
    expect(decisions).to_have_count(MAX_LISTED)
    page.locator("#decisions .turn").nth(1).focus()
    page.keyboard.press("Enter")
    expect(decisions).to_have_count(5)
    expect(page.locator("#decisions .buttons")).to_contain_text("page 2 of 2")
    expect(page.locator("#decisions .turn").first).to_be_focused()
    row = int(decisions.last.locator(".undo-one").get_attribute("data-row") or "")
    decisions.last.locator(".undo-one").click()
    expect(page.locator("#saved")).to_have_text(f"Undone: {points.paths[row].as_py()}.")
    expect(decisions).to_have_count(4)
    expect(page.locator("#decisions h2")).to_have_text(f"Decisions: {MAX_LISTED + 4}")
    assert points.paths[row].as_py() not in [path for path, _, _ in served.overrides()]
    page.locator("#decisions .turn").first.click()
    expect(decisions).to_have_count(MAX_LISTED)


def _undo_by_the_keyboard(page: Page) -> None:
    """Check that the keyboard stays in the list of decisions."""
    expect(page.locator("#decisions .decision")).to_have_count(3)
    page.locator("#decisions .undo-one").nth(1).focus()
    for left in (2, 1):
        page.keyboard.press("Enter")
        expect(page.locator("#decisions .decision")).to_have_count(left)
        expect(page.locator("#decisions .undo-one").nth(left - 1)).to_be_focused()


def _ask_for_the_next_of_a_made_up_queue(page: Page) -> None:
    """Check that the next image is right before the server answers."""
    found = page.evaluate("""() => {
        const review = window.batchsieveReview;
        const queue = { row: 11, asked: 11, window: [9, 10, 11, 12, 13], undecided: [11, 13], images: "" };
        const next = (complete) => {
            review.update({ ...queue, complete }, 11);
            return [9, 10, 11, 12, 13].map(review.next);
        };
        const all = [next(false), next(true)];
        queue.undecided = [11, 20];
        return [...all, next(false)];
    }""")
    assert found == [[11, 11, 13, 13, None], [11, 11, 13, 13, 11], [11, 11, 20, 20, 20]]


def test_a_key_asks_for_the_review_alone_and_the_rest_follows(served: Served, page: Page) -> None:
    rows = np.argsort(-served.points.scores, kind="stable")[:N_TO_REVIEW].tolist()
    _open(page, f"{served.url}?view=review")
    _shown(page, rows[0])
    page.wait_for_load_state("networkidle")
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/_dash-update-component" in request.url:
            output = json.loads(request.post_data or "")["output"]
            # The clock asks for these.
            if not output.startswith(("..banner.", "..run-status.")):
                asked.append(output)
        elif "/thumbnail/" not in request.url:
            asked.append(request.url)

    page.on("request", note)
    for row in rows[1:6]:
        page.keyboard.press("n")
        _shown(page, row)
    page.wait_for_load_state("networkidle")
    review = "..review-parts.data...decision-parts.data...queue.data.."
    assert asked == [review] * 5
    asked.clear()
    page.keyboard.press("k")
    expect(page.locator("#review .progress")).to_have_text(f"1 of {N_TO_REVIEW} reviewed")
    expect(page.locator("#decisions .decision")).to_have_count(1)
    page.wait_for_load_state("networkidle")
    # The table of classes and its curve are next to the review.
    assert set(asked) == {f"{served.url}decide", review, "..curve.figure...table.children.."}
    _leave_the_review(page, served, rows[5:])


def _leave_the_review(page: Page, served: Served, rows: list[int]) -> None:
    """Check that maps, card and gallery show the kept image `rows[0]` and the chosen one, and go back to the review."""
    points = served.points
    page.keyboard.press("n")
    _shown(page, rows[2])
    page.locator("#view").get_by_text("Explore", exact=True).click()
    expect(page.locator("#legend")).to_contain_text("kept by hand 1")
    expect(page.locator("#card")).to_contain_text(points.paths[rows[2]].as_py())
    expect(page.locator(f"#grid .tile[data-row='{rows[2]}']")).to_be_visible()
    expect(page.locator(f"#grid .tile[data-row='{rows[0]}']")).to_have_count(0)
    page.wait_for_function(_RING_AT, arg=points.coordinates[rows[2]].tolist())
    # The way back.
    page.locator(f"#grid .tile[data-row='{rows[4]}']").click()
    page.wait_for_function(_RING_AT, arg=points.coordinates[rows[4]].tolist())
    page.locator("#view").get_by_text("Review", exact=True).click()
    _shown(page, rows[4])
    expect(page.locator("#decisions .decision")).to_have_count(1)
