"""What the page gets after its first map: no coordinates again. Counted in bytes of JSON, with 20,000 points."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from plotly.io.json import to_json_plotly

from tests.fixtures.view import drawn_rows, patched, points_of, source_of
from viz.callbacks import embedding
from viz.callbacks.compare import draw_comparison
from viz.callbacks.embedding import MapControls, draw
from viz.callbacks.hover import move_ring
from viz.data import Points, Source
from viz.drawings import coordinate_bytes
from viz.filter_settings import FilterSettings, Limit
from viz.state import settings_to_json

N, N_CLASSES = 20_000, 10
_HERE, _OTHER = MapControls(network="made-up"), MapControls(network="other")


@pytest.fixture(scope="module")
def points() -> Points:
    rng = np.random.default_rng(0)
    thresholds = np.full(N, 0.9)
    return points_of(rng.normal(size=(N, 2)), np.arange(N) % N_CLASSES, values=rng.random(N), thresholds=thresholds)


@pytest.fixture
def source(points: Points) -> Source:
    return source_of(points)


def _sent(value: Any) -> str:
    """Return a value as the JSON that Dash sends."""
    text: str = to_json_plotly(value)
    return text


def _colors(n: int) -> float:
    """Return the characters of `n` colors of a byte, with what is around them."""
    # Base64 has four characters for three bytes.
    return 4 / 3 * n + 2000


def _moved(controls: MapControls) -> MapControls:
    settings = settings_to_json(FilterSettings(limit=Limit(threshold=0.95)))
    return MapControls(network=controls.network, settings_json=settings)


def test_the_first_map_has_rows_and_colors_but_no_coordinates(source: Source, points: Points) -> None:
    drawing = draw(source, _HERE, "decision")["drawing"]
    # Four bytes for a row, and one for its color.
    assert len(_sent(drawing)) < 5 * _colors(N)
    assert sorted(drawn_rows(drawing)) == list(range(N))
    sent = np.frombuffer(coordinate_bytes(points), dtype="<f4").reshape(2, N)
    np.testing.assert_array_equal(sent.T, points.coordinates.astype(np.float32))


@pytest.mark.parametrize(
    ("changed", "coloring", "decisions"),
    [
        (_HERE, "class", {}),
        (_moved(_HERE), "decision", {}),
        (_HERE, "decision", {5: "drop", 6: "keep"}),
    ],
    ids=["coloring", "filter setting", "decisions"],
)
def test_a_changed_color_sends_a_byte_for_each_point(
    source: Source, points: Points, changed: MapControls, coloring: str, decisions: Mapping[int, str]
) -> None:
    first = draw(source, _HERE, "decision")
    answer = draw(source_of(points, decisions), changed, coloring, plotted=first["plotted"])
    assert list(patched(answer["drawing"])) == ["marker"]
    assert len(_sent(answer["drawing"])) < _colors(N)


@pytest.mark.parametrize(
    "narrowed",
    [
        MapControls(network="made-up", classes=[1]),
        MapControls(network="made-up", scores=[0.2, 0.5]),
        MapControls(network="made-up", search="path:1"),
    ],
    ids=["class", "scores", "search"],
)
def test_a_filter_sends_rows_and_their_colors(source: Source, narrowed: MapControls) -> None:
    first = draw(source, _HERE, "decision")
    answer = draw(source, narrowed, "decision", plotted=first["plotted"])
    patch = patched(answer["drawing"])
    n = int(narrowed.state(source).shown.sum())
    assert 0 < len(drawn_rows(patch)) == n < N
    assert set(patch) == {"marker", "rows", "marks", "meta"}
    assert len(_sent(answer["drawing"])) < 5 * _colors(n)


def test_a_zoom_sends_rows_and_their_colors(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAX_PLOTTED", 1000)
    first = draw(source, _HERE, "decision")
    zoom = {f"{axis}.range[{end}]": value for axis in ("xaxis", "yaxis") for end, value in enumerate((-0.5, 0.5))}
    answer = draw(source, _HERE, "decision", plotted=first["plotted"], zoom=zoom)
    assert set(patched(answer["drawing"])) == {"marker", "rows", "marks", "meta"}
    assert len(_sent(answer["drawing"])) < 5 * _colors(1000)
    assert answer["plotted"]["rows"] != first["plotted"]["rows"]


def test_names_are_shown_and_hidden_without_coordinates(source: Source) -> None:
    plotted = draw(source, _HERE, "decision", named=True)["plotted"]
    for named in (False, True):
        answer = draw(source, _HERE, "decision", plotted=plotted, named=named)
        plotted = answer["plotted"]
        patch = patched(answer["drawing"])
        assert set(patch) == {"marker", "names"}
        names = patch["names"]
        assert len(names) == (N_CLASSES if named else 0)
    whole = draw(source, _HERE, "decision", named=True)["drawing"]["figure"]
    assert [name.text for name in whole.layout.annotations] == [name["text"] for name in names]


def test_the_second_map_gets_no_coordinates_again_either(source: Source) -> None:
    first = draw_comparison(source, _HERE, _OTHER)
    assert len(drawn_rows(first["drawing"])) == N
    for controls, other in ((_moved(_HERE), _OTHER), (_HERE, _moved(_OTHER))):
        answer = draw_comparison(source, controls, other, plotted=first["plotted"], selected=[3, 7])
        assert answer["plotted"] == first["plotted"]
        patch = patched(answer["drawing"])
        assert set(patch) == {"marker", "marks"}
        assert len(patch["marks"]["points"]) == 2
        assert len(_sent(answer["drawing"])) < _colors(N)
    narrowed = MapControls(network="made-up", classes=[1])
    other_points = draw_comparison(source, narrowed, _OTHER, plotted=first["plotted"])["drawing"]
    assert len(drawn_rows(patched(other_points))) == N // N_CLASSES
    assert len(_sent(other_points)) < 5 * _colors(N // N_CLASSES)


def test_a_chosen_image_sends_its_ring_alone(source: Source) -> None:
    plotted = draw(source, _HERE, "decision")["plotted"]
    drawing = move_ring(source, 7, "made-up", plotted)
    assert list(patched(drawing)) == ["ring"]
    assert len(_sent(drawing)) < 300
