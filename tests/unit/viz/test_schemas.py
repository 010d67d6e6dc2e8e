"""Values that the page does not send are refused in one line, and those that it may send are answered."""

from copy import deepcopy
from typing import Any

import pytest

from tests.fixtures.projects import NETWORK, write_params
from tests.fixtures.view import event_at, view_data
from tests.unit.viz.test_app import body_of, page_values
from viz.app import make_app
from viz.callbacks.embedding import MapControls, draw
from viz.data import Source
from viz.filter_settings import FilterSettings, Limit
from viz.schemas import SCHEMAS, is_valid
from viz.state import settings_to_json

_URL = "/_dash-update-component"
_HUGE = 10**400
# Every kind of JSON, numbers out of range, a half surrogate, and objects with keys of the page.
_VALUES: list[Any] = [
    None, True, "", "x", "\ud800", -1, 3, 10**9, 2**64, _HUGE, 1.5, float("nan"), float("inf"), [], [3], [_HUGE],
    [None], ["x"], [[]], [0.2, 0.8], {}, {"a": [1]}, {"scorer_choice": "x"}, {"limit": {"threshold": "x"}},
    {"per_class": {"x": {}}},
    {"rows": [-1]}, {"generation": None, "rows": [10**9], "graph": "map"}, {"generation": 1, "rows": []},
    {"points": [None]}, {"points": [{"customdata": 3, "bbox": "\ud800"}]},
    event_at(10**9), {"xaxis.range[0]": "x"}, {"xaxis.range[0]": _HUGE}, {"x": _HUGE},
    {"label": "x", "suggested": 0, "generation": "x"}, {"outlines": [[[_HUGE, 0]]], "generation": "x", "graph": "map"},
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(view_data(tmp_path_factory.mktemp("app")))


@pytest.fixture(scope="module")
def client(source: Source) -> Any:
    params = write_params(source.data.root.parent)
    return make_app(source, params_file=params).server.test_client()


def _sent(source: Source, client: Any, view: str) -> dict[str, Any]:
    """Return the values of a page on which all that can be chosen is chosen."""
    plotted = draw(source, MapControls(network=NETWORK), "class", zoom={"xaxis.range[0]": 0, "xaxis.range[1]": 1})
    settings = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.5), per_class={1: Limit(min_samples=3)})
    generation = source.points(NETWORK).generation
    chosen = dict.fromkeys(("focus.data", "map-focus.data", "review-focus.data"), 3)
    return page_values(client) | chosen | {
        "view.value": view,
        "plotted.data": plotted["plotted"],
        "plotted-b.data": {key: plotted["plotted"][key] for key in ("network", "generation", "partial", "rows")},
        "settings.data": settings_to_json(settings),
        "settings-b.data": settings_to_json(FilterSettings(limit=Limit(threshold=0.7))),
        "selection.data": {"generation": generation, "rows": [1, 2], "graph": "map"},
        "lasso-shapes.data": {"generation": generation, "graph": "map", "outlines": [[[0, 0], [1, 0], [1, 1]]]},
        "matrix-cell.data": {"label": 0, "suggested": 1, "generation": generation, "at": 1},
        "map.hoverData": event_at(3),
        "other.hoverData": event_at(3),
        "map.relayoutData": {"xaxis.range[0]": 0, "xaxis.range[1]": 1, "yaxis.range[0]": -1.5, "yaxis.range[1]": 2},
        "moved.data": {"control": "share", "value": 12},
        "list-before.data": "dropped",
    }  # fmt: skip


def _callbacks(client: Any) -> list[dict[str, Any]]:
    return [entry for entry in client.get("/_dash-dependencies").json if entry["clientside_function"] is None]


def _names(entry: dict[str, Any]) -> list[str]:
    return [f"{control['id']}.{control['property']}" for control in (*entry["inputs"], *entry["state"])]


def test_each_control_of_a_callback_has_a_schema(client: Any) -> None:
    assert {name for entry in _callbacks(client) for name in _names(entry)} == set(SCHEMAS)


def test_values_of_the_page_are_valid(source: Source, client: Any) -> None:
    for view in ("explore", "review", "compare", "training"):
        values = _sent(source, client, view)
        assert [name for name in SCHEMAS if not is_valid(name, values.get(name))] == []
    assert [name for name in SCHEMAS if not is_valid(name, page_values(client).get(name))] == []


@pytest.mark.slow
@pytest.mark.parametrize("view", ["compare", "review"])
def test_no_value_of_a_control_breaks_a_callback(source: Source, client: Any, view: str) -> None:
    values = _sent(source, client, view)
    for entry in _callbacks(client):
        names = _names(entry)
        request = body_of(client, entry["output"], values, names[0])
        assert client.post(_URL, json=request).status_code in (200, 204), entry["output"]
        for name in names:
            _try_all(client, request, name)


def _try_all(client: Any, request: dict[str, Any], name: str) -> None:
    inputs = [f"{control['id']}.{control['property']}" for control in request["inputs"]]
    for value in _VALUES:
        changed = deepcopy(request) | {"changedPropIds": [name] if name in inputs else []}
        for control in (*changed["inputs"], *changed["state"]):
            if f"{control['id']}.{control['property']}" == name:
                control["value"] = value
        answer = client.post(_URL, json=changed)
        if is_valid(name, value):
            assert answer.status_code in (200, 204), (request["output"], name, value)
        else:
            assert (answer.status_code, answer.text) == (400, f"{name}: no value of this control")
