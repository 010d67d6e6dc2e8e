"""The charts of the view Training in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pipeline.config.params import load_params
from pipeline.figures.study_curves import POINTS_TITLE, TOP1_TITLE
from tests.fixtures.browser_app import Served
from tests.fixtures.chart_texts import axis_titles, cut_texts
from tests.fixtures.report import write_study

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

pytestmark = pytest.mark.slow

_TITLES = {
    "study-accuracy": ["batch size (log scale)", TOP1_TITLE],
    "study-differences": ["batch size (log scale)", POINTS_TITLE],
    "study-loss": ["optimizer steps", "training loss (nats, log scale)"],
}


@pytest.fixture
def trained(served: Served) -> Iterator[Served]:
    """The app with the results of one study, which no other test has."""
    write_study(served.data, load_params(served.params), "digits")
    yield served
    shutil.rmtree(served.data.root / "train")


@pytest.mark.parametrize("width", [1400, 390])
def test_no_text_of_the_charts_is_cut(trained: Served, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{trained.url}?view=training")
    for chart, titles in _TITLES.items():
        place = page.locator(f"#{chart}")
        expect(place.locator(".xtitle")).to_be_visible()
        assert axis_titles(place) == titles
        assert cut_texts(place) == []
