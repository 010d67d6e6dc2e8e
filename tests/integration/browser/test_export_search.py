"""Class names, search and number boxes of the exported page, in a real browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.artifacts.overrides import Override
from pipeline.figures.palette import CHOSEN
from pipeline.paths import DataPaths
from tests.fixtures.points import CLASS_NAMES, NETWORK, write_points
from viz.data import Points, Source
from viz.export.page import make_content, write_page
from viz.filter_settings import FilterSettings, preview_filter
from viz.search import matching

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

_N, _N_DROPPED = 120, 12


def _write_points(folder: Path) -> tuple[Source, Points]:
    data, labels = DataPaths(root=folder / "data"), np.arange(_N) % len(CLASS_NAMES)
    write_points(data, np.zeros((_N, 16, 16, 3), dtype=np.uint8), labels=labels, n_dropped=_N_DROPPED)
    source = Source(data)
    return source, source.points(NETWORK)


def _open(page: Page, folder: Path, source: Source, overrides: Mapping[int, Override]) -> None:
    """Export the page, and open it."""
    points = source.points(NETWORK)
    preview = preview_filter(source, points, FilterSettings())
    write_page(folder / "map.html", make_content(points, preview, overrides))
    page.goto((folder / "map.html").as_uri())
    page.wait_for_selector("body[data-ready]")


@pytest.mark.slow
def test_names_search_size_and_bad_numbers(page: Page, tmp_path: Path) -> None:
    source, points = _write_points(tmp_path)
    _open(page, tmp_path, source, {})
    _hide_the_class_names(page)
    _search_as_python(page, source, points)
    _enter_bad_numbers(page)
    _enlarge_the_images(page)
    _choose_an_image(page)


def _hide_the_class_names(page: Page) -> None:
    names = page.locator("#map .annotation-text")
    expect(names).to_have_count(len(CLASS_NAMES))
    assert sorted(names.all_text_contents()) == sorted(CLASS_NAMES)
    page.locator("#names").uncheck()
    expect(names).to_have_count(0)


def _search_as_python(page: Page, source: Source, points: Points) -> None:
    first = points.class_names[0].split()[0]
    path = points.paths[3].as_py()
    for query in (
        "row 7",
        "ROW 7",
        f'class:"{first}"',
        f"path:{path}",
        "reason:row 1",
        f"class:{first} row 1",
        "none such",
    ):
        n = int(matching(source, points, query).sum())
        page.fill("#search", query)
        expect(page.locator("#count")).to_contain_text(f"{n} shown")
        plotted = "document.getElementById('map').data.reduce((sum, trace) => sum + trace.x.length, 0)"
        page.wait_for_function(f"{plotted} === {n}")
    page.fill("#search", "")
    expect(page.locator("#count")).to_contain_text(f"{_N} shown")


def _enter_bad_numbers(page: Page) -> None:
    for text in ("-3", "400", "e"):
        page.locator("#max-score").press("Control+a")
        page.locator("#max-score").press_sequentially(text)
        page.press("#max-score", "Tab")
        expect(page.locator("#number-problem")).to_have_text(
            "highest score: not a number from 0 to 1. It sets no limit."
        )
        expect(page.locator("#count")).to_contain_text(f"{_N} shown")
    page.fill("#max-score", "0.5")
    page.press("#max-score", "Tab")
    expect(page.locator("#number-problem")).to_be_empty()
    expect(page.locator("#count")).to_contain_text(f"{_N - _N_DROPPED} shown")


def _enlarge_the_images(page: Page) -> None:
    page.locator("#size").fill("160")
    assert page.locator("#grid .tile").first.evaluate("tile => tile.offsetWidth") == 160


def _choose_an_image(page: Page) -> None:
    """Check that its ring has the color of the app's."""
    page.locator("#grid .tile").first.click()
    page.wait_for_function(f"document.getElementById('map').data.at(-1).marker.color === '{CHOSEN}'")


@pytest.mark.slow
def test_a_label_given_by_hand_replaces_the_suggested_one(page: Page, tmp_path: Path) -> None:
    source, points = _write_points(tmp_path)
    row = int(np.argmax(points.scores * (points.predicted != points.labels)))
    own = next(name for at, name in enumerate(CLASS_NAMES) if at not in (points.labels[row], points.predicted[row]))
    path, sha256 = points.paths[row].as_py(), points.sha256[row].as_py()
    override = Override(path=path, sha256=sha256, decision="relabel", label=own, note="", timestamp="", line=2)
    _open(page, tmp_path, source, {row: override})
    tile = page.locator(".tile.hand")
    expect(tile).to_have_count(1)
    expect(tile).to_contain_text(f"→ {own}")
    expect(tile).not_to_contain_text(f"→ {points.class_names[points.predicted[row]]}")
