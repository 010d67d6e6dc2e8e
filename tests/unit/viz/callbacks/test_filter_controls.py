import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dash import no_update
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.files import read_json, write_json
from pipeline.paths import DataPaths
from pipeline.scoring import density
from tests.fixtures.projects import NETWORK
from tests.fixtures.records import record
from tests.fixtures.report import CLASS_NAMES, EPS, write_network
from tests.fixtures.view import points_of, source_of, text_of
from viz import values
from viz.callbacks.compare_controls import settings_b
from viz.callbacks.filter_controls import adjust, changed_settings
from viz.callbacks.summary import summarize
from viz.data import Points, Source
from viz.filter_settings import AS_FILTERED, MAX_MIN_SAMPLES, FilterSettings, Limit
from viz.layout import ALL
from viz.state import make_map_state, settings_from_json, settings_to_json


def _opened(source: Source, link: str = "") -> dict[str, Any]:
    return adjust(source, NETWORK, None, ALL, None, None, link=link)


def test_controls_start_with_the_settings_of_the_filter(source: Source) -> None:
    answer = _opened(source)
    assert (answer["scorer"], answer["threshold"], answer["min_samples"]) == (AS_FILTERED, EPS, 5)
    assert answer["share"] == pytest.approx(100 * 6 / 80)
    assert 0 < answer["min"] == answer["step"] <= EPS
    assert answer["max"] >= 2 * EPS
    assert 100 < answer["max"] / answer["step"] < 10_000


def test_a_link_sets_the_settings(source: Source) -> None:
    answer = _opened(source, "?scorer=dbscan&threshold=0.3&min_samples=7")
    assert settings_from_json(answer["settings"]) == FilterSettings(
        scorer_choice="dbscan", limit=Limit(threshold=0.3, min_samples=7)
    )
    assert (answer["scorer"], answer["threshold"], answer["min_samples"]) == ("dbscan", 0.3, 7)


@pytest.mark.parametrize("query", ["scorer=nobody", "threshold=-1", "threshold=inf", "min_samples=2.5", "per_class=a"])
def test_invalid_settings_in_the_link_give_those_of_the_filter(source: Source, query: str) -> None:
    answer = _opened(source, f"?{query}")
    assert answer["settings"] == _opened(source)["settings"]
    assert answer["used"] != _opened(source)["used"]
    moved = adjust(source, NETWORK, answer["settings"], ALL, "threshold", 0.5, link=f"?{query}")
    assert settings_from_json(moved["settings"]).limit.threshold == 0.5


def test_a_linked_scorer_without_inputs_gives_the_filters(data: DataPaths) -> None:
    data.components(NETWORK).unlink()
    answer = _opened(Source(data), "?scorer=dbscan-components")
    assert answer["scorer"] == AS_FILTERED
    assert f"{data.components(NETWORK)}: " in answer["used"]


def test_a_filter_with_more_min_samples_than_the_page_allows_opens(points: Points) -> None:
    many = replace(points, scorer={"name": "dbscan", "space": "embedding", "min_samples": MAX_MIN_SAMPLES + 1})
    answer = _opened(source_of(many))
    assert (answer["threshold"], answer["min_samples"]) == (EPS, MAX_MIN_SAMPLES)
    assert settings_from_json(answer["settings"]).limit.min_samples == MAX_MIN_SAMPLES


@given(threshold=st.floats(1e-100, 1e100), values=st.sampled_from([0.0, 1e-90, 1.0, 1e90, np.inf]))
def test_sliders_have_a_range_for_every_threshold(threshold: float, values: float) -> None:
    points = points_of(np.zeros((8, 2)), np.zeros(8, dtype=np.int64), values=np.full(8, values))
    settings_json = settings_to_json(FilterSettings(limit=Limit(threshold=threshold)))
    answer = adjust(source_of(points), "made-up", settings_json, ALL, None, None)
    assert 0 < answer["min"] == answer["step"] < answer["max"] < np.inf
    assert threshold <= answer["max"]


@pytest.mark.parametrize("scorer_choice", [AS_FILTERED, "dbscan", "dbscan-components", "centroid", "margin"])
@pytest.mark.parametrize("label", [None, 2])
def test_the_requested_share_is_dropped(source: Source, points: Points, scorer_choice: str, label: int | None) -> None:
    settings = changed_settings(source, points, FilterSettings(scorer_choice=scorer_choice), label, "share", 15.0)
    preview = make_map_state(source, NETWORK, settings_to_json(settings)).preview
    rows = points.labels == label if label is not None else np.ones(80, dtype=bool)
    # Neighbors often have one release radius, and margins repeat.
    suspicion = np.round(preview.values[rows], 6)
    in_reach = [abs((suspicion > value).sum() - 0.15 * rows.sum()) for value in suspicion]
    assert abs(preview.noise[rows].sum() - 0.15 * rows.sum()) == min(in_reach)


def test_settings_of_a_class_do_not_change_other_classes(source: Source, points: Points) -> None:
    settings = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.5))
    settings_json = adjust(source, NETWORK, settings_to_json(settings), 2, "threshold", 0.01)["settings"]
    settings_json = adjust(source, NETWORK, settings_json, 2, "min_samples", 2)["settings"]
    before, after = (
        make_map_state(source, NETWORK, one).preview.noise for one in (settings_to_json(settings), settings_json)
    )
    of_class = points.labels == 2
    np.testing.assert_array_equal(before[~of_class], after[~of_class])
    assert after[of_class].all()
    assert settings_from_json(settings_json).per_class == {2: Limit(threshold=0.01, min_samples=2)}


def test_settings_of_all_classes_remove_those_of_single_classes(source: Source, points: Points) -> None:
    settings = FilterSettings(scorer_choice="dbscan", per_class={1: Limit(threshold=0.01, min_samples=30)})
    after = changed_settings(source, points, settings, None, "share", 10.0)
    assert after.per_class == {}
    assert make_map_state(source, NETWORK, settings_to_json(after)).preview.noise.sum() == 8


def test_reset_gives_the_settings_of_the_filter(source: Source) -> None:
    settings_json = settings_to_json(FilterSettings(scorer_choice="margin", per_class={1: Limit(threshold=3.0)}))
    answer = adjust(source, NETWORK, settings_json, ALL, "reset", 1)
    assert answer["settings"] == _opened(source)["settings"]


def test_a_threshold_does_not_carry_over_to_another_network(data: DataPaths, source: Source) -> None:
    write_network(data, "resnet34")
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=9.0, min_samples=7)))
    settings = settings_from_json(adjust(source, "resnet34", settings_json, ALL, "network", "resnet34")["settings"])
    assert settings == FilterSettings(scorer_choice="dbscan", limit=Limit(min_samples=7))


def test_controls_of_a_network_without_artifacts_are_blank(source: Source) -> None:
    settings_json = settings_to_json(
        FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=9.0), per_class={1: Limit(threshold=2.0)})
    )
    answer = adjust(source, "resnet34", settings_json, ALL, "network", "resnet34")
    assert (answer["threshold"], answer["share"], answer["unit"]) == (None, None, "Threshold")
    assert settings_from_json(answer["settings"]) == FilterSettings(scorer_choice="dbscan")
    assert f"{source.data.points('resnet34')}: " in answer["used"]


def test_a_scorer_without_inputs_changes_nothing_but_an_error(source: Source) -> None:
    answer = adjust(source, NETWORK, _opened(source)["settings"], ALL, "scorer", "knn_agreement")
    assert answer["used"] != _opened(source)["used"]
    assert answer["settings"] is no_update
    assert answer["scorer"] == AS_FILTERED


def test_the_table_counts_dropped_images_next_to_the_filter(source: Source) -> None:
    settings_json = settings_to_json(FilterSettings(limit=Limit(threshold=3.1)))
    n_dropped = int((~make_map_state(source, NETWORK, settings_json).preview.keep).sum())
    _, table = summarize(source, NETWORK, settings_json, ALL)
    _, _, body = table.children
    rows = [[cell.children for cell in row.children] for row in body.children]
    assert rows[0] == ["all", "80", f"{n_dropped / 80:.1%}", str(80 - n_dropped), "74", "3.1"]
    assert [row[0] for row in rows[1:]] == list(CLASS_NAMES)
    assert sum(int(row[3]) for row in rows[1:]) == 80 - n_dropped


@pytest.mark.parametrize(("dataset", "shown"), [("cifar10", True), ("digits", False), (None, False)])
def test_the_paper_is_quoted_next_to_its_data_alone(data: DataPaths, dataset: str | None, shown: bool) -> None:
    write_json(data.prepare_metrics, read_json(data.prepare_metrics) | ({"dataset": dataset} if dataset else {}))
    record(data, "prepare")
    table = summarize(Source(data), NETWORK, None, ALL)[1]
    assert ("6.21%" in text_of(table)) == shown


def test_the_table_has_the_thresholds_of_classes(source: Source) -> None:
    _, table = summarize(source, NETWORK, settings_to_json(FilterSettings(per_class={1: Limit(threshold=9.25)})), 1)
    limits = [row.children[-1].children for row in table.children[2].children]
    assert limits == ["1.5", "1.5", "9.25", "1.5", "1.5"]


def test_the_curve_shows_k_distances_and_the_threshold(source: Source, points: Points) -> None:
    settings = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.7, min_samples=3))
    for scope, rows in ((ALL, slice(None)), (2, points.labels == 2)):
        figure, _ = summarize(source, NETWORK, settings_to_json(settings), scope)
        by_class = [
            density.core_distances(points.coordinates[rows][points.labels[rows] == label], 3)
            for label in np.unique(points.labels[rows])
        ]
        np.testing.assert_allclose(figure.data[0].y, np.sort(np.concatenate(by_class)))
        assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == 0.7


def test_the_controls_of_a_class_without_images_are_those_of_all() -> None:
    points = points_of(np.zeros((4, 2)), np.array([0, 0, 2, 2]), n_classes=4)
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan"))
    assert adjust(source_of(points), "made-up", settings_json, 3, "share", 5.0)["scope"] == ALL
    assert summarize(source_of(points), "made-up", settings_json, 3)[1] is not None


def test_without_artifacts_the_controls_do_not_change(source: Source) -> None:
    answer = adjust(source, "resnet34", None, ALL, None, None)
    assert f"{source.data.points('resnet34')}: " in answer["used"]
    assert answer["settings"] is no_update
    curve, table = summarize(source, "resnet34", None, ALL)
    assert not any(len(trace.x) for trace in curve.data)
    assert table is None


def test_radii_are_computed_once_for_each_min_samples(
    data: DataPaths, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    real = density.release_radii_by_class

    def counted(points: Any, labels: Any, *, min_samples: int, map_fn: Any) -> Any:
        computed.append(min_samples)
        return real(points, labels, min_samples=min_samples, map_fn=map_fn)

    monkeypatch.setattr(values, "release_radii_by_class", counted)
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan"))
    for min_samples in (3, 4):
        for threshold in (0.1, 0.2, 0.3):
            settings_json = adjust(source, NETWORK, settings_json, ALL, "min_samples", min_samples)["settings"]
            settings_json = adjust(source, NETWORK, settings_json, ALL, "threshold", threshold)["settings"]
            summarize(source, NETWORK, settings_json, ALL)
    assert sorted(computed) == [3, 4]
    write_network(data, NETWORK, seed=1)
    summarize(source, NETWORK, settings_json, ALL)
    assert sorted(computed) == [3, 4, 4], "files replaced by a stage are read again"


def test_the_second_settings_drop_their_share(source: Source) -> None:
    settings_json = settings_b(source, "compare", NETWORK, "dbscan", 10.0, 4)["settings"]
    assert make_map_state(source, NETWORK, settings_json).preview.noise.sum() == 8
    assert settings_b(source, "explore", NETWORK, "dbscan", 10.0, 4)["settings"] is None, "nobody looks at it"
    as_written = settings_b(source, "compare", NETWORK, AS_FILTERED, 7.5, 5)["settings"]
    np.testing.assert_array_equal(
        make_map_state(source, NETWORK, as_written).preview.noise, source.points(NETWORK).is_noise
    )


def test_hostile_class_names_are_text(source: Source) -> None:
    table = summarize(source, NETWORK, None, ALL)[1]
    assert CLASS_NAMES[0] in json.loads(json.dumps(text_of(table)))
    assert source.classes() == list(enumerate(CLASS_NAMES))


def test_the_curve_of_a_dbscan_filter_shows_k_distances(source: Source, points: Points) -> None:
    figure, _ = summarize(source, NETWORK, None, ALL)
    by_class = [density.core_distances(points.coordinates[points.labels == label], 5) for label in range(4)]
    np.testing.assert_allclose(figure.data[0].y, np.sort(np.concatenate(by_class)))
    answer = adjust(source, NETWORK, None, ALL, None, None)
    assert (answer["unit"], answer["no_min_samples"]) == ("eps (units of the embedding)", True)
