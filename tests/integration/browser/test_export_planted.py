"""The exported page of images with planted labels, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.paths import DataPaths
from tests.fixtures.planted import say_planted
from tests.fixtures.points import NETWORK, write_points
from viz.data import Source
from viz.export.page import make_content, write_page
from viz.filter_settings import FilterSettings, preview_filter
from viz.state import selection_csv

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

_N = 60


@pytest.mark.slow
def test_it_says_how_many_and_shows_the_true_labels(page: Page, tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path / "data")
    images = np.zeros((_N, 16, 16, 3), dtype=np.uint8)
    write_points(data, images, labels=np.arange(_N) % 4, class_names=("ash", "birch", "cedar", "dogwood"))
    # The most suspect image has the label dogwood, the prediction ash, and the true label cedar.
    say_planted(data, {_N - 1: 2, 0: 1})
    source = Source(data)
    points = source.points(NETWORK)
    preview = preview_filter(source, points, FilterSettings())
    write_page(tmp_path / "map.html", make_content(points, preview, {}))
    page.goto((tmp_path / "map.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#notes")).to_contain_text("Labels changed on purpose: 2.")
    expect(page.locator("#grid .tile").first).to_have_text("dogwood→ ashtrue: cedar")
    page.locator("#grid .tile").first.click()
    expect(page.locator("#card")).to_contain_text("label changed on purpose, true label: cedar")
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "selection.csv")
    ordered = np.argsort(-preview.scores, kind="stable").tolist()
    assert (tmp_path / "selection.csv").read_bytes().decode() == selection_csv(points, preview, ordered)
