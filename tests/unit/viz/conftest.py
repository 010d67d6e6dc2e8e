"""Fixtures that the tests of the visualizer share. Tests of other artifacts override `data` or `source`."""

from pathlib import Path

import pytest

from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK
from tests.fixtures.view import view_data
from viz.data import Points, Source


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    """Finished artifacts of `NETWORK`, with the inputs of all scorers."""
    return view_data(tmp_path)


@pytest.fixture
def source(data: DataPaths) -> Source:
    return Source(data)


@pytest.fixture
def points(source: Source) -> Points:
    return source.points(NETWORK)
