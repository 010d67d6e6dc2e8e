import csv
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK
from tests.fixtures.report import CLASS_NAMES, write_network
from tests.fixtures.view import decide, points_of, rows_of, source_of, text_of
from viz.callbacks.embedding import MapControls
from viz.callbacks.gallery import PAGE, as_csv, browse
from viz.data import Points, Source
from viz.filter_settings import FilterSettings, Limit
from viz.gallery import listed_rows
from viz.layout import LISTS, SORTS
from viz.state import COLUMNS, settings_to_json

_HERE = MapControls(network=NETWORK)


@given(
    n=st.integers(1, 300),
    threshold=st.floats(0.1, 1),
    which=st.sampled_from(sorted(LISTS)),
    order=st.sampled_from(sorted(SORTS)),
    selection=st.lists(st.integers(-5, 400)),
    data=st.data(),
)
def test_pages_partition_the_list(
    n: int, threshold: float, which: str, order: str, selection: list[int], data: st.DataObject
) -> None:
    rng = np.random.default_rng(n)
    points = points_of(
        np.zeros((n, 2)), rng.integers(0, 3, n), values=rng.random(n), thresholds=np.full(n, 0.5), n_classes=3
    )
    by_hand = dict.fromkeys(data.draw(st.lists(st.integers(0, n - 1), max_size=5)), "drop")
    source = source_of(points, by_hand)
    map_controls = MapControls(network="made-up", classes=data.draw(st.sampled_from([[], [1], [0, 2]])), scores=[0, 1])
    other = MapControls(
        network="made-up", settings_json=settings_to_json(FilterSettings(limit=Limit(threshold=threshold)))
    )
    expected = listed_rows(
        map_controls.state(source), which, order, selection=selection, other=other.state(source)
    ).tolist()
    found: list[int] = []
    for page in range(100):
        answer = browse(source, map_controls, which, order, page, selection=selection, other=other)
        assert (answer["page"], answer["previous"]) == (page, page == 0)
        found += rows_of(answer["grid"]) if expected else []
        assert len(found) == min(len(expected), PAGE * (page + 1))
        if answer["next"]:
            break
    assert found == expected
    assert len(set(found)) == len(found)
    assert re.findall(r"\d+", answer["place"]) == [str(len(expected)), str(page + 1), str(page + 1)]


def test_lists_have_the_rows_of_their_names(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, {79: "keep", 3: "drop"})
    state = _HERE.state(source)
    assert listed_rows(state, "dropped", "suspect").tolist() == [78, 77, 76, 75, 74, 3]
    assert listed_rows(state, "dropped", "least_suspect").tolist() == [3, 74, 75, 76, 77, 78]
    assert listed_rows(state, "hand", "suspect").tolist() == [79, 3]
    assert listed_rows(state, "selection", "class", selection=[6, 5, 4, 999]).tolist() == [4, 5, 6]
    assert listed_rows(state, "shown", "most_confident")[0] == 79
    assert len(listed_rows(state, "shown", "most_confident")) == 80
    for comparing in ("a", "b", "both"):
        assert len(listed_rows(state, comparing, "suspect")) == 0


def test_lists_respect_the_filters(source: Source, points: Points) -> None:
    map_controls = MapControls(network=NETWORK, classes=[1], scores=[0, 0.5])
    state = map_controls.state(source)
    assert listed_rows(state, "dropped", "suspect").tolist() == []
    for which in ("shown", "selection"):
        rows = listed_rows(state, which, "suspect", selection=range(80))
        assert set(points.labels[rows]) == {1}
        assert (points.scores[rows] <= 0.5).all()


def test_lists_compare_two_settings(data: DataPaths, source: Source) -> None:
    write_network(data, "resnet34", dropped=10)
    other = MapControls(network="resnet34")
    counts = {}
    for which in ("a", "b", "both"):
        answer = browse(source, _HERE, which, "suspect", 0, other=other)
        counts[which] = int(str(answer["place"]).split()[0])
        saved = as_csv(source, _HERE, which, "suspect", other=other)
        assert saved["content"].count("\n") == counts[which] + 1
    assert counts == {"a": 0, "b": 4, "both": 6}


@pytest.mark.parametrize(("page", "expected"), [(-1, 0), (0, 0), (1, 1), (2, 1), (10**9, 1)])
def test_page_numbers_out_of_range_give_the_nearest_page(source: Source, page: int, expected: int) -> None:
    assert browse(source, _HERE, "shown", "suspect", page)["page"] == expected


def test_an_empty_list_has_no_other_page(source: Source) -> None:
    for which in ("selection", "hand", "a"):
        answer = browse(source, _HERE, which, "suspect", 0)
        assert answer["previous"] is answer["next"] is True


def test_the_csv_file_has_all_pages_in_order(source: Source, points: Points) -> None:
    saved = as_csv(source, _HERE, "shown", "least_suspect")
    assert saved["filename"] == "resnet18-shown.csv"
    lines = list(csv.DictReader(io.StringIO(saved["content"])))
    assert tuple(lines[0]) == COLUMNS
    assert [line["sha256"] for line in lines] == points.sha256.to_pylist()
    assert [line["keep"] for line in lines] == ["true"] * 74 + ["false"] * 6


def test_hostile_class_names_are_text_under_images(source: Source) -> None:
    tiles = browse(source, _HERE, "shown", "class", 0)["grid"]
    assert tiles[0].children[1].children == CLASS_NAMES[0]
    assert tiles[0].children[0].alt == f"image 0: {CLASS_NAMES[0]}"


def test_missing_artifacts_name_the_command_to_run(source: Source) -> None:
    answer = browse(source, MapControls(network="resnet34"), "dropped", "suspect", 0)
    with pytest.raises(InputError) as refused:
        as_csv(source, MapControls(network="resnet34"), "dropped", "suspect")
    assert refused.value.key == str(source.data.points("resnet34"))
    assert str(refused.value) in text_of(answer["grid"])


def test_a_list_without_a_shown_image_says_which_is_the_reason(data: DataPaths, source: Source, points: Points) -> None:
    decide(data, points, {3: "keep"})
    nothing = MapControls(network=NETWORK, search="no image has this text")
    for which in ("dropped", "hand", "shown"):
        assert "passes the filters" in text_of(browse(source, nothing, which, "suspect", 0)["grid"])
    assert "passes the filters" in text_of(browse(source, nothing, "selection", "suspect", 0, selection=[1])["grid"])
    assert "Nothing is selected" in text_of(browse(source, nothing, "selection", "suspect", 0)["grid"])
    assert "No label was changed" in text_of(browse(source, nothing, "planted", "suspect", 0)["grid"])


def test_one_image_is_counted_as_one(source: Source, points: Points) -> None:
    path = points.paths[3].as_py().rpartition("/")[2]
    one = browse(source, MapControls(network=NETWORK, search=f"path:/{path}"), "shown", "suspect", 0)
    assert one["place"] == "1 image, page 1 of 1"


def test_the_csv_file_of_a_timm_network_has_a_name_without_a_slash(data: DataPaths, source: Source) -> None:
    write_network(data, "timm/resnet10t")
    saved = as_csv(source, MapControls(network="timm/resnet10t"), "dropped", "suspect")
    assert saved["filename"] == "timm-resnet10t-dropped.csv"
