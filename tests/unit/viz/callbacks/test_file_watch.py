"""The notice about new files says what the filter has changed."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from tests.fixtures.dash_components import text_of
from tests.fixtures.projects import NETWORK
from tests.fixtures.records import record
from viz.callbacks.embedding import MapControls, draw
from viz.callbacks.file_watch import filter_changes, update_notice
from viz.data import Points, Source


def _write_kept(data: DataPaths, kept: NDArray[np.bool_]) -> None:
    table = read_parquet(data.points(NETWORK))
    index = table.column_names.index("keep")
    write_parquet(data.points(NETWORK), table.set_column(index, "keep", pa.array(kept)))
    record(data, "filter", NETWORK)


def test_a_filter_that_ran_again_is_compared_with_the_one_shown(
    data: DataPaths, source: Source, points: Points
) -> None:
    plotted = draw(source, MapControls(network=NETWORK), "class")["plotted"]
    assert update_notice(source, NETWORK, plotted) is None
    kept = points.kept.copy()
    kept[:3] = False
    kept[np.flatnonzero(~points.kept)[:2]] = True
    _write_kept(data, kept)
    text = text_of(update_notice(source, NETWORK, plotted))
    assert re.findall(r"\d+", text) == ["7", "6", "3", "2"]
    # The page that shows the new files has nothing new.
    plotted = draw(source, MapControls(network=NETWORK), "class")["plotted"]
    assert update_notice(source, NETWORK, plotted) is None


def test_other_images_and_forgotten_files_are_not_compared(data: DataPaths, source: Source, points: Points) -> None:
    assert filter_changes(source, points.generation, points)
    others = replace(points, sha256=pa.chunked_array([["x"] * len(points)]))
    assert filter_changes(source, points.generation, others) == ""
    for number in range(10):
        _write_kept(data, np.arange(len(points)) > number)
        source.points(NETWORK)
    assert filter_changes(source, points.generation, points) == ""
