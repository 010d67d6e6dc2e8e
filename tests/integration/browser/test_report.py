"""The report in a real browser, from a file, with the network cut off; on the screen and on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from ruamel.yaml import YAML

from pipeline.figures.curves import LOSS
from pipeline.figures.study_curves import POINTS_TITLE, TOP1_TITLE
from pipeline.paths import DataPaths
from pipeline.stages import report as report_stage
from pipeline.stages.harness import run_stage
from tests.fixtures.chart_texts import axis_titles, cut_texts
from tests.fixtures.report import params_tree, params_with, write_artifacts

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

_FITS = """async (chart, width) => {
    while (chart.querySelector("svg.main-svg").getBoundingClientRect().right > width) {
        await new Promise(requestAnimationFrame);
    }
}"""
"""Wait until a chart is no wider than the screen."""

_A4_WIDTH = 794 - 2 * 38
"""CSS pixels between margins of a centimetre."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, without the files of figures."""
    folder = tmp_path_factory.mktemp("report")
    data = DataPaths(root=folder / "data")
    write_artifacts(data, params_with())
    YAML().dump(params_tree(), folder / "params.yaml")
    paths = [f"--params={folder / 'params.yaml'}", f"--data={data.root}", f"--work={folder}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_stage, "_write_figures", lambda *_: [])
        run_stage("report", report_stage.report, argv=paths)
    return data.report_page


@pytest.fixture
def opened(page: Page, written: Path) -> Iterator[Page]:
    """The page, ready; it has asked for nothing but itself, and nothing in it has failed."""
    wrong: list[str] = []

    def heed(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            wrong.append(request.url)

    page.on("request", heed)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.context.set_offline(True)
    page.goto(written.as_uri())
    yield page
    assert not wrong


def test_the_verdict_is_on_the_first_screen_and_charts_are_plotted(opened: Page) -> None:
    verdict = opened.locator("#verdict").bounding_box()
    assert verdict is not None
    assert opened.viewport_size is not None
    assert verdict["y"] < opened.viewport_size["height"] / 2
    charts = opened.locator(".js-plotly-plot")
    assert charts.count() >= 5
    for chart in charts.all():
        chart.scroll_into_view_if_needed()
        assert chart.locator("svg.main-svg").first.is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 420])
def test_no_text_of_a_chart_is_cut(opened: Page, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    charts = opened.locator(".js-plotly-plot").all()
    for chart in charts:
        # Charts follow the width a moment later.
        chart.evaluate(_FITS, width)
        assert cut_texts(chart) == []
    titles = {title for chart in charts for title in axis_titles(chart)}
    assert titles >= {"batch size (log scale)", TOP1_TITLE, POINTS_TITLE, LOSS.title}


_LUMINANCE = """() => {
    const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}"""


_OUTCOME_COLORS = {
    "helps": "rgb(0, 102, 75)", "hurts": "rgb(166, 60, 0)", "equivalent": "rgb(82, 72, 156)",
    "undecided": "rgb(92, 100, 112)",
}  # fmt: skip


@pytest.mark.slow
def test_the_first_screen_has_verdict_number_color_and_chart(opened: Page) -> None:
    opened.set_viewport_size({"width": 1280, "height": 800})
    card = opened.locator(".card").first
    for part in (".outcome", ".says", ".effect", ".basis", ".chart svg.main-svg"):
        box = card.locator(part).first.bounding_box()
        assert box is not None, part
        assert box["y"] >= 0, part
        assert box["y"] + box["height"] <= 800, part
    assert re.match(r"[+−][0-9]+\.[0-9]{2} percentage points \(", card.locator(".basis").inner_text())
    outcome = card.locator(".outcome")
    expected = _OUTCOME_COLORS[outcome.inner_text().lower()]
    assert outcome.evaluate("element => getComputedStyle(element).color") == expected
    assert card.locator(".mean").evaluate("element => getComputedStyle(element).backgroundColor") == expected
    assert card.locator(".chart .scatterlayer .trace").count() >= 2
    assert len(card.locator(".says").inner_text().split()) <= 20
    assert "p =" not in card.inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Page, scheme: Literal["light", "dark"]) -> None:
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": 420, "height": 900})
    opened.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=420)
    assert (opened.evaluate(_LUMINANCE) < 60) == (scheme == "dark")
    assert opened.locator(".card .outcome").first.is_visible()


@pytest.mark.slow
def test_an_arm_can_be_hidden(opened: Page) -> None:
    chart = opened.locator(".js-plotly-plot").first
    lines = chart.locator(".scatterlayer .trace")
    shown = lines.count()
    assert shown >= 2
    chart.locator(".legendtoggle").first.click()
    opened.wait_for_function("([chart, n]) => chart.querySelectorAll('.scatterlayer .trace').length < n",
                             arg=[chart.element_handle(), shown])  # fmt: skip


@pytest.mark.slow
def test_on_paper_nothing_is_cut_off_and_nothing_is_there_to_click(opened: Page) -> None:
    opened.set_viewport_size({"width": _A4_WIDTH, "height": 1000})
    opened.emulate_media(media="print")
    # Charts follow the width a moment later.
    opened.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=_A4_WIDTH)
    for hidden in ("nav", ".modebar-container"):
        assert not any(one.is_visible() for one in opened.locator(hidden).all())
    assert opened.pdf(format="A4").startswith(b"%PDF-")
