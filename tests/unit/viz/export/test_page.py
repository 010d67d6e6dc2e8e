import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.artifacts.overrides import Override
from pipeline.paths import DataPaths
from tests.fixtures.points import CLASS_NAMES, NETWORK, write_points
from viz.data import Points, Source
from viz.export import page
from viz.export.page import exported_rows, make_content
from viz.filter_settings import FilterPreview, FilterSettings, preview_filter

_N, _N_DROPPED = 40, 6


@pytest.fixture
def previewed(tmp_path: Path) -> tuple[Points, FilterPreview]:
    data = DataPaths(root=tmp_path)
    labels = np.arange(_N) % len(CLASS_NAMES)
    write_points(data, np.zeros((_N, 8, 8, 3), dtype=np.uint8), labels=labels, n_dropped=_N_DROPPED)
    source = Source(data)
    points = source.points(NETWORK)
    return points, preview_filter(source, points, FilterSettings())


def test_the_most_suspect_come_first_and_none_is_missing() -> None:
    scores = np.random.default_rng(0).random(50)
    rows = exported_rows(scores < 0.9, scores, max_rows=50)
    assert sorted(rows.tolist()) == list(range(50))
    assert (np.diff(scores[rows]) <= 0).all()


def test_beyond_the_limit_are_dropped_images_and_a_fixed_sample() -> None:
    scores = np.random.default_rng(0).random(500)
    keep = scores < 0.9
    rows = exported_rows(keep, scores, max_rows=200)
    assert len(set(rows.tolist())) == 200
    assert set(np.flatnonzero(~keep)) <= set(rows.tolist())
    assert rows.tolist() == exported_rows(keep, scores, max_rows=200).tolist()
    assert (np.diff(scores[rows]) <= 0).all()


def test_more_than_the_limit_may_be_dropped() -> None:
    keep = np.arange(30) < 5
    assert sorted(exported_rows(keep, np.zeros(30), max_rows=10).tolist()) == list(range(5, 30))


def test_columns_are_those_of_the_points(previewed: tuple[Points, FilterPreview]) -> None:
    points, preview = previewed
    columns = {name: gzip.decompress(packed) for name, packed in make_content(points, preview, {}).columns.items()}
    rows = np.argsort(-preview.scores, kind="stable")
    assert np.frombuffer(columns["sample_id"], "<i4").tolist() == rows.tolist()
    np.testing.assert_array_equal(np.frombuffer(columns["score"], "<f8"), preview.scores[rows])
    np.testing.assert_array_equal(np.frombuffer(columns["x"], "<f4"), points.coordinates[rows, 0])
    assert json.loads(columns["path"]) == [points.paths[row].as_py() for row in rows.tolist()]
    assert columns["sha256"].hex() == "".join(points.sha256[row].as_py() for row in rows.tolist())
    neighbors = np.frombuffer(columns["neighbours"], "<i4").reshape(_N, -1)
    np.testing.assert_array_equal(rows[neighbors], points.neighbors[rows])


def test_columns_hold_no_date(previewed: tuple[Points, FilterPreview]) -> None:
    # RFC 1952: bytes 4 to 8 are the time.
    assert {packed[4:8] for packed in make_content(*previewed, {}).columns.values()} == {bytes(4)}


def test_a_sample_lacks_some_neighbors(
    previewed: tuple[Points, FilterPreview], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MAX_SHOWN", 20)
    sampled = make_content(*previewed, {})
    neighbors = np.frombuffer(gzip.decompress(sampled.columns["neighbours"]), "<i4")
    assert (neighbors == -1).any()
    assert neighbors.max() < 20


def test_decisions_by_hand_belong_to_their_image(previewed: tuple[Points, FilterPreview]) -> None:
    override = Override(path="", sha256="", decision="keep", note="fine", timestamp="", line=2)
    about = make_content(*previewed, {_N - 1: override}).about
    assert about["byHand"] == {"0": {"decision": "keep", "label": None, "note": "fine"}}
    relabel = replace(override, decision="relabel", label="dog")
    about = make_content(*previewed, {_N - 1: relabel}).about
    assert about["byHand"] == {"0": {"decision": "relabel as dog", "label": "dog", "note": "fine"}}


def test_clusters_that_are_whole_classes_are_no_coloring(previewed: tuple[Points, FilterPreview]) -> None:
    points, preview = previewed
    offered = [coloring["key"] for coloring in make_content(points, preview, {}).about["colorings"]]
    assert "cluster" in offered
    points.clusters[:] = 0
    offered = [coloring["key"] for coloring in make_content(points, preview, {}).about["colorings"]]
    assert "cluster" not in offered
    assert "class" in offered
