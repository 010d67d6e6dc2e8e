"""What the page gets after its first map: no coordinates again. Counted in bytes of JSON, with 20,000 points."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from plotly.io.json import to_json_plotly

from pipeline.figures.embeddings import POINTS, RING
from tests.fixtures.view import points_of, source_of
from viz.callbacks.compare import draw_comparison
from viz.callbacks.embedding import MapControls, draw
from viz.callbacks.hover import move_ring
from viz.data import Points, Source
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


def _places(figure: Any) -> list[list[Any]]:
    return [step["location"] for step in json.loads(_sent(figure))["operations"]]


def _moved(controls: MapControls) -> MapControls:
    settings = settings_to_json(FilterSettings(limit=Limit(threshold=0.95)))
    return MapControls(network=controls.network, settings_json=settings)


def test_the_first_map_has_four_bytes_for_each_coordinate(source: Source, points: Points) -> None:
    text = _sent(draw(source, _HERE, "decision")["figure"])
    assert len(text) < 24 * N
    trace = json.loads(text)["data"][POINTS]
    rows = np.array(trace["customdata"])
    assert sorted(rows.tolist()) == list(range(N))
    for axis, name in enumerate("xy"):
        assert trace[name]["dtype"] == "f4"
        values = np.frombuffer(base64.b64decode(trace[name]["bdata"]), dtype="<f4")
        np.testing.assert_array_equal(values, points.coordinates[rows, axis].astype(np.float32))


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
    assert _places(answer["figure"]) == [["data", POINTS, "marker"]]
    # Base64 has four characters for three bytes.
    assert len(_sent(answer["figure"])) < 4 / 3 * N + 2000


def test_names_are_shown_and_hidden_without_coordinates(source: Source) -> None:
    plotted = draw(source, _HERE, "decision", named=True)["plotted"]
    for named in (False, True):
        answer = draw(source, _HERE, "decision", plotted=plotted, named=named)
        plotted = answer["plotted"]
        steps = json.loads(_sent(answer["figure"]))["operations"]
        (names,) = [step["params"]["value"] for step in steps if step["location"] == ["layout", "annotations"]]
        assert len(names) == (N_CLASSES if named else 0)
        assert not any(step["location"][-1] in ("x", "y", "customdata") for step in steps)
    whole = draw(source, _HERE, "decision", named=True)["figure"]
    assert [name.text for name in whole.layout.annotations] == [name["text"] for name in names]


def test_the_second_map_gets_no_coordinates_again_either(source: Source) -> None:
    first = draw_comparison(source, _HERE, _OTHER)
    assert len(first["figure"].data[POINTS].x) == N
    for controls, other in ((_moved(_HERE), _OTHER), (_HERE, _moved(_OTHER))):
        answer = draw_comparison(source, controls, other, plotted=first["plotted"], selected=[3, 7])
        assert answer["plotted"] == first["plotted"]
        assert ["data", POINTS, "marker"] in _places(answer["figure"])
        assert len(_sent(answer["figure"])) < 4 / 3 * N + 2000
        marked = [
            step["params"]["value"]
            for step in json.loads(_sent(answer["figure"]))["operations"]
            if step["location"] == ["data", POINTS, "selectedpoints"]
        ]
        assert [len(places) for places in marked] == [2]
    narrowed = MapControls(network="made-up", classes=[1])
    other_points = draw_comparison(source, narrowed, _OTHER, plotted=first["plotted"])
    assert len(other_points["figure"].data[POINTS].x) == N // N_CLASSES


def test_a_chosen_image_sends_its_ring_alone(source: Source) -> None:
    plotted = draw(source, _HERE, "decision")["plotted"]
    figure = move_ring(source, 7, "made-up", plotted)
    assert _places(figure) == [["data", RING, "x"], ["data", RING, "y"]]
    assert len(_sent(figure)) < 300
