"""The preview drops near duplicates as the filter does, with any settings."""

import numpy as np
import pyarrow as pa
import pytest

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.errors import InputError
from pipeline.figures.style import Groups
from pipeline.paths import DataPaths
from tests.fixtures.dash_components import text_of
from tests.fixtures.projects import NETWORK
from tests.fixtures.records import record
from tests.fixtures.view import decide
from viz.color_by import colors_by
from viz.components import point_lines
from viz.data import Source
from viz.filter_settings import FilterSettings, Limit
from viz.review import review_queue
from viz.state import make_map_state, settings_to_json

# The last 6 images are noise; scores ascend with the row.
_PAIRS = [(0, "train", 1), (2, "test", 3), (4, "train", 5), (5, "train", 6), (7, "train", -1)]
_REDUNDANT = {1, 2, 5}


def _write_pairs(data: DataPaths, rule: str | None = "drop", pairs: list[tuple[int, str, int]] = _PAIRS) -> int:
    """Write the pairs, where -1 is the last image, and the setting; return the number of images."""
    n = len(read_parquet(data.points(NETWORK), ["sample_id"]))
    columns = zip(*[(first, split, other % n) for first, split, other in pairs], strict=True)
    names = ("sample_id", "other_split", "other_sample_id")
    write_parquet(
        data.near_duplicates(NETWORK), pa.table(dict(zip(names, [list(column) for column in columns], strict=True)))
    )
    metrics = read_json(data.filter_metrics(NETWORK))
    metrics["settings"]["near_duplicates"] = rule
    write_json(data.filter_metrics(NETWORK), metrics)
    record(data, "filter", NETWORK)
    return n


def test_of_two_near_duplicates_one_stays(data: DataPaths) -> None:
    n = _write_pairs(data)
    preview = make_map_state(Source(data), NETWORK, None).preview
    assert set(np.flatnonzero(~preview.keep)) == {*_REDUNDANT, *range(n - 6, n)}
    assert preview.redundant == {1: 0, 2: n + 3, 5: 4}
    # Row 7 nearly equals one that the filter drops.
    assert preview.keep[7]


@pytest.mark.parametrize("rule", ["report", None])
def test_pairs_that_are_only_reported_change_nothing(data: DataPaths, rule: str | None) -> None:
    n = _write_pairs(data, rule)
    preview = make_map_state(Source(data), NETWORK, None).preview
    assert set(np.flatnonzero(~preview.keep)) == set(range(n - 6, n))


def test_other_settings_choose_again(data: DataPaths) -> None:
    n = _write_pairs(data)
    source = Source(data)
    # Far above all values: nothing is noise, so the pair of row 7 is of two kept images.
    settings = settings_to_json(FilterSettings(limit=Limit(threshold=1e9)))
    preview = make_map_state(source, NETWORK, settings).preview
    assert not preview.noise.any()
    assert set(np.flatnonzero(~preview.keep)) == {*_REDUNDANT, n - 1}


def test_decisions_by_hand_come_first_and_the_review_stays(data: DataPaths) -> None:
    n = _write_pairs(data)
    source = Source(data)
    before = review_queue(make_map_state(source, NETWORK, None), "dropped", "suspect", None)
    assert set(before.rows) == {*_REDUNDANT, *range(n - 6, n)}
    decide(data, source.points(NETWORK), {1: "keep", 4: "drop"})
    state = make_map_state(source, NETWORK, None)
    # 0 goes for 1; 6 or 5 stays for 4.
    assert set(np.flatnonzero(~state.preview.keep)) == {0, 2, 4, 6, *range(n - 6, n)}
    after = review_queue(state, "dropped", "suspect", None)
    assert set(after.rows) == set(before.rows)


def test_card_and_colors_say_why(data: DataPaths) -> None:
    _write_pairs(data)
    state = make_map_state(Source(data), NETWORK, None)
    assert "dropped as a near duplicate of #0" in text_of(point_lines(state, 1))
    assert "dropped as a near duplicate of a test image" in text_of(point_lines(state, 2))
    groups = colors_by("reason", state.color_data)
    assert isinstance(groups, Groups)
    assert {groups.names[code] for code in groups.codes[[1, 2, 5]]} == {"dropped: near duplicate"}
    assert groups.names[groups.codes[0]] == "kept"


@pytest.mark.parametrize("pair", [(10_000, "train", 1), (0, "train", 10_000), (-1, "test", 0)])
def test_pairs_of_unknown_images(data: DataPaths, pair: tuple[int, str, int]) -> None:
    _write_pairs(data)
    names = ("sample_id", "other_split", "other_sample_id")
    write_parquet(
        data.near_duplicates(NETWORK), pa.table({name: [value] for name, value in zip(names, pair, strict=True)})
    )
    with pytest.raises(InputError, match="unknown images"):
        Source(data).points(NETWORK)
