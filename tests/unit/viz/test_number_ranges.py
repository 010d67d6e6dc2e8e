"""Numbers outside their range are named where they were entered, and change nothing."""

from typing import Any

import pytest
from dash import no_update

from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK
from tests.fixtures.report import write_network
from viz.callbacks.compare_controls import settings_b
from viz.callbacks.filter_controls import adjust, control_outputs
from viz.data import Source
from viz.filter_settings import FilterSettings, Limit
from viz.layout import ALL
from viz.number_ranges import RANGES, number_problem
from viz.state import settings_to_json

_BAD: dict[str, list[Any]] = {
    # The browser sends None for "abc", and for what the limits of the box exclude.
    "share": [None, -3, 400, "abc", True, float("nan")],
    "threshold": [None, -3, 0, "abc", float("inf")],
    "min_samples": [None, 0, 101, 2.5],
}


@pytest.mark.parametrize(("control", "value"), [(control, value) for control in _BAD for value in _BAD[control]])
def test_a_bad_number_is_named_and_the_settings_stay(source: Source, control: str, value: Any) -> None:
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.5)))
    answer = control_outputs(source, NETWORK, settings_json, ALL, control, value)
    assert answer["settings"] is no_update
    assert answer["number_problem"] == number_problem(control, value)
    assert RANGES[control].name in answer["number_problem"]


def test_a_good_number_removes_the_message(source: Source) -> None:
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan"))
    answer = control_outputs(source, NETWORK, settings_json, ALL, "share", 12.5)
    assert answer["number_problem"] == ""
    assert answer["settings"]["limit"]["threshold"] > 0


@pytest.mark.parametrize(
    ("share", "min_samples", "named"), [(-3, 5, "share"), (None, 5, "share"), (5, 0, "min_samples")]
)
def test_a_bad_number_of_the_second_settings_keeps_them(
    source: Source, share: Any, min_samples: Any, named: str
) -> None:
    answer = settings_b(source, "compare", NETWORK, "dbscan", share, min_samples)
    assert answer["settings"] is no_update
    assert RANGES[named].name in answer["problem"]
    assert settings_b(source, "compare", NETWORK, "dbscan", 5, 5)["problem"] == ""


def test_a_large_number_that_came_as_an_integer_is_a_float(source: Source) -> None:
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan"))
    answer = control_outputs(source, NETWORK, settings_json, ALL, "threshold", 10**20)
    assert answer["settings"]["limit"]["threshold"] == 1e20
    assert {type(answer["threshold"]), type(answer["moved"]["value"])} == {float}


def test_an_integer_with_a_decimal_point_is_an_integer(source: Source) -> None:
    settings_json = settings_to_json(FilterSettings(scorer_choice="dbscan"))
    assert (
        control_outputs(source, NETWORK, settings_json, ALL, "min_samples", 3.0)["settings"]["limit"]["min_samples"]
        == 3
    )
    assert settings_b(source, "compare", NETWORK, "dbscan", 5, 3.0)["settings"]["limit"]["min_samples"] == 3


def test_the_share_of_a_filter_that_drops_most_images_is_valid(data: DataPaths) -> None:
    write_network(data, NETWORK, dropped=60)
    answer = adjust(Source(data), NETWORK, None, ALL, None, None)
    assert answer["share"] == 75
    assert number_problem("share", answer["share"]) == ""
