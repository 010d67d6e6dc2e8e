"""The app in a real browser, served by a real process on made-up artefacts."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import numpy as np
import pytest
from browser_app import serve_app
from made_up_points import CLASS_NAMES, NETWORK, write_points

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from viz.data import Points, Source
from viz.look import rule_to_json
from viz.rules import Limit, Rule, judge
from viz.selection import selection_csv

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect
# A busy machine is slow, not wrong.
expect.set_options(timeout=30_000)

ROOT = Path(__file__).parents[2]
N, GOING = 240, 12


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running app."""

    url: str
    data: DataPaths
    params: Path

    @property
    def points(self) -> Points:
        return Source(self.data).points(NETWORK)

    def link(self, **state: object) -> str:
        """An address with that state of the page."""
        return f"{self.url}?{urlencode({'state': json.dumps(state)})}"


@contextmanager
def _serve(folder: Path) -> Iterator[Served]:
    data = DataPaths(root=folder / "data")
    images = np.zeros((N, 16, 16, 3), dtype=np.uint8)
    images[..., 0] = np.arange(N)[:, None, None]
    write_points(data, images, labels=np.arange(N) % len(CLASS_NAMES), n_going=GOING)
    params = folder / "params.yaml"
    shutil.copy(ROOT / "presets" / "digits.yaml", params)
    with serve_app(folder) as url:
        yield Served(url=url, data=data, params=params)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that only look."""
    with _serve(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """For tests that change files."""
    with _serve(tmp_path) as running:
        yield running


def _open(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#legend > span").first).to_be_visible()
    # Drawn by WebGL, and pictures there.
    page.wait_for_function("document.getElementById('map').querySelector('.js-plotly-plot')?._fullData?.[0]?.x?.length")


def _place(page: Page, points: Points, row: int, graph: str = "map") -> tuple[float, float]:
    """Pixels of a point in the window."""
    x, y = page.evaluate(
        """([id, x, y]) => {
            const plot = document.getElementById(id).querySelector(".js-plotly-plot");
            const { xaxis, yaxis } = plot._fullLayout;
            const box = plot.getBoundingClientRect();
            return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)];
        }""",
        [graph, *points.coordinates[row].tolist()],
    )
    return x, y


def _alone(points: Points) -> int:
    """The point farthest from all others, so that the pointer hits it and no other."""
    distances = np.linalg.norm(points.coordinates[:, None] - points.coordinates, axis=2)
    np.fill_diagonal(distances, np.inf)
    return int(distances.min(axis=1).argmax())


def _pick(page: Page, control: str, name: str) -> None:
    page.locator(f"#{control}").click()
    page.get_by_role("option").get_by_text(name, exact=True).click()


def _lasso(page: Page, points: Points, label: int) -> None:
    """Drag around the points of a class."""
    page.locator("[data-title*=Lasso]").first.click()
    places = np.array([_place(page, points, row) for row in np.flatnonzero(points.labels == label).tolist()])
    (left, top), (right, bottom) = places.min(axis=0) - 6, places.max(axis=0) + 6
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(x, y, steps=6)
    page.mouse.up()


def _overrides(served: Served) -> list[tuple[str, str, str]]:
    if not served.data.overrides.exists():
        return []
    with served.data.overrides.open(encoding="utf-8", newline="") as file:
        return [(row["path"], row["decision"], row["note"]) for row in csv.DictReader(file)]


def test_map_legend_hover_and_card(shared: Served, page: Page) -> None:
    points, row = shared.points, _alone(shared.points)
    _open(page, shared.url)
    expect(page.locator("#legend")).to_have_text(f"stays {N - GOING}goes {GOING}")
    page.mouse.move(*_place(page, points, row))
    tooltip = page.locator(".dcc-tooltip-bounding-box")
    expect(tooltip).to_contain_text(f"#{row}")
    expect(tooltip).to_contain_text(points.name(row))
    expect(tooltip).to_contain_text(f"score {points.scores[row]:.3f}")
    expect(tooltip).to_contain_text(points.reasons[row].as_py())
    page.mouse.click(*_place(page, points, row))
    expect(page.locator("#card")).to_contain_text(points.paths[row].as_py())
    expect(page.locator("#card .tile")).to_have_count(points.neighbours.shape[1])
    page.wait_for_function("[...document.querySelectorAll('#card img')].every((image) => image.naturalWidth === 16)")


def test_moving_eps_reclusters(shared: Served, page: Page) -> None:
    _open(page, shared.url)
    _pick(page, "judge", "DBSCAN on the map")
    expect(page.locator("#unit")).to_have_text("eps (map units)")
    handle = page.locator("#threshold [role=slider]")
    handle.focus()
    for _ in range(10):
        handle.press("ArrowLeft")
    page.wait_for_function("JSON.parse(new URLSearchParams(location.search).get('state')).rule.limit.threshold > 0")
    page.wait_for_timeout(1000)
    state = json.loads(page.evaluate("new URLSearchParams(location.search).get('state')"))
    rule = Rule(judge="dbscan", limit=Limit(**state["rule"]["limit"]))
    source = Source(shared.data)
    noise = judge(source, source.points(NETWORK), rule).noise
    assert 0 < noise.sum() < N, state
    expect(page.locator("#legend")).to_have_text(f"stays {N - noise.sum()}goes {noise.sum()}")
    expect(page.locator("#place")).to_contain_text(f"{noise.sum()} images")


def test_lasso_feeds_the_pictures_and_decisions_of_a_selection_are_saved(served: Served, page: Page) -> None:
    points = served.points
    _open(page, served.url)
    _lasso(page, points, 2)
    rows = np.flatnonzero(points.labels == 2)
    expect(page.locator("#place")).to_contain_text(f"{len(rows)} images")
    expect(page.locator("#drop-selection")).to_have_text(f"Drop selection ({len(rows)})")
    page.locator("#note").fill("blurred, all")
    page.locator("#drop-selection").click()
    expect(page.locator("#saved")).to_contain_text(f"{len(rows)} images")
    assert set(_overrides(served)) == {(points.paths[row].as_py(), "drop", "blurred, all") for row in rows.tolist()}
    expect(page.locator("#legend")).to_contain_text(f"goes by hand {len(rows)}")
    page.locator("#undo").click()
    expect(page.locator("#legend")).not_to_contain_text("by hand")
    assert _overrides(served) == []


def test_keys_choose_keep_drop_and_undo(served: Served, page: Page) -> None:
    points = served.points
    order = np.argsort(-points.scores, kind="stable")
    first, second = (points.paths[int(row)].as_py() for row in order[:2])
    _open(page, served.url)
    expect(page.locator("#grid .tile")).to_have_count(GOING)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#grid .tile.focus")).to_have_attribute("data-row", str(order[0]))
    page.keyboard.press("k")
    expect(page.locator("#grid .tile")).to_have_count(GOING - 1)
    expect(page.locator("#grid .tile.focus")).to_have_attribute("data-row", str(order[1]))
    page.keyboard.press("d")
    expect(page.locator("#legend")).to_contain_text("goes by hand 1")
    assert _overrides(served) == [(first, "keep", ""), (second, "drop", "")]
    # Typing a note decides nothing.
    page.locator("#note").press_sequentially("duck")
    page.keyboard.press("Enter")
    page.keyboard.press("u")
    expect(page.locator("#legend")).not_to_contain_text("goes by hand")
    assert _overrides(served) == [(first, "keep", "")]


@pytest.mark.slow
def test_zoom_is_kept_when_colours_and_filters_change(shared: Served, page: Page) -> None:
    _open(page, shared.url)
    box = page.locator("#map").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(600)
    axis = "document.querySelector('#map .js-plotly-plot')._fullLayout.xaxis.range.join()"
    zoomed = page.evaluate(axis)
    _pick(page, "coloring", "class")
    expect(page.locator("#legend > span")).to_have_count(len(CLASS_NAMES))
    assert page.evaluate(axis) == zoomed
    _open(page, page.url.replace("decision", "class"))
    assert page.evaluate(axis) != zoomed


def test_a_link_restores_the_view(shared: Served, page: Page) -> None:
    rule = rule_to_json(Rule(judge="dbscan", limit=Limit(threshold=0.5, min_samples=3)))
    _open(page, shared.link(network=NETWORK, rule=rule, coloring="class", classes=[1], list="shown", sort="class"))
    expect(page.locator("#unit")).to_have_text("eps (map units)")
    expect(page.locator("#min_samples")).to_have_value("3")
    expect(page.locator("#legend > span")).to_have_count(1)
    expect(page.locator("#place")).to_contain_text("60 images")


def test_comparing_two_settings(shared: Served, page: Page) -> None:
    source = Source(shared.data)
    points = source.points(NETWORK)
    rule = Rule(judge="dbscan", limit=Limit(threshold=0.4, min_samples=5))
    only_a = judge(source, points, rule).noise & ~points.is_noise
    assert only_a.any()
    state = {"view": "compare", "rule": rule_to_json(rule), "judge-b": "written", "share-b": 5, "list": "a"}
    _open(page, shared.link(network=NETWORK, **state))
    expect(page.locator("#differences")).to_contain_text(f"B drops {GOING}")
    expect(page.locator("#legend")).to_contain_text(f"only A drops {only_a.sum()}")
    expect(page.locator("#place")).to_contain_text(f"{only_a.sum()} images")
    _lasso(page, points, 1)
    selected = int((points.labels == 1).sum())
    page.wait_for_function(
        f"document.querySelector('#other .js-plotly-plot').data[0].selectedpoints?.length === {selected}"
    )


def test_parameters_are_written_after_their_difference_was_shown(served: Served, page: Page) -> None:
    rule = rule_to_json(Rule(judge="dbscan", limit=Limit(threshold=0.75, min_samples=4)))
    before = served.params.read_text()
    _open(page, served.link(network=NETWORK, rule=rule))
    page.locator("#propose").click()
    expect(page.locator("#difference")).to_contain_text("+  eps: 0.75")
    assert served.params.read_text() == before
    page.locator("#write").click()
    expect(page.locator("#written")).to_contain_text("Written to")
    assert "eps: 0.75" in served.params.read_text()
    page.locator("#close").click()
    expect(page.locator("#dialog")).not_to_be_visible()


def test_selection_as_csv(shared: Served, page: Page) -> None:
    source = Source(shared.data)
    points = source.points(NETWORK)
    _open(page, shared.url)
    expect(page.locator("#grid .tile")).to_have_count(GOING)
    with page.expect_download() as download:
        page.locator("#csv").click()
    rows = np.argsort(-points.scores, kind="stable")[:GOING].tolist()
    expected = selection_csv(points, judge(source, points, Rule()), rows)
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected


def test_replaced_files_are_noticed_and_nothing_is_decided_on_old_ones(served: Served, page: Page) -> None:
    _open(page, served.url)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#grid .tile.focus")).to_have_count(1)
    write_parquet(served.data.points(NETWORK), read_parquet(served.data.points(NETWORK)))
    page.keyboard.press("d")
    expect(page.locator("#saved")).to_contain_text("nothing was saved; reload")
    assert _overrides(served) == []
    expect(page.locator("#banner")).to_contain_text("A stage has written new files", timeout=15_000)


@pytest.mark.slow
def test_pictures_turn_page_by_page(shared: Served, page: Page) -> None:
    _open(page, shared.link(network=NETWORK, list="shown"))
    expect(page.locator("#place")).to_have_text(f"{N} images, page 1 of 4")
    page.keyboard.press("PageDown")
    expect(page.locator("#place")).to_have_text(f"{N} images, page 2 of 4")
    page.locator("#previous").click()
    expect(page.locator("#place")).to_have_text(f"{N} images, page 1 of 4")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_light_and_dark(shared: Served, page: Page, theme: str) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    _open(page, shared.url)
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(color) == {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 25, 28)"}[theme]
    page.locator("#theme").click()
    assert page.evaluate(color) == {"dark": "rgb(255, 255, 255)", "light": "rgb(23, 25, 28)"}[theme]


def test_missing_artefacts_say_what_to_run(served: Served, page: Page) -> None:
    served.data.points(NETWORK).unlink()
    page.goto(served.url)
    expect(page.locator("#problem")).to_contain_text("run `dvc repro`")
    page.get_by_text("Training", exact=True).click()
    expect(page.locator("#training")).to_contain_text("dvc repro")
