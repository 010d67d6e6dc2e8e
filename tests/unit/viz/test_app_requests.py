"""Requests for callbacks that the page does not send are refused in one line."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.projects import NETWORK
from tests.fixtures.report import ROOT
from tests.fixtures.view import view_data
from tests.unit.viz.test_app import body_of
from viz.app import make_app
from viz.data import Source

_URL = "/_dash-update-component"
_PARTS = ("output", "outputs", "inputs", "state", "changedPropIds")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
_PLACES: list[tuple[Any, ...]] = [
    *((part,) for part in _PARTS), ("outputs", "id"), ("outputs", "property"), ("inputs", 0), ("inputs", 1, "id"),
    ("inputs", 2, "property"), ("state", 0), ("state", 0, "id"), ("changedPropIds", 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    data = view_data(tmp_path_factory.mktemp("app"))
    return make_app(Source(data), params_file=ROOT / "tests" / "params.yaml").server.test_client()


@pytest.fixture(scope="module")
def sent(client: Any) -> dict[str, Any]:
    """A request of the page, which has inputs, state and one output."""
    return body_of(client, "card.children", {"network.value": NETWORK, "map-edited.data": "0"}, "map-focus.data")


def _nested(depth: int) -> list[Any]:
    outer: list[Any] = []
    for _ in range(depth - 1):
        outer = [outer]
    return outer


def _check_refused(answer: Any, named: str) -> None:
    assert answer.status_code == 400
    assert named in answer.text
    assert len(answer.text.splitlines()) == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"output": "nope"}, {"output": "a.children", "inputs": 3}, {"output": [1]}, {"output": "page.title"}],
    ids=["nothing", "unknown", "inputs", "list", "in the browser"],
)
def test_callbacks_that_the_server_lacks_are_refused(client: Any, body: dict[str, Any]) -> None:
    _check_refused(client.post(_URL, json=body), "output: no callback of this page")


def test_json_is_bounded_in_depth(client: Any, sent: dict[str, Any]) -> None:
    deep = b'{"output":' + b"[" * 900 + b"]" * 900 + b"}"
    for url in (_URL, "/decide"):
        _check_refused(client.post(url, data=deep, content_type="application/json"), "nested too deeply")
    request = deepcopy(sent)
    (rule,) = (control for control in request["inputs"] if control["id"] == "settings")
    # The body, the list of inputs, the input and its value are four.
    rule["value"] = {"unread": _nested(46)}
    assert client.post(_URL, json=request).status_code == 200
    rule["value"] = {"unread": _nested(47)}
    _check_refused(client.post(_URL, json=request), "nested too deeply")


def _changes(sent: dict[str, Any]) -> dict[str, list[Any]]:
    """Return values that the page does not send, for each part of a request."""
    first, second, *rest = sent["inputs"]
    return {
        "inputs": [
            None, 3, {}, [], [None] * 4, [{}] * 4, [first, second], [second, first, *rest], [*sent["inputs"], first],
            [{**first, "id": "focus"}, second, *rest], [{**first, "property": "value"}, second, *rest],
        ],
        "state": [None, [], "plotted", [[]], [*sent["state"], first]],
        "outputs": [
            None, [], [sent["outputs"]], {"id": "card"},
            *({"id": name, "property": "children"} for name in ("grid", None, 1)),
        ],
        "changedPropIds": [None, 3, {"a": 1}, [1], ["{.x"], [["a.b"]], ["plotted.data"]],
    }  # fmt: skip


def test_other_parts_of_a_request_are_refused(client: Any, sent: dict[str, Any]) -> None:
    assert client.post(_URL, json=sent).status_code == 200
    for part, values in _changes(sent).items():
        for value in values:
            _check_refused(client.post(_URL, json={**sent, part: value}), f"{part}: no")
    assert client.post(_URL, json={**sent, "changedPropIds": []}).status_code == 200


@given(body=st.fixed_dictionaries({}, optional={part: st.just("card.children") | _JSON for part in _PARTS}))
def test_random_objects_are_refused(client: Any, body: dict[str, Any]) -> None:
    assert client.post(_URL, json=body).status_code == 400


@given(place=st.sampled_from(_PLACES), value=_JSON)
def test_one_changed_place_is_answered_or_refused(
    client: Any, sent: dict[str, Any], place: tuple[Any, ...], value: Any
) -> None:
    request: Any = deepcopy(sent)
    *outer, last = place
    inner = request
    for step in outer:
        inner = inner[step]
    inner[last] = value
    assert client.post(_URL, json=request).status_code in (200, 400)
