"""The view Review: the list, what is decided of it, the image to show, and the decisions so far."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from dash import no_update
from hypothesis import given
from hypothesis import strategies as st

from pipeline.paths import DataPaths
from tests.fixtures.dash_components import text_of as plain_text
from tests.fixtures.projects import NETWORK
from tests.fixtures.view import decide, points_of, rows_of, source_of, text_of
from viz.callbacks.embedding import MapControls
from viz.callbacks.overrides import OverrideSessions, run_command
from viz.callbacks.review import review
from viz.data import Points, Source
from viz.filter_settings import FilterSettings, Limit
from viz.review import decision_list, review_queue
from viz.state import settings_to_json

_HERE = MapControls(network=NETWORK)


def _rows(source: Source, focus: int | None = None, which: str = "dropped") -> dict[str, Any]:
    answer: dict[str, Any] = review(source, _HERE, which, "suspect", focus)["queue"]
    return answer


def test_a_decision_removes_no_image_from_the_list(data: DataPaths, source: Source, points: Points) -> None:
    before = _rows(source)
    assert (before["row"], before["window"]) == (79, [79, 78, 77, 76, 75, 74])
    decide(data, points, {79: "keep", 78: "drop", 3: "drop"})
    after = _rows(source)
    assert after["window"] == before["window"]
    assert (after["row"], after["undecided"]) == (77, [77, 76, 75, 74])


def test_the_progress_counts_the_decided_images_of_the_list(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, {79: "keep", 78: "drop", 3: "drop"})
    assert "2 of 6 reviewed" in plain_text(review(source, _HERE, "dropped", "suspect", None)["view"])
    assert "3 of 3 reviewed" in plain_text(review(source, _HERE, "hand", "suspect", None)["view"])


def test_the_chosen_image_is_shown_also_if_it_is_decided(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, {79: "keep"})
    assert (_rows(source, 79)["row"], _rows(source, 76)["row"]) == (79, 76)
    # It is the first, as it is undecided; those before it come last.
    assert _rows(source, 76)["undecided"] == [76, 75, 74, 78, 77]


def test_an_image_of_another_list_is_not_shown(source: Source) -> None:
    rows = _rows(source, 3)
    assert (rows["asked"], rows["row"]) == (3, 79)


def test_the_shown_image_has_its_text_and_labeled_neighbors(source: Source, points: Points) -> None:
    view = review(source, _HERE, "dropped", "suspect", 78)["view"]
    text = text_of(view)
    assert f"/thumbnail/78.png?{points.images_stamp}" in text
    assert "label: " in text
    assert points.reasons[78].as_py() in plain_text(view)
    assert rows_of(view[-1].children) == points.neighbors[78].tolist()
    assert [tile.children[1].children for tile in view[-1].children] == [
        points.name(row) for row in points.neighbors[78]
    ]


def test_an_empty_list_says_so(source: Source) -> None:
    answer = review(source, _HERE, "hand", "suspect", None)
    assert (answer["queue"]["row"], answer["queue"]["undecided"]) == (None, [])
    assert "no image" in plain_text(answer["view"])


@pytest.mark.slow
@given(
    n=st.integers(1, 150),
    decided=st.sets(st.integers(0, 149)),
    focus=st.none() | st.integers(0, 149),
)
def test_every_undecided_image_of_the_list_is_reached(n: int, decided: set[int], focus: int | None) -> None:
    points = points_of(np.zeros((n, 2)), np.zeros(n, dtype=np.int64), values=np.full(n, 2.0))
    by_hand = {row: "keep" for row in decided if row < n}
    reached: list[int] = []
    while True:
        state = MapControls(network="made-up").state(source_of(points, by_hand))
        queue = review_queue(state, "dropped", "suspect", focus)
        with mock.patch("viz.review.KNOWN_ROWS", 60):
            following, window = queue.undecided(), queue.window()
        assert len(following) <= 60
        assert len(window) <= 121
        assert queue.row in window
        if queue.row is not None and queue.row not in by_hand:
            by_hand[queue.row] = "drop"
            reached.append(queue.row)
        following = [row for row in following if row != queue.row]
        if not following:
            break
        focus = following[0]
    assert sorted(reached) == [row for row in range(n) if row not in decided]


def test_decisions_are_listed_the_newest_first(data: DataPaths, source: Source, points: Points) -> None:
    sessions = OverrideSessions(data.overrides)
    command = {"page": "p", "generation": points.generation, "note": ""}
    for row, action in ((79, "keep"), (3, "drop")):
        run_command(source, sessions, {**command, "action": action, "rows": [row]})
    lines = decision_list(_HERE.state(source))
    assert "Decisions: 2" in plain_text(lines[0])
    # Of one second: by their place in the file.
    assert [_row_of(line) for line in lines[1:]] == [3, 79]


def _row_of(line: Any) -> int:
    """Return the row that the button of a decision undoes."""
    return int(line.children[-1].to_plotly_json()["props"]["data-row"])


def test_every_decision_is_on_one_page_of_the_list(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, dict.fromkeys(range(41), "keep"))
    before, found = None, []
    with mock.patch("viz.review.MAX_LISTED", 20):
        for page in range(3):
            answer = review(source, _HERE, "dropped", "suspect", None, before=before, page=page)
            before = answer["queue"]
            heading, pages, *listed = answer["decisions"]
            assert plain_text(heading) == "Decisions: 41"
            assert f"page {page + 1} of 3" in plain_text(pages)
            found.append([_row_of(line) for line in listed])
        # A page that does not exist any more.
        assert plain_text(decision_list(_HERE.state(source), 7)) == plain_text(answer["decisions"])
    assert [len(rows) for rows in found] == [20, 20, 1]
    assert sorted(row for rows in found for row in rows) == list(range(41))
    # Few decisions have no pages.
    assert len(decision_list(_HERE.state(source))) == 1 + 41


def test_the_decisions_are_sent_again_only_after_a_change(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, {79: "keep"})

    def answered(focus: int, before: Any, threshold: float | None = None) -> dict[str, Any]:
        settings = settings_to_json(FilterSettings(limit=Limit(threshold=threshold)))
        controls = MapControls(network=NETWORK, settings_json=settings)
        answer: dict[str, Any] = review(source, controls, "dropped", "suspect", focus, before=before)
        return answer

    first = answered(79, None)
    assert "Decisions: 1" in plain_text(first["decisions"])
    moved = answered(78, first["queue"])
    assert moved["decisions"] is no_update
    assert moved["queue"]["row"] == 78
    # The frames show what the settings drop.
    assert "Decisions: 1" in plain_text(answered(78, moved["queue"], threshold=0.2)["decisions"])
    decide(data, points, {79: "keep", 78: "drop"})
    assert "Decisions: 2" in plain_text(answered(78, moved["queue"])["decisions"])


def test_a_command_undoes_any_decision(data: DataPaths, source: Source, points: Points) -> None:
    sessions = OverrideSessions(data.overrides)
    command = {"page": "p", "generation": points.generation, "note": ""}
    for row in (79, 78, 77):
        run_command(source, sessions, {**command, "action": "keep", "rows": [row]})
    done = run_command(source, sessions, {**command, "action": "undo-image", "rows": [78]})
    assert not done.failed
    assert sorted(source.overrides(points)) == [77, 79]
    for rows in ([], [78, 79], None, [10**6]):
        assert run_command(source, sessions, {**command, "action": "undo-image", "rows": rows}).failed
    stale = {**command, "generation": "resnet18 old"}
    assert run_command(source, sessions, {**stale, "action": "undo-image", "rows": [79]}).failed


def test_missing_artifacts_name_the_command_to_run(source: Source) -> None:
    answer = review(source, MapControls(network="resnet34"), "dropped", "suspect", None)
    assert "dvc repro" in plain_text(answer["view"])
    assert answer["queue"] is None


def test_search_and_classes_narrow_the_list(source: Source, points: Points) -> None:
    narrowed = MapControls(network=NETWORK, classes=[int(points.labels[78])])
    rows = review(source, narrowed, "dropped", "suspect", None)["queue"]["window"]
    assert rows == [row for row in (79, 78, 77, 76, 75, 74) if points.labels[row] == points.labels[78]]


@pytest.mark.parametrize("focus", [-1, 10**9])
def test_a_damaged_link_shows_the_first_image(source: Source, focus: int) -> None:
    assert _rows(source, focus)["row"] == 79
