"""Which list the gallery shows after a selection, and in a comparison."""

import numpy as np
import pytest
from dash import no_update

from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK
from tests.fixtures.report import write_network
from viz.callbacks.embedding import MapControls
from viz.callbacks.gallery import list_after_selection
from viz.data import Source
from viz.filter_settings import FilterSettings, Limit
from viz.gallery import listed_rows
from viz.layout import COMPARING_LISTS, LISTS
from viz.state import settings_to_json


@pytest.mark.parametrize("before", ["dropped", "hand", "shown"])
def test_after_a_selection_is_removed_the_list_before_it_returns(before: str) -> None:
    shown, stored = list_after_selection([3, 4], before, None)
    assert (shown, stored) == ("selection", before)
    # Another lasso does not forget it.
    assert list_after_selection([5], "selection", stored) == ("selection", before)
    assert list_after_selection([], "selection", stored)[0] == before


def test_a_list_chosen_meanwhile_stays() -> None:
    assert list_after_selection([], "hand", "dropped") == (no_update, None)
    assert list_after_selection([], "selection", None)[0] == "dropped", "a link opened the list"


def test_two_scorers_of_one_network_list_the_images_that_differ(source: Source) -> None:
    other = MapControls(network=NETWORK, settings_json=settings_to_json(FilterSettings(limit=Limit(threshold=3.1))))
    a, b = MapControls(network=NETWORK).state(source), other.state(source)
    differ = listed_rows(a, "differ", "suspect", other=b).tolist()
    assert sorted(differ) == np.flatnonzero(a.preview.keep != b.preview.keep).tolist() != []
    assert "differ" in LISTS
    assert "differ" in COMPARING_LISTS


def test_two_networks_list_the_images_that_differ(data: DataPaths, source: Source) -> None:
    write_network(data, "resnet34", dropped=10)
    a, b = (MapControls(network=network).state(source) for network in (NETWORK, "resnet34"))
    assert len(listed_rows(a, "differ", "suspect", other=b)) == 4
    assert len(listed_rows(a, "differ", "suspect")) == 0
