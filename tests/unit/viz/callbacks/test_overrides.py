from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.artifacts.overrides import read_overrides
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK, write_params
from tests.fixtures.report import write_network
from viz.callbacks import overrides
from viz.callbacks.embedding import MapControls, draw
from viz.callbacks.file_watch import update_notice
from viz.callbacks.overrides import CommandResult, OverrideSessions, run_command, selection_command
from viz.callbacks.params_dialog import show_difference, write_settings
from viz.data import Points, Source
from viz.filter_settings import FilterSettings, Limit
from viz.state import make_map_state, settings_to_json


@pytest.fixture
def sessions(data: DataPaths) -> OverrideSessions:
    return OverrideSessions(data.overrides)


def _decided(data: DataPaths) -> dict[str, str]:
    return {line.path: line.decision for line in read_overrides(data.overrides)} if data.overrides.exists() else {}


def _command(action: str, points: Points | None, *rows: Any, page: str = "p", note: str = "") -> dict[str, Any]:
    generation = None if points is None else points.generation
    return {"action": action, "rows": list(rows), "generation": generation, "page": page, "note": note}


def test_one_image_and_a_selection_are_decided_and_undone(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    paths = points.paths.to_pylist()
    assert run_command(source, sessions, _command("drop", points, 3, note="blurred")) == CommandResult(
        message="Saved as drop: 1 image.", decision="drop"
    )
    assert read_overrides(data.overrides)[0].note == "blurred"
    assert run_command(source, sessions, _command("keep-selection", points, 3, 4, 4)) == CommandResult(
        message="Saved as keep: 2 images."
    )
    assert _decided(data) == {paths[3]: "keep", paths[4]: "keep"}
    assert run_command(source, sessions, _command("undo", points)) == CommandResult(message="Undone: 2 images.")
    assert _decided(data) == {paths[3]: "drop"}
    assert run_command(source, sessions, _command("undo", points)) == CommandResult(
        message=f"Undone: {paths[3]}.", row=3
    )
    assert _decided(data) == {}
    assert run_command(source, sessions, _command("undo", points)) == CommandResult(
        message="Nothing to undo on this page."
    )


def test_an_image_is_relabeled_with_a_class_of_the_page(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    command = _command("relabel", points, 3) | {"label": 2}
    assert run_command(source, sessions, command).message == f"Saved as {points.class_names[2]}: 1 image."
    (line,) = read_overrides(data.overrides)
    assert (line.decision, line.label) == ("relabel", points.class_names[2])
    state = make_map_state(source, NETWORK, None)
    assert state.preview.keep[3]
    assert run_command(source, sessions, _command("undo", points)).row == 3
    assert _decided(data) == {}


@pytest.mark.parametrize("label", [None, "2", True, -1, 4, 2.0])
def test_a_label_of_no_class_is_not_saved(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions, label: Any
) -> None:
    assert run_command(source, sessions, _command("relabel", points, 3) | {"label": label}).failed
    assert not data.overrides.exists()


def test_another_page_can_clear_a_decision(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    run_command(source, sessions, _command("drop", points, 3))
    assert not run_command(source, sessions, _command("clear", points, 3, page="another")).failed
    assert _decided(data) == {}


def test_the_buttons_apply_to_the_shown_part_of_a_selection(data: DataPaths, source: Source, points: Points) -> None:
    selection = {"generation": points.generation, "rows": [0, 1, 2, 5, 79]}
    shown = selection_command(source, selection, MapControls(network=NETWORK, classes=[1]))
    assert shown == {"generation": points.generation, "rows": [1, 5]}
    assert selection_command(source, {"generation": None, "rows": []}, MapControls(network=NETWORK))["rows"] == []
    assert selection_command(source, selection, MapControls(network="resnet34"))["rows"] == []
    write_network(data, NETWORK, seed=1)
    assert selection_command(source, selection, MapControls(network=NETWORK))["rows"] == []


def test_images_are_decided_on_the_map_of_either_network(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    write_network(data, "resnet34")
    other = source.points("resnet34")
    assert not run_command(source, sessions, _command("drop", other, 3)).failed
    assert not run_command(source, sessions, _command("drop", points, 4)).failed
    assert list(_decided(data)) == [points.paths[row].as_py() for row in (3, 4)]


def test_two_pages_have_separate_undo_histories(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    for page, row in (("a", 1), ("b", 2)):
        run_command(source, sessions, _command("drop", points, row, page=page))
    run_command(source, sessions, _command("undo", points, page="a"))
    assert list(_decided(data)) == [points.paths[2].as_py()]
    for page in ("a", "c"):
        run_command(source, sessions, _command("undo", points, page=page))
        assert list(_decided(data)) == [points.paths[2].as_py()]
    run_command(source, sessions, _command("undo", points, page="b"))
    assert _decided(data) == {}


def test_pages_closed_long_ago_are_forgotten(sessions: OverrideSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "_MAX_PAGES", 2)
    first = sessions.for_page("a")
    assert sessions.for_page("b") is not first
    assert sessions.for_page("a") is first
    sessions.for_page("c")
    assert sessions.for_page("a") is first, "used a moment ago"
    assert sessions.for_page("b") is not first


def test_rows_of_replaced_files_are_not_decided(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    run_command(source, sessions, _command("keep", points, 3))
    write_network(data, NETWORK, seed=1)
    done = run_command(source, sessions, _command("drop", points, 3))
    assert done.failed
    assert list(_decided(data).values()) == ["keep"]
    # Undo stores images, not rows.
    data.points(NETWORK).unlink()
    assert not run_command(source, sessions, _command("undo", points)).failed
    assert _decided(data) == {}


_GARBAGE = st.none() | st.booleans() | st.integers(80) | st.integers(max_value=-1) | st.floats() | st.text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.fixed_dictionaries(
        {
            "action": st.text()
            | st.sampled_from(["keep", "drop", "relabel", "clear", "keep-selection", "drop-selection", "undo"])
        },
        optional={
            "rows": _GARBAGE | st.lists(_GARBAGE | st.integers(0, 79)).filter(lambda rows: {*map(type, rows)} != {int}),
            "page": _GARBAGE,
            "note": _GARBAGE,
        },
    )
    | st.dictionaries(st.text(), _GARBAGE),
    network=st.sampled_from([NETWORK, "resnet34", "../../etc/passwd", "", None]),
)
def test_garbage_writes_nothing(
    data: DataPaths, source: Source, points: Points, command: dict[str, Any], network: str | None
) -> None:
    generation = None if network is None else f"{network} {points.stamp}"
    done = run_command(source, OverrideSessions(data.overrides), command | {"generation": generation})
    assert done.message
    assert done.failed or command["action"] == "undo"
    assert not data.overrides.exists()


@pytest.mark.parametrize("action", ["dropped", "keeper", "", "DROP", "drop-all"])
def test_unknown_commands_do_nothing(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions, action: str
) -> None:
    assert run_command(source, sessions, _command(action, points, 3)).failed
    assert not data.overrides.exists()


def test_a_page_without_points_decides_nothing(data: DataPaths, source: Source, sessions: OverrideSessions) -> None:
    assert run_command(source, sessions, _command("drop", None, 3)).failed
    assert not data.overrides.exists()


def test_an_invalid_note_is_not_saved(
    data: DataPaths, source: Source, points: Points, sessions: OverrideSessions
) -> None:
    done = run_command(source, sessions, _command("drop", points, 3, note="two\nlines"))
    assert done.failed
    assert not data.overrides.exists()


def test_the_notice_reports_replaced_and_new_files(data: DataPaths, source: Source) -> None:
    plotted = draw(source, MapControls(network=NETWORK), "class")["plotted"]
    assert update_notice(source, NETWORK, plotted) is None
    assert update_notice(source, "resnet34", None) is None
    assert update_notice(source, "resnet34", plotted)
    assert update_notice(source, NETWORK, None)
    write_network(data, NETWORK, seed=1)
    assert update_notice(source, NETWORK, plotted)
    again = draw(source, MapControls(network=NETWORK), "class")["plotted"]
    assert update_notice(source, NETWORK, again) is None
    data.points(NETWORK).unlink()
    assert update_notice(source, NETWORK, again)


def test_settings_are_written_after_their_difference_was_shown(source: Source, tmp_path: Path) -> None:
    params = write_params(tmp_path, filter={"drop_fraction": 0.05})
    kept = settings_to_json(FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.75, min_samples=7)))
    shown, any_change = show_difference(source, params, NETWORK, kept, "limit")
    assert any_change
    write_settings(source, params, NETWORK, kept, "limit", shown + "x")
    assert load_params(params).filter.eps is None
    write_settings(source, params, NETWORK, kept, "limit", shown)
    written = load_params(params).filter
    assert (written.eps, written.drop_fraction, written.scorer.name) == (0.75, None, "dbscan")
    assert not show_difference(source, params, NETWORK, kept, "limit")[1]


@pytest.mark.parametrize(
    "rule", [FilterSettings(), FilterSettings(scorer_choice="dbscan", per_class={1: Limit(threshold=0.5)})]
)
def test_what_params_cannot_hold_is_not_written(source: Source, tmp_path: Path, rule: FilterSettings) -> None:
    params = write_params(tmp_path)
    before = params.read_bytes()
    shown, any_change = show_difference(source, params, NETWORK, settings_to_json(rule), "limit")
    assert not any_change
    write_settings(source, params, NETWORK, settings_to_json(rule), "limit", shown)
    assert params.read_bytes() == before


def test_with_several_networks_only_the_fraction_is_written(source: Source, tmp_path: Path) -> None:
    params = write_params(tmp_path, filter={"drop_fraction": 0.05, "allocation": "balanced"})
    params.write_text(params.read_text().replace("[resnet18]", "[resnet34, resnet18]"))
    kept = settings_to_json(FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.75, min_samples=7)))
    shown, any_change = show_difference(source, params, NETWORK, kept, "limit")
    assert not any_change
    assert shown.startswith(f"{params}: ")
    shown, _ = show_difference(source, params, NETWORK, kept, "share")
    write_settings(source, params, NETWORK, kept, "share", shown)
    written = load_params(params).filter
    share = make_map_state(source, NETWORK, kept).preview.noise.mean()
    assert (written.eps, written.allocation) == (None, "overall")
    assert written.drop_fraction == pytest.approx(share, rel=1e-5)
