"""The first screen of a report on several studies, and the images under the pointer, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from ruamel.yaml import YAML

from pipeline.config.params import check_params
from pipeline.paths import DataPaths
from pipeline.reporting.embedding_hover import GRID
from pipeline.stages import report as report_stage
from pipeline.stages.harness import run_stage
from tests.fixtures.planted import say_planted
from tests.fixtures.report import (
    CLASS_NAMES,
    N_TRAIN,
    default_outcome,
    params_tree,
    params_with,
    write_artifacts,
    write_study,
)

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Locator, Page

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

_PARTS = (".outcome", ".says", ".effect", ".effect .interval", ".basis", ".dropped", ".chart svg.main-svg")
"""What the first screen has of each of up to four studies."""

_PARTS_OF_ROW = (".name", ".outcome", ".line", ".effect", ".effect .mean", ".basis", ".says")
"""What the first screen has of each of more studies."""

_WITHOUT_RESULT = 14
"""Number of the study whose runs were skipped."""


def _outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a lower accuracy of the filtered arm for each further study; one study has no results."""
    number = int(row["study"].removeprefix("study_"))
    if number == _WITHOUT_RESULT:
        return {"status": "skipped", "reason": "too large", "steps": None}
    found = default_outcome(row)
    return {**found, "top1": found["top1"] - 0.006 * number} if row["arm"] == "filtered" else found


@pytest.fixture(scope="module")
def write_report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Write the page of the report on a number of studies with planted labels once, without the files of figures."""
    folder = tmp_path_factory.mktemp("studies")
    data = DataPaths(root=folder / "data")
    write_artifacts(data, params_with())
    say_planted(data, {3: 0, 75: 1, 78: 1, 79: 2})

    @cache
    def write(n: int) -> Path:
        tree = params_tree()
        study = tree["studies"].pop("digits")
        tree["studies"] = {f"study_{number}": dict(study) for number in range(n)}
        params = check_params(tree, source="params.yaml")
        for name in params.studies:
            write_study(data, params, name, _outcome)
        YAML().dump(tree, folder / "params.yaml")
        paths = [f"--params={folder / 'params.yaml'}", f"--data={data.root}", f"--work={folder}"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_stage, "_write_figures", lambda *_: [])
            run_stage("report", report_stage.report, argv=paths)
        return data.report_page.rename(folder / f"{n}.html")

    return write


def _box(part: Locator) -> FloatRect:
    found = part.bounding_box()
    assert found is not None, part
    return found


def _overlap(one: FloatRect, other: FloatRect) -> bool:
    return (
        one["x"] < other["x"] + other["width"] - 1
        and other["x"] < one["x"] + one["width"] - 1
        and one["y"] < other["y"] + other["height"] - 1
        and other["y"] < one["y"] + one["height"] - 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_first_screen_holds_every_study(write_report: Callable[[int], Path], page: Page, n: int) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(write_report(n).as_uri())
    cards = page.locator(".card")
    assert cards.count() == n
    boxes = [_box(card) for card in cards.all()]
    assert not any(_overlap(one, other) for i, one in enumerate(boxes) for other in boxes[:i])
    for card, around in zip(cards.all(), boxes, strict=True):
        for part in _PARTS:
            box = _box(card.locator(part).first)
            assert box["height"] > 0 or part == ".effect .interval", part
            assert 0 <= around["y"] <= box["y"] + 0.5, part
            assert box["y"] + box["height"] <= min(900, around["y"] + around["height"] + 0.5), part
            assert around["x"] <= box["x"], part
            assert box["x"] + box["width"] <= min(1400, around["x"] + around["width"] + 0.5), part
        inner = [_box(card.locator(part)) for part in (".words", ".numbers", ".chart")]
        assert not any(_overlap(one, other) for i, one in enumerate(inner) for other in inner[:i])
        assert len(card.locator(".says").inner_text().split()) <= 20
        assert "3 of the 4 wrong labels are among them" in card.locator(".dropped").inner_text()
        assert "p =" not in card.inner_text()
        assert card.locator(".chart .scatterlayer .trace").count() >= 2
    # The arms are named once for all charts, with their colors.
    assert page.locator(".marks span").all_inner_texts() == ["■ full", "● filtered", "◆ random"]
    assert _box(page.locator(".marks"))["y"] < 900


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 15])
def test_many_studies_are_rows_of_the_first_screen(write_report: Callable[[int], Path], page: Page, n: int) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(write_report(n).as_uri())
    rows = page.locator(".rows .card").all()
    boxes = [_box(row) for row in rows]
    assert len(boxes) == n
    assert max(box["y"] + box["height"] for box in boxes) <= 900
    assert not any(_overlap(one, other) for i, one in enumerate(boxes) for other in boxes[:i])
    for number, (row, around) in enumerate(zip(rows, boxes, strict=True)):
        parts = (".name", ".outcome", ".says") if number == _WITHOUT_RESULT else _PARTS_OF_ROW
        inner = [_box(row.locator(part)) for part in parts if " " not in part]
        assert not any(_overlap(one, other) for i, one in enumerate(inner) for other in inner[:i])
        for box in (_box(row.locator(part)) for part in parts):
            assert around["x"] <= box["x"] <= box["x"] + box["width"] <= around["x"] + around["width"] + 0.5
            assert around["y"] - 0.5 <= box["y"] <= box["y"] + box["height"] <= around["y"] + around["height"] + 0.5
    _check_one_axis(page, min(n, _WITHOUT_RESULT))
    # Of filtered and random, at three batch sizes.
    line = page.locator(".rows .line").first
    assert (line.locator("polyline").count(), line.locator("circle").count()) == (2, 6)
    assert page.locator(".marks span").all_inner_texts() == ["● filtered", "● random"]
    assert page.locator("#verdict .js-plotly-plot").count() == 0
    assert "3 of the 4 wrong labels are among them" in page.locator("#verdict > .dropped").first.inner_text()
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=420)


def _check_one_axis(page: Page, n: int) -> None:
    """Check that the zeros of the effects are below each other, and the effects, which descend, left of the last."""
    zeros, means = (page.locator(f".rows .effect .{part}").all() for part in ("zero", "mean"))
    assert len({round(_box(zero)["x"], 1) for zero in zeros}) == 1
    places = [_box(mean)["x"] for mean in means]
    assert len(places) == n
    assert places == sorted(places, reverse=True)
    assert places[0] - places[-1] > 10


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_several_studies_fit_a_phone(
    write_report: Callable[[int], Path], page: Page, scheme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto(write_report(3).as_uri())
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=420)
    # Lines have the same colors in both; text and grid follow the scheme.
    line = page.locator(".card .scatterlayer .js-line").first
    assert line.evaluate("line => getComputedStyle(line).stroke") == "rgb(0, 158, 115)"
    text = page.locator(".card .xtick text").first.evaluate("text => getComputedStyle(text).fill")
    assert text == {"light": "rgb(29, 33, 41)", "dark": "rgb(228, 231, 236)"}[scheme]
    assert line.evaluate("line => getComputedStyle(line.closest('.chart')).filter") == "none"


def _points(frame: Locator) -> dict[str, Any]:
    points: dict[str, Any] = frame.locator("script").evaluate("script => JSON.parse(script.textContent)")
    return points


def _point_at(page: Page, frame: Locator, points: dict[str, Any], number: int) -> None:
    box = _box(frame)
    scale = box["width"] / GRID
    page.mouse.move(box["x"] + scale * points["x"][number], box["y"] + scale * points["y"][number])


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 420])
def test_the_embedding_names_the_image_under_the_pointer(
    write_report: Callable[[int], Path], page: Page, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(write_report(2).as_uri())
    training, test = page.locator(".embedding").nth(0), page.locator(".embedding").nth(1)
    training.scroll_into_view_if_needed()
    assert not training.locator(".tip").is_visible()
    points = _points(training)
    assert len(points["name"]) == N_TRAIN
    number = points["name"].index(f"{CLASS_NAMES[3]}/79.png")
    _point_at(page, training, points, number)
    lines = training.locator(".tip p").all_inner_texts()
    assert lines == [
        f"{CLASS_NAMES[3]}/79.png", f"label: {CLASS_NAMES[3]}", f"true label: {CLASS_NAMES[2]}", "dropped",
    ]  # fmt: skip
    assert training.locator(".ring").is_visible()
    tip = _box(training.locator(".tip"))
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= width
    test.scroll_into_view_if_needed()
    points = _points(test)
    _point_at(page, test, points, 0)
    assert test.locator(".tip p").all_inner_texts() == [
        points["name"][0], f"label: {CLASS_NAMES[points['label'][0]]}", "not filtered",
    ]  # fmt: skip
    assert not training.locator(".tip").is_visible()
    page.mouse.move(2, 2)
    assert not test.locator(".tip").is_visible()
