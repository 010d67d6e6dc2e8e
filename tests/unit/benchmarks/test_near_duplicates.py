"""Precision and recall of the search for near duplicates against a count by hand, and the planted halves."""

from pathlib import Path

import numpy as np

from benchmarks.near_duplicates import (
    CHANCES,
    CORRELATIONS,
    DuplicatePairs,
    halves,
    kinds_of_pairs,
    report_rows,
    results_pairs,
    search,
    write_half,
)
from benchmarks.planted_duplicates import CHANGES
from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_project


def _pairs(n: int = 200) -> DuplicatePairs:
    rng = np.random.default_rng(0)
    names = np.array([*CHANGES, ""])
    return DuplicatePairs(
        chance=10.0 ** rng.uniform(-4, 4, n),
        correlation=rng.uniform(-1, 1, n),
        kinds=names[rng.integers(len(names), size=n)],
        n_planted=50,
    )


def test_measures_are_those_of_a_count_by_hand() -> None:
    pairs = _pairs()
    for chance, correlation in ((1.0, 0.9), (100.0, -1.0), (1e-9, 0.5)):
        rows = list(zip(pairs.chance, pairs.correlation, pairs.kinds, strict=True))
        found = [kind for c, r, kind in rows if c <= chance and r >= correlation]
        hits = [kind for kind in found if kind]
        measures = pairs.measures(chance, correlation)
        precision, recall = len(hits) / len(found) if found else 1.0, len(hits) / 250
        assert (measures["precision"], measures["recall"]) == (precision, recall)
        assert measures["not_planted"] == len(found) - len(hits)
        assert measures["mirror"] == hits.count("mirror") / 50
        if hits:
            np.testing.assert_allclose(measures["f1"], 2 * precision * recall / (precision + recall))


def test_the_best_thresholds_of_the_first_half_are_shown_on_both() -> None:
    first = _pairs()
    grid = [(chance, correlation) for chance in CHANCES for correlation in CORRELATIONS]
    scores = [first.measures(*thresholds)["f1"] for thresholds in grid]
    assert first.measures(*first.best())["f1"] == max(scores)
    second = DuplicatePairs(
        chance=np.array([1e-9]), correlation=np.array([1.0]), kinds=np.array(["crop"]), n_planted=50
    )
    rows = report_rows("resnet9", first, second)
    assert [(row["thresholds"], row["half"]) for row in rows] == [
        (name, half) for name in ("default", "best of first") for half in ("first", "second")
    ]
    assert (rows[0]["chance_pairs"], rows[0]["correlation"]) == ("1", "0.9")
    assert rows[1]["precision"] == "1.000"
    assert rows[3]["crop"] == "0.020"


def test_halves_share_no_class_and_are_those_of_the_seed() -> None:
    labels = np.tile(np.arange(10), 30)
    first, second = halves(labels, 10, 40, seed=3)
    assert set(labels[first]).isdisjoint(labels[second])
    assert (first.sum(), second.sum()) == (40, 40)
    np.testing.assert_array_equal(first, next(halves(labels, 10, 40, seed=3)))


def test_planted_copies_follow_their_images_and_are_found(tmp_path: Path) -> None:
    base, target = write_project(tmp_path), DataPaths(root=tmp_path / "half")
    labels = load_prepared(base, folder=None).train.labels
    mask = labels < 2
    planted = write_half(base, target, mask, 3, 0)
    made = load_prepared(target, folder=None)
    assert len(made.train.images) == 60 + 15
    np.testing.assert_array_equal(made.train.images[60:], planted.images)
    np.testing.assert_array_equal(made.train.labels[60:], labels[mask][planted.sources])
    manifest = read_parquet(target.manifest("train"))
    assert manifest["path"][60].as_py().startswith("planted/jpeg/")
    assert manifest["sample_id"].to_pylist() == list(range(75))
    again = write_half(base, target, mask, 3, 0)
    np.testing.assert_array_equal(again.images, planted.images)
    assert read_parquet(target.manifest("train")).num_rows == 75
    rng = np.random.default_rng(0)
    features = rng.normal(size=(75, 20)).astype(np.float32)
    features[60:] = features[planted.sources] + rng.normal(scale=1e-3, size=(15, 20)).astype(np.float32)
    pairs = results_pairs(search(features, target, planted))
    assert pairs.measures(1.0, -1.0)["recall"] == 1.0


def test_only_a_copy_and_its_own_image_are_a_planted_pair(tmp_path: Path) -> None:
    base = write_project(tmp_path)
    planted = write_half(base, DataPaths(root=tmp_path / "half"), np.ones(120, dtype=np.bool_), 1, 0)
    source = int(planted.sources[1])
    pairs = np.array([[source, 121], [source, 120], [120, 121], [0, 1]])
    assert kinds_of_pairs(pairs, 120, planted).tolist() == ["shift", "", "", ""]
