"""The made-up artefacts of one network, and what reads them."""

from pathlib import Path

import pytest
from made_up import NETWORK
from made_up_report import write_evidence, write_network, write_prepared

from pipeline.paths import DataPaths
from viz.data import Points, Source


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    paths = DataPaths(root=tmp_path / "data")
    write_prepared(paths)
    write_network(paths, NETWORK)
    write_evidence(paths, NETWORK)
    return paths


@pytest.fixture
def source(data: DataPaths) -> Source:
    return Source(data)


@pytest.fixture
def points(source: Source) -> Points:
    return source.points(NETWORK)
