from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up import NETWORK, write_params
from made_up_report import write_network
from made_up_view import text_of, view_data

from pipeline.artifacts.overrides import read_overrides
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from viz.callbacks import deciding
from viz.callbacks.deciding import Desk, carry_out, news, show_difference, write_rule
from viz.callbacks.exploring import Asked, draw
from viz.data import Points, Source
from viz.look import rule_to_json
from viz.rules import Limit, Rule


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    return view_data(tmp_path)


@pytest.fixture
def source(data: DataPaths) -> Source:
    return Source(data)


@pytest.fixture
def points(source: Source) -> Points:
    return source.points(NETWORK)


@pytest.fixture
def desk(source: Source) -> Desk:
    return Desk(source)


@pytest.fixture
def drawn(source: Source) -> Any:
    return draw(source, Asked(network=NETWORK), "class")["drawn"]


def _decided(data: DataPaths) -> dict[str, str]:
    return {line.path: line.decision for line in read_overrides(data.overrides)} if data.overrides.exists() else {}


def _command(action: str, row: Any = None, page: str = "p") -> dict[str, Any]:
    return {"action": action, "row": row, "page": page, "at": 1}


def test_one_image_and_a_selection_are_decided_and_undone(
    data: DataPaths, source: Source, points: Points, desk: Desk, drawn: Any
) -> None:
    paths = points.paths.to_pylist()
    assert carry_out(source, desk, _command("drop", 3), drawn, note="blurred") == ("1 image to drop.", True)
    assert read_overrides(data.overrides)[0].note == "blurred"
    said, changed = carry_out(source, desk, _command("keep-selection", 9), drawn, selection=[3, 4, 4])
    assert (said, changed) == ("2 images to keep.", True)
    assert _decided(data) == {paths[3]: "keep", paths[4]: "keep"}
    assert carry_out(source, desk, _command("undo"), drawn)[1]
    assert _decided(data) == {paths[3]: "drop"}
    assert carry_out(source, desk, _command("undo"), drawn)[1]
    assert _decided(data) == {}
    assert carry_out(source, desk, _command("undo"), drawn) == ("Nothing to undo on this page.", False)


def test_of_a_selection_only_what_is_shown_is_decided(
    data: DataPaths, source: Source, points: Points, desk: Desk, drawn: Any
) -> None:
    asked = Asked(network=NETWORK, classes=[1])
    said, changed = carry_out(source, desk, _command("drop-selection"), drawn, selection=[0, 1, 2, 5, 79], asked=asked)
    assert (said, changed) == ("2 images to drop.", True)
    assert list(_decided(data)) == [points.paths[row].as_py() for row in (1, 5)]


def test_two_pages_undo_their_own(data: DataPaths, source: Source, points: Points, desk: Desk, drawn: Any) -> None:
    for page, row in (("a", 1), ("b", 2)):
        carry_out(source, desk, _command("drop", row, page), drawn)
    carry_out(source, desk, _command("undo", page="a"), drawn)
    assert list(_decided(data)) == [points.paths[2].as_py()]
    assert not carry_out(source, desk, _command("undo", page="a"), drawn)[1]
    assert not carry_out(source, desk, _command("undo", page="c"), drawn)[1]
    carry_out(source, desk, _command("undo", page="b"), drawn)
    assert _decided(data) == {}


def test_pages_closed_long_ago_are_forgotten(source: Source, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "_MOST_PAGES", 2)
    first = desk.of_page("a")
    assert desk.of_page("b") is not first
    assert desk.of_page("a") is first
    desk.of_page("c")
    assert desk.of_page("a") is first, "asked for a moment ago"
    assert desk.of_page("b") is not first


def test_rows_of_files_that_are_gone_are_not_decided(data: DataPaths, source: Source, desk: Desk, drawn: Any) -> None:
    write_network(data, NETWORK, seed=1)
    said, changed = carry_out(source, desk, _command("drop", 3), drawn)
    assert not changed
    assert "A stage has written new files" in said
    assert not data.overrides.exists()


_GARBAGE = st.none() | st.booleans() | st.integers(80) | st.integers(max_value=-1) | st.floats() | st.text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.fixed_dictionaries(
        {"action": st.text() | st.sampled_from(["keep", "drop", "keep-selection", "drop-selection", "undo"])},
        optional={"row": _GARBAGE, "page": _GARBAGE},
    )
    | st.dictionaries(st.text(), _GARBAGE),
    selection=st.lists(_GARBAGE | st.integers(0, 79)).filter(lambda rows: {*map(type, rows)} != {int}),
    network=st.sampled_from([NETWORK, "resnet34", "../../etc/passwd", ""]),
)
def test_garbage_writes_nothing(
    data: DataPaths, source: Source, drawn: Any, command: dict[str, Any], selection: list[Any], network: str
) -> None:
    said, changed = carry_out(source, Desk(source), command, drawn | {"network": network}, selection=selection)
    assert said
    assert not changed
    assert not data.overrides.exists()


@pytest.mark.parametrize("action", ["dropped", "keeper", "", "DROP", "drop-all"])
def test_only_commands_that_there_are_do_anything(data: DataPaths, source: Source, drawn: Any, action: str) -> None:
    assert not carry_out(source, Desk(source), _command(action, 3), drawn, selection=[3])[1]
    assert not data.overrides.exists()


def test_a_page_that_shows_nothing_decides_nothing(data: DataPaths, source: Source, desk: Desk) -> None:
    assert not carry_out(source, desk, _command("drop", 3), None)[1]
    assert not data.overrides.exists()


def test_a_note_that_cannot_be_kept_says_why(data: DataPaths, source: Source, desk: Desk, drawn: Any) -> None:
    said, changed = carry_out(source, desk, _command("drop", 3), drawn, note="two\nlines")
    assert not changed
    assert said.startswith("Not saved: note:")
    assert not data.overrides.exists()


def test_news_notices_replaced_files(data: DataPaths, source: Source, drawn: Any) -> None:
    assert news(source, NETWORK, drawn) is None
    assert news(source, NETWORK, None) is None
    assert news(source, "resnet34", drawn).startswith("The files shown are gone")
    write_network(data, NETWORK, seed=1)
    assert "A stage has written new files" in text_of(news(source, NETWORK, drawn))
    again = draw(source, Asked(network=NETWORK), "class")["drawn"]
    assert news(source, NETWORK, again) is None
    data.points(NETWORK).unlink()
    assert "gone or being written" in news(source, NETWORK, again)


def test_a_rule_is_written_after_its_difference_was_shown(source: Source, tmp_path: Path) -> None:
    params = write_params(tmp_path, filter={"drop_share": 0.05})
    kept = rule_to_json(Rule(judge="dbscan", limit=Limit(threshold=0.75, min_samples=7)))
    shown, any_change = show_difference(source, params, NETWORK, kept)
    assert any_change
    assert "Not written" in write_rule(source, params, NETWORK, kept, shown + "x")
    assert load_params(params).filter.eps is None
    assert write_rule(source, params, NETWORK, kept, shown).startswith("Written")
    written = load_params(params).filter
    assert (written.eps, written.drop_share, written.scorer.name) == (0.75, None, "dbscan")
    assert show_difference(source, params, NETWORK, kept) == (f"{params} says so already.", False)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(), "settings that the filter has used"),
        (Rule(judge="dbscan", own={1: Limit(threshold=0.5)}), "holds one limit for all classes"),
    ],
)
def test_what_params_cannot_hold_is_not_written(source: Source, tmp_path: Path, rule: Rule, said: str) -> None:
    params = write_params(tmp_path)
    before = params.read_bytes()
    shown, any_change = show_difference(source, params, NETWORK, rule_to_json(rule))
    assert said in shown
    assert not any_change
    assert write_rule(source, params, NETWORK, rule_to_json(rule), shown).startswith("Not written")
    assert params.read_bytes() == before
