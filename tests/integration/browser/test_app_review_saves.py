"""Review goes on without waiting for the server, and goes back to what the server has saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fixtures.browser_app import N_DROPPED, Served, intercept
from viz.decisions import Decisions, Image

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

pytestmark = pytest.mark.slow


def _open(page: Page, served: Served) -> list[int]:
    """Open the view Review; return the rows in its order."""
    rows: list[int] = np.argsort(-served.points.scores, kind="stable")[:N_DROPPED].tolist()
    page.goto(f"{served.url}?view=review")
    _progress(page, 0)
    _shown(page, rows[0])
    return rows


def _shown(page: Page, row: int) -> None:
    expect(page.locator("#review .large")).to_have_attribute("data-row", str(row))


def _progress(page: Page, n_decided: int) -> None:
    expect(page.locator("#review .progress")).to_have_text(f"{n_decided} of {N_DROPPED} reviewed")


def test_keys_move_on_and_go_back_to_what_others_cleared(served: Served, page: Page) -> None:
    points, rows = served.points, _open(page, served)
    held: list[Route] = []
    intercept(page, "**/decide", lambda route: held.append(route), times=1)
    for key, row in zip("kdk", rows[1:], strict=False):
        page.keyboard.press(key)
        _shown(page, row)
    # The server has not answered yet.
    assert served.overrides() == []
    held[0].continue_()
    _progress(page, 3)
    _shown(page, rows[3])
    assert [decision for _, decision, _ in served.overrides()] == ["keep", "drop", "keep"]
    image = Image(points.paths[rows[0]].as_py(), points.sha256[rows[0]].as_py())
    Decisions(served.data.overrides).decide([image], None, "")
    _progress(page, 2)
    for row in [*rows[4:], rows[0]]:
        page.keyboard.press("n")
        _shown(page, row)


def test_what_is_not_saved_returns_with_the_reason(served: Served, page: Page) -> None:
    rows = _open(page, served)
    _refuse_a_note(page, served, rows)
    _answer_with_another_decision(page, rows[1:])


def _refuse_a_note(page: Page, served: Served, rows: list[int]) -> None:
    page.locator("#note").fill("a\x07b")
    page.locator("#note").press("Enter")
    page.keyboard.press("k")
    failed = page.locator("#saved.failed")
    expect(failed).to_contain_text("NOT SAVED: note: ")
    expect(failed).to_contain_text("has a line break or a control character")
    _shown(page, rows[0])
    _progress(page, 0)
    assert served.overrides() == []
    page.locator("#note").fill("")
    page.locator("#note").press("Enter")
    held: list[Route] = []
    intercept(page, "**/decide", lambda route: held.append(route), times=1)
    with page.expect_request("**/decide"):
        page.keyboard.press("k")
    _shown(page, rows[1])
    # The line stays until an answer that succeeded.
    expect(failed).to_contain_text("NOT SAVED: note: ")
    held[0].continue_()
    expect(page.locator("#saved")).to_have_text("Saved as keep: 1 image.")
    expect(failed).to_have_count(0)
    _progress(page, 1)


def _answer_with_another_decision(page: Page, rows: list[int]) -> None:
    def differ(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "decision": "drop"})

    intercept(page, "**/decide", differ)
    page.keyboard.press("k")
    expect(page.locator("#saved.failed")).to_have_text(f"NOT SAVED: overrides.csv has drop for image #{rows[0]}")
    _shown(page, rows[0])
    page.unroute("**/decide")
    page.keyboard.press("k")
    expect(page.locator("#saved")).to_have_text("Saved as keep: 1 image.")
    _shown(page, rows[1])


def test_the_browser_asks_before_decisions_are_lost(served: Served, page: Page) -> None:
    _open(page, served)
    held: list[Route] = []
    intercept(page, "**/decide", lambda route: held.append(route), times=1)
    page.keyboard.press("k")
    page.keyboard.press("d")
    with page.expect_event("dialog") as asked:
        page.evaluate("setTimeout(() => location.reload())")
    assert asked.value.type == "beforeunload"
    asked.value.dismiss()
    held[0].continue_()
    _progress(page, 2)
    assert [decision for _, decision, _ in served.overrides()] == ["keep", "drop"]
    # No dialog: all is saved.
    page.reload()
    _progress(page, 2)
