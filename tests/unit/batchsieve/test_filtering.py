"""`batchsieve.sieve` on arrays: what it keeps, and that it is the pipeline's filter."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsieve import InputError, sieve
from batchsieve.evidence import content_order, tsne_coordinates
from pipeline.__main__ import main
from pipeline.artifacts.tables import read_parquet
from pipeline.run_log import RunLog
from tests.fixtures.projects import class_blobs, write_params

ON_COMPONENTS = {"name": "dbscan", "space": "components"}


def _planted(seed: int = 0, per_class: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and which of them are wrong: one in 20."""
    features, truth = class_blobs(np.random.default_rng(seed), n_classes=3, per_class=per_class, dimensions=6)
    planted = np.arange(len(truth)) % 20 == 3
    return 10 * features, np.where(planted, (truth + 1) % 3, truth), planted


@pytest.mark.parametrize(
    "scorer",
    [
        ON_COMPONENTS,
        {"name": "hdbscan", "space": "components"},
        "knn_distance",
        "centroid",
        {"name": "knn_agreement", "k": 10},
        "self_confidence",
        "label_odds",
        {"name": "ensemble", "scorers": [{"name": "margin"}, {"name": "smoothed_confidence", "k": 5}]},
    ],
    ids=str,
)
def test_sieve_drops_planted_labels(scorer: Any) -> None:
    features, labels, planted = _planted()
    keep = sieve(features, labels, scorer=scorer, drop_fraction=0.05)
    assert keep.dtype == bool
    np.testing.assert_array_equal(keep, ~planted)


def test_sieve_on_the_embedding_drops_planted_labels() -> None:
    features, labels, planted = _planted(per_class=60)
    keep = sieve(features, labels, perplexity=10, n_jobs=1, drop_fraction=0.05)
    assert (keep == ~planted).mean() > 0.98


def test_sieve_is_the_filter_of_the_pipeline(tmp_path: Path) -> None:
    """On rows in the order in which both compute, with the paper's scorer and the radius of the knee.

    Features without any structure: what is noise depends on every detail of the embedding.
    """
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(120, 6)).astype(np.float32), rng.integers(0, 3, size=120)
    order = content_order(features, labels)
    features, labels = features[order], labels[order]
    np.save(tmp_path / "f.npy", features)
    with (tmp_path / "y.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("label",), *((str(label),) for label in labels)])
    reduce = {"pca": {"n_components": None}, "tsne": {"perplexity": 10.0, "n_jobs": 1}, "n_neighbors": 10}
    scorer = {"name": "dbscan", "space": "embedding", "min_samples": 4}
    params = write_params(
        tmp_path, reduce=reduce, filter={"scorer": scorer, "eps": "knee", "drop_fraction": None, "allow_empty": True}
    )
    files = ["--features", str(tmp_path / "f.npy"), "--labels", str(tmp_path / "y.csv"), "--out", str(tmp_path / "out")]
    assert main(["filter-features", "--params", str(params), *files]) == 0
    expected = read_parquet(tmp_path / "out/points.parquet")["keep"].to_numpy(zero_copy_only=False)
    keep = sieve(features, labels, scorer=scorer, perplexity=10, n_jobs=1, allow_empty=True)
    np.testing.assert_array_equal(keep, expected)
    assert 0 < keep.sum() < len(keep)


def test_an_emptied_class_under_a_rule_asks_for_a_number() -> None:
    """No word of a rule can be raised or lowered."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(90, 4)).astype(np.float32)
    labels = np.repeat([0, 1, 2], 30)
    features[labels == 2] *= 1000  # each of them alone
    with pytest.raises(InputError) as raised:
        sieve(
            features, labels, scorer={"name": "dbscan", "space": "components", "min_samples": 5}, eps="knee", n_jobs=1
        )
    assert "give a number above" in str(raised.value)


@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from([ON_COMPONENTS, {"name": "margin"}, {"name": "centroid"}]))
def test_sieve_follows_a_permutation_and_names_of_classes(seed: int, scorer: dict[str, Any]) -> None:
    features, labels, _ = _planted(seed, per_class=20)
    order = np.random.default_rng(seed).permutation(len(labels))
    keep = sieve(features, labels, scorer=scorer, drop_fraction=0.1)
    names = np.array(["ant", "bee", "cat"])
    np.testing.assert_array_equal(
        sieve(features[order], names[labels[order]], scorer=scorer, drop_fraction=0.1), keep[order]
    )


def test_sieve_takes_a_single_class_and_given_probabilities() -> None:
    features = np.random.default_rng(0).normal(size=(50, 3))
    features[7] += 50
    keep = sieve(features, np.zeros(50, int), scorer=ON_COMPONENTS)
    assert not keep[7]
    labels = np.arange(50) % 2
    probabilities = np.where(np.eye(2)[labels] > 0, 0.9, 0.1)
    probabilities[11] = probabilities[11, ::-1]
    keep = sieve(features, labels, probabilities, scorer="margin", threshold=0.5)
    assert np.flatnonzero(~keep).tolist() == [11]


def test_sieve_reads_the_columns_of_a_data_frame_and_warns() -> None:
    features, labels = np.random.default_rng(0).normal(size=(50, 3)), np.array(["a", "b"] * 25)
    probabilities = np.where(labels[:, None] == ["a", "b"], 0.9, 0.1)
    probabilities[11] = probabilities[11, ::-1]
    frame = pd.DataFrame(probabilities[:, ::-1], columns=["b", "a"])
    keep = sieve(features, labels, frame, scorer="margin", threshold=0.5)
    assert np.flatnonzero(~keep).tolist() == [11]
    with pytest.warns(UserWarning, match="^pred_probs: the most probable class is the label in 2.00%"):
        sieve(features, labels, probabilities[:, ::-1], scorer="margin", drop_fraction=0.1)


def test_the_estimated_share_is_dropped() -> None:
    features, truth = class_blobs(np.random.default_rng(0), n_classes=3, per_class=100, dimensions=8)
    planted = np.arange(len(truth)) % 10 == 7
    labels = np.where(planted, (truth + 1) % 3, truth)
    keep = sieve(10 * features, labels, scorer=ON_COMPONENTS, drop_fraction="estimated")
    assert (~keep).sum() == pytest.approx(planted.sum(), abs=6)


_FEATURES, _LABELS = np.random.default_rng(0).normal(size=(24, 3)), np.arange(24) % 3


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "perplexity"),
        ({"perplexity": 0}, "perplexity"),
        ({"perplexity": 0.5}, "perplexity"),
        ({"perplexity": 5, "seed": -1}, "seed"),
        ({"perplexity": 5, "n_jobs": 0}, "n_jobs"),
        ({"scorer": "margin"}, "drop_fraction"),
        ({"scorer": "margin", "drop_fraction": 1.5}, "drop_fraction"),
        ({"scorer": "margin", "drop_fraction": "some"}, "drop_fraction"),
        ({"labels": _LABELS * 0, "scorer": ON_COMPONENTS, "drop_fraction": "estimated"}, "drop_fraction"),
        ({"drop_fraction": 0.1, "eps": 1.0}, "drop_fraction"),
        ({"scorer": "margin", "eps": 1.0}, "eps"),
        ({"threshold": 1.0}, "threshold"),
        ({"allocation": "per_class"}, "allocation"),
        ({"scorer": {"space": "components"}, "drop_fraction": 0.1}, "scorer"),
        ({"scorer": "no_such", "drop_fraction": 0.1}, "scorer"),
        ({"scorer": "mean_confidence", "drop_fraction": 0.1}, "scorer"),
        ({"scorer": {"name": "ccs", "scorer": {"name": "aum"}}, "drop_fraction": 0.1}, "scorer"),
        ({"scorer": {"name": "margin", "k": 3}, "drop_fraction": 0.1}, "scorer.k"),
        ({"scorer": {"name": "dbscan", "min_samples": 9}}, "scorer.min_samples"),
        ({"scorer": {"name": "knn_agreement", "k": 24}, "drop_fraction": 0.1}, "scorer.k"),
        ({"scorer": ON_COMPONENTS, "eps": -1.0}, "eps"),
        ({"scorer": ON_COMPONENTS, "eps": 1e-9}, "eps"),
        ({"scorer": ON_COMPONENTS, "allocation": "fair", "drop_fraction": 0.1}, "allocation"),
        ({"features": _FEATURES[:20]}, "features"),
        ({"features": np.full((24, 3), np.inf)}, "features"),
        ({"pred_probs": np.ones((24, 3))}, "pred_probs"),
        ({"labels": _LABELS * 0, "scorer": "margin", "drop_fraction": 0.1}, "scorer"),
        ({"labels": _LABELS * 0, "scorer": ON_COMPONENTS, "eps": "tuned"}, "eps"),
    ],
)
def test_sieve_names_the_argument_that_is_wrong(options: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as raised:
        sieve(**{"features": _FEATURES, "labels": _LABELS, **options})
    assert str(raised.value).partition(": ")[0] == key
    assert "filter." not in str(raised.value)


def test_integers_of_numpy_are_taken() -> None:
    features, labels = class_blobs(np.random.default_rng(0), 3, 40, 6)
    options: dict[str, Any] = {"perplexity": 5, "drop_fraction": 0.1}
    keep = sieve(features, labels, seed=3, n_jobs=1, n_components=3, **options)
    integers: dict[str, Any] = {"seed": np.int64(3), "n_jobs": np.int64(1), "n_components": np.int32(3)}
    same = sieve(features, labels, **integers, **options)
    assert np.array_equal(keep, same)


def test_only_scorers_of_neighbors_limit_k() -> None:
    """`knn_distance` takes as many neighbors as a class has."""
    features, labels = class_blobs(np.random.default_rng(0), 2, 50, 6)
    members: list[dict[str, Any]] = [{"name": "knn_agreement", "k": 5}, {"name": "knn_distance", "k": 150}]
    scorer = {"name": "ensemble", "scorers": members}
    assert (~sieve(features, labels, scorer=scorer, drop_fraction=0.1)).sum() == 10
    members[0]["k"] = 100
    with pytest.raises(InputError) as raised:
        sieve(features, labels, scorer=scorer, drop_fraction=0.1)
    assert raised.value.key == "scorer.scorers[0].k"


@pytest.mark.parametrize(("n", "perplexity"), [(100, 33.2), (250_000, 40_000)])
def test_a_perplexity_beyond_the_points_is_refused_at_once(n: int, perplexity: float) -> None:
    """Of more than 200,000 samples, t-SNE is fitted to 100,000."""
    components = np.broadcast_to(np.float32(0), (n, 2))
    with pytest.raises(InputError) as raised:
        tsne_coordinates(
            components, np.zeros(n, dtype=np.int64), perplexity=perplexity, n_jobs=1, seed=0, log=RunLog.silent()
        )
    assert raised.value.key == "perplexity"
