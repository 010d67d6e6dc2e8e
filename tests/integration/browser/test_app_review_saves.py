"""Review goes on without waiting for the server, and goes back to what the server has saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fixtures.browser_app import Served, serve_points
from viz.decisions import Decisions, Image

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

N_TO_REVIEW = 12

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve_points(tmp_path, n=120, n_dropped=N_TO_REVIEW) as running:
        yield running


def _open(page: Page, served: Served) -> list[int]:
    """Open the view Review; return the rows in its order."""
    rows: list[int] = np.argsort(-served.points.scores, kind="stable")[:N_TO_REVIEW].tolist()
    page.goto(f"{served.url}?view=review")
    _progress(page, 0)
    _shown(page, rows[0])
    return rows


def _shown(page: Page, row: int) -> None:
    expect(page.locator("#review .large")).to_have_attribute("data-row", str(row))


def _progress(page: Page, n_decided: int) -> None:
    expect(page.locator("#review .progress")).to_have_text(f"{n_decided} of {N_TO_REVIEW} reviewed")


def test_keys_move_on_before_the_server_answers(served: Served, page: Page) -> None:
    held: list[Route] = []
    page.route("**/decide", lambda route: held.append(route), times=1)
    rows = _open(page, served)
    for key, row in zip("kdk", rows[1:], strict=False):
        page.keyboard.press(key)
        _shown(page, row)
    assert served.overrides() == []
    held[0].continue_()
    _progress(page, 3)
    _shown(page, rows[3])
    assert [decision for _, decision, _ in served.overrides()] == ["keep", "drop", "keep"]


def test_a_refused_decision_returns_its_image_and_the_reason(served: Served, page: Page) -> None:
    rows = _open(page, served)
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
    page.route("**/decide", lambda route: held.append(route), times=1)
    with page.expect_request("**/decide"):
        page.keyboard.press("k")
    _shown(page, rows[1])
    # The line stays until an answer that succeeded.
    expect(failed).to_contain_text("NOT SAVED: note: ")
    held[0].continue_()
    expect(page.locator("#saved")).to_have_text("Saved as keep: 1 image.")
    expect(failed).to_have_count(0)
    _progress(page, 1)


def test_an_answer_with_another_decision_is_not_saved(served: Served, page: Page) -> None:
    rows = _open(page, served)

    def differ(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "decision": "drop"})

    page.route("**/decide", differ)
    page.keyboard.press("k")
    expect(page.locator("#saved.failed")).to_have_text(f"NOT SAVED: overrides.csv has drop for image #{rows[0]}")
    _shown(page, rows[0])
    page.unroute("**/decide")
    page.keyboard.press("k")
    expect(page.locator("#saved")).to_have_text("Saved as keep: 1 image.")
    _shown(page, rows[1])


def test_an_image_that_others_cleared_is_next_again(served: Served, page: Page) -> None:
    rows = _open(page, served)
    points = served.points
    page.keyboard.press("k")
    _progress(page, 1)
    _shown(page, rows[1])
    image = Image(points.paths[rows[0]].as_py(), points.sha256[rows[0]].as_py())
    Decisions(served.data.overrides).decide([image], None, "")
    _progress(page, 0)
    for row in [*rows[2:], rows[0]]:
        page.keyboard.press("n")
        _shown(page, row)
