import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from dash import no_update
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.files import write_array
from pipeline.figures.embeddings import POINTS, RING
from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK
from tests.fixtures.report import CLASS_NAMES, N_TRAIN, write_network, write_prepared
from tests.fixtures.view import decide, drawn_rows, event_at, patched, points_of, source_of, text_of
from viz.callbacks import embedding
from viz.callbacks.compare import draw_comparison, mark_selected
from viz.callbacks.embedding import MapControls, draw, parse_comparison, visible_box
from viz.callbacks.hover import describe, event_row, hover, move_ring
from viz.color_by import COLORINGS
from viz.data import Points, Source
from viz.filter_settings import FilterSettings, Limit
from viz.state import settings_to_json

_HERE = MapControls(network=NETWORK)


def _rule(threshold: float) -> dict[str, Any]:
    return settings_to_json(FilterSettings(limit=Limit(threshold=threshold)))


@pytest.mark.parametrize("coloring", COLORINGS)
def test_the_map_shows_every_image_once(source: Source, points: Points, coloring: str) -> None:
    answer = draw(source, _HERE, coloring)
    assert answer["problem"] is None
    assert sorted(drawn_rows(answer["drawing"])) == list(range(N_TRAIN))
    assert len(answer["drawing"]["figure"].data[POINTS].marker.color) == N_TRAIN
    assert points.stamp in parse_qs(urlsplit(answer["drawing"]["coordinates"]).query)["generation"][0]


def test_filters_by_class_and_score_are_obeyed(source: Source, points: Points) -> None:
    map_controls = MapControls(network=NETWORK, classes=[2, 3], scores=[0.2, 0.5])
    answer = draw(source, map_controls, "class")
    expected = np.flatnonzero((points.labels >= 2) & (points.scores >= 0.2) & (points.scores <= 0.5))
    assert sorted(drawn_rows(answer["drawing"])) == expected.tolist()
    assert re.findall(r"\d+", answer["notice"]) == [str(len(expected)), "80"]


def test_filtering_everything_away_leaves_an_empty_map(source: Source) -> None:
    answer = draw(source, MapControls(network=NETWORK, classes=[2], scores=[0.51, 0.52]), "class")
    assert len(drawn_rows(answer["drawing"])) == 0


def test_another_coloring_or_threshold_sends_only_colors(source: Source) -> None:
    plotted = draw(source, _HERE, "decision")["plotted"]
    for map_controls, coloring in (
        (_HERE, "class"),
        (MapControls(network=NETWORK, settings_json=_rule(0.2)), "decision"),
    ):
        answer = draw(source, map_controls, coloring, plotted=plotted)
        assert list(patched(answer["drawing"])) == ["marker"]
        assert answer["plotted"] == plotted
        marker = patched(answer["drawing"])["marker"]
        # One byte per point.
        assert marker["color"]["dtype"] == "u1"


def test_other_files_have_other_coordinates(data: DataPaths, source: Source) -> None:
    before = draw(source, _HERE, "decision")
    write_network(data, NETWORK, seed=1)
    after = draw(source, _HERE, "decision", plotted=before["plotted"])
    assert before["drawing"]["coordinates"] != after["drawing"]["coordinates"]


def test_redraws_keep_the_zoom_within_a_network_only(data: DataPaths, source: Source) -> None:
    write_network(data, "resnet34")
    views = [
        draw(source, MapControls(network=network, classes=classes), "class")["drawing"]["figure"].layout.uirevision
        for network, classes in ((NETWORK, None), (NETWORK, [1]), ("resnet34", None))
    ]
    assert views[0] == views[1] != views[2]


def _zoom(low: float, high: float) -> dict[str, float]:
    return {f"{axis}.range[{end}]": value for axis in ("xaxis", "yaxis") for end, value in enumerate((low, high))}


def test_the_visible_box_is_that_of_the_last_zoom_of_this_map() -> None:
    zoomed = _zoom(1.0, 2.0)
    box = ((1.0, 2.0), (1.0, 2.0))
    assert visible_box(None, None, "a") is None
    assert visible_box(zoomed, None, "a") == box
    assert visible_box(_zoom(2.0, 1.0), None, "a") == box
    plotted = {"network": "a", "box": box, "zoom": zoomed}
    # Events of another tool and of another window size.
    for event in ({"dragmode": "lasso"}, {"autosize": True}, zoomed):
        assert visible_box(event, plotted, "a") == box
    assert visible_box({"xaxis.autorange": True, "yaxis.autorange": True}, plotted, "a") is None
    assert visible_box(_zoom(3.0, 4.0), plotted, "a") == ((3.0, 4.0), (3.0, 4.0))
    # The event belongs to the previous map, also if the new map gets another request.
    assert visible_box(zoomed, plotted, "b") is None
    assert visible_box(zoomed, {"network": "b", "box": None, "zoom": zoomed}, "b") is None


@given(zoom=st.dictionaries(st.sampled_from([*_zoom(0, 1), "dragmode"]), st.none() | st.text() | st.floats()))
def test_any_event_of_plotly_is_a_box_or_none(zoom: dict[str, Any]) -> None:
    box = visible_box(zoom, None, "a")
    assert box is None or all(len(ends) == 2 for ends in box)


def test_a_notice_counts_the_plotted_images_and_zooming_shows_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    points = points_of(
        rng.random((1000, 2)), np.arange(1000) % 3, values=rng.random(1000), thresholds=np.full(1000, 0.9)
    )
    source = source_of(points)
    monkeypatch.setattr(embedding, "MAX_PLOTTED", 300)
    whole = draw(source, MapControls(network="made-up"), "score")
    assert whole["notice"].startswith("300 of 1,000 images are plotted")
    part = draw(source, MapControls(network="made-up"), "score", plotted=whole["plotted"], zoom=_zoom(0.2, 0.5))
    inside = ((points.coordinates >= 0.2) & (points.coordinates <= 0.5)).all(axis=1)
    assert sorted(drawn_rows(patched(part["drawing"]))) == np.flatnonzero(inside).tolist()


def test_a_moved_threshold_sends_only_colors_also_of_some_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    points = points_of(
        rng.random((1000, 2)), np.arange(1000) % 3, values=rng.random(1000), thresholds=np.full(1000, 0.9)
    )
    source = source_of(points)
    monkeypatch.setattr(embedding, "MAX_PLOTTED", 300)
    plotted = draw(source, MapControls(network="made-up"), "decision")["plotted"]
    for threshold in (0.95, 0.3):
        moved = MapControls(network="made-up", settings_json=_rule(threshold))
        answer = draw(source, moved, "decision", plotted=plotted)
        assert list(patched(answer["drawing"])) == ["marker"]


def test_the_chosen_image_has_a_ring(source: Source, points: Points) -> None:
    ring = draw(source, _HERE, "class", focus=5)["drawing"]["figure"].data[RING]
    assert (ring.x[0], ring.y[0]) == tuple(points.coordinates[5])
    moved = patched(move_ring(source, 7, NETWORK, None))["ring"]
    assert (moved["x"][0], moved["y"][0]) == tuple(points.coordinates[7])
    for nowhere in (None, 80, -1):
        assert len(draw(source, _HERE, "class", focus=nowhere)["drawing"]["figure"].data[RING].x) == 0
        assert patched(move_ring(source, nowhere, NETWORK, None)) == {"ring": {"x": [], "y": []}}


def test_hover_shows_all_about_a_point(source: Source) -> None:
    shown, place, content = hover(source, event_at(5), _HERE, draw(source, _HERE, "class")["plotted"])
    assert shown
    assert place == {"x0": 1, "x1": 2, "y0": 3, "y1": 4}
    text = text_of(content)
    for part in (
        "#5",
        "http://evil.example",
        "suggested label: <script>",
        "(53 %)",
        "score",
        "3 of 5 nearest",
        "/thumbnail/5.png",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    "event", [None, {}, {"points": []}, {"points": [{}]}, *map(event_at, (80, -1, "5", None, 5.0, True))]
)
def test_hover_over_nothing(source: Source, event: dict[str, Any] | None) -> None:
    assert hover(source, event, _HERE, draw(source, _HERE, "class")["plotted"])[0] is False


def test_a_map_of_replaced_files_shows_no_new_data(data: DataPaths, source: Source) -> None:
    plotted = draw(source, _HERE, "class")["plotted"]
    write_network(data, NETWORK, seed=1)
    assert hover(source, event_at(5), _HERE, plotted)[0] is False
    assert hover(source, event_at(5), _HERE, None)[0] is False
    assert move_ring(source, 5, NETWORK, plotted) is no_update


def test_a_click_shows_the_neighbors(source: Source) -> None:
    assert event_row(event_at(79)) == 79
    text = text_of(describe(source, 79, _HERE))
    for row in (79, 0, 1, 2):
        assert f"/thumbnail/{row}.png" in text
    for nothing in (None, 80, -1):
        assert "/thumbnail/" not in text_of(describe(source, nothing, _HERE))


def test_a_card_has_the_date_of_the_override(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, {79: "keep", 0: "drop"})
    for row in (79, 0):
        assert "2026-01-01T00:00:00+00:00" in text_of(describe(source, row, _HERE))


def test_hostile_class_names_arrive_as_text(source: Source) -> None:
    legend = draw(source, _HERE, "class")["legend"]
    # Strings among the children: React shows them as they are.
    assert [entry.children[1] for entry in legend] == list(CLASS_NAMES)
    assert [entry.children[2].children for entry in legend] == [" 20"] * 4


def test_missing_artifacts_name_the_command_to_run(source: Source) -> None:
    map_controls = MapControls(network="resnet34")
    answer = draw(source, map_controls, "class")
    for said in (
        answer["problem"],
        describe(source, 3, map_controls),
        draw_comparison(source, _HERE, map_controls)["differences"],
    ):
        assert f"{source.data.points('resnet34')}: " in text_of(said)
    assert answer["plotted"] is None
    assert len(answer["drawing"]["figure"].data) == 2
    assert hover(source, event_at(0), map_controls, None)[0] is False


def test_a_project_without_artifacts_names_the_command_to_run(tmp_path: Any) -> None:
    answer = draw(Source(DataPaths(root=tmp_path)), _HERE, "class")
    assert str(tmp_path) in text_of(answer["problem"])


def test_two_settings_are_compared_on_both_maps(data: DataPaths, source: Source) -> None:
    write_network(data, "resnet34", dropped=10)
    other = MapControls(network="resnet34")
    legend = draw(source, _HERE, "class", other=other)["legend"]
    assert [(entry.children[1], entry.children[2].children) for entry in legend] == [
        ("both keep", " 70"), ("only B drops", " 4"), ("both drop", " 6"),
    ]  # fmt: skip
    answer = draw_comparison(source, _HERE, other)
    assert re.findall(r"[\d.]*\d", answer["differences"].children) == ["6", "10", "6", "0.600"]
    assert sorted(drawn_rows(answer["drawing"])) == list(range(N_TRAIN))
    assert answer["drawing"]["coordinates"].startswith("/coordinates?generation=resnet34+")


def test_a_selection_is_marked_on_the_other_map_and_after_redraws(data: DataPaths, source: Source) -> None:
    write_network(data, "resnet34")
    other = MapControls(network="resnet34")
    narrowed = MapControls(network=NETWORK, classes=[2, 3])
    drawings = [
        draw_comparison(source, _HERE, other, selected=[3, 70])["drawing"],
        draw(source, _HERE, "class", selected=[3, 70])["drawing"],
        draw(source, narrowed, "class", selected=[3, 70])["drawing"],
    ]
    for drawing in drawings:
        marks = drawing["figure"].data[POINTS].selectedpoints
        assert set(drawn_rows(drawing)[list(marks)]) == {3, 70}
    revisions = [drawing["figure"].layout.selectionrevision for drawing in drawings[1:]]
    assert len(set(revisions)) == 2, "places are other images"
    # The same by patches.
    shown = draw(source, _HERE, "class")
    patch = patched(draw(source, narrowed, "class", selected=[3, 70], plotted=shown["plotted"])["drawing"])
    assert set(drawn_rows(patch)[patch["marks"]["points"]]) == {3, 70}
    assert patch["marks"]["revision"] == revisions[1]
    marks = patched(mark_selected(source, _HERE, [3, 70], None))["marks"]["points"]
    assert set(drawn_rows(drawings[0])[marks]) == {3, 70}
    assert patched(mark_selected(source, _HERE, [], None))["marks"]["points"] is None
    assert shown["drawing"]["figure"].data[POINTS].selectedpoints is None


def test_the_chosen_image_has_a_ring_on_both_maps(source: Source, points: Points) -> None:
    ring = draw_comparison(source, _HERE, MapControls(network=NETWORK), focus=5)["drawing"]["figure"].data[RING]
    assert (ring.x[0], ring.y[0]) == tuple(points.coordinates[5])


def test_nothing_is_compared_without_second_settings() -> None:
    rule = settings_to_json(FilterSettings())
    assert parse_comparison("compare", NETWORK, rule) == MapControls(network=NETWORK, settings_json=rule)
    assert parse_comparison("compare", NETWORK, None) is parse_comparison("explore", NETWORK, rule) is None


def test_networks_of_other_images_are_not_compared(
    data: DataPaths, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_network(data, "resnet34")
    real = source.points

    def replaced_between(network: str) -> Points:
        points = real(network)
        write_prepared(data)
        return points

    monkeypatch.setattr(source, "points", replaced_between)
    other = MapControls(network="resnet34")
    assert "reload the page" in text_of(draw_comparison(source, _HERE, other)["differences"])


def test_an_error_of_the_second_map_leaves_the_first(source: Source) -> None:
    other = MapControls(network="resnet34")  # without files
    assert draw_comparison(source, _HERE, other)["plotted"] is None
    answer, alone = draw(source, _HERE, "class", other=other), draw(source, _HERE, "class")
    assert (answer["problem"], answer["plotted"]) == (None, alone["plotted"])
    assert text_of(answer["legend"]) == text_of(alone["legend"])


def test_images_of_another_run_of_prepare_are_noticed(data: DataPaths, source: Source) -> None:
    draw(source, _HERE, "class")
    write_array(data.images("train"), np.zeros((79, 8, 8, 3), dtype=np.uint8))
    said = text_of(draw(source, _HERE, "class")["problem"])
    assert f"{source.data.points(NETWORK)}: " in said
