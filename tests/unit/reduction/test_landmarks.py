"""Which rows are landmarks, and where the others come to lie among them."""

from typing import Any

import numpy as np
import openTSNE
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.reduce import TsneConfig
from pipeline.errors import InputError
from pipeline.reduction import landmarks
from pipeline.reduction.landmarks import check_landmarks, landmark_rows
from pipeline.reduction.neighbors import exact_neighbors, knn_label_accuracy
from pipeline.reduction.tsne import TsneResult, fit_training_tsne, fit_tsne
from tests.fixtures.projects import class_blobs
from tests.fixtures.slow import quick_first

_SETTINGS = TsneConfig.model_validate(
    {"perplexity": 15.0, "early_exaggeration_iter": 100, "n_iter": 150, "n_jobs": 1}
).model_dump()


def _blobs(seed: int = 0, per_class: int = 150) -> tuple[np.ndarray, np.ndarray]:
    return class_blobs(np.random.default_rng(seed), n_classes=6, per_class=per_class, dimensions=20, spread=3.0)


def _map(points: np.ndarray, labels: np.ndarray, count: int, **keys: Any) -> TsneResult:
    return fit_training_tsne(points, labels, {**_SETTINGS, **keys}, landmarks=count)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_every_class_has_its_share_of_landmarks(sizes: list[int], seed: int, data: st.DataObject) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))
    count = data.draw(st.integers(len(sizes), len(labels)))
    rows = landmark_rows(labels, count, seed=seed)
    assert len(rows) == count
    assert (np.diff(rows) > 0).all()
    for label, size in zip(np.arange(len(sizes)) * 3, sizes, strict=True):
        n = int((labels[rows] == label).sum())
        assert 1 <= n <= size
        share = 1 + (size - 1) * (count - len(sizes)) / max(1, len(labels) - len(sizes))
        assert abs(n - share) < 1
    np.testing.assert_array_equal(rows, landmark_rows(labels, count, seed=seed))


def test_another_seed_draws_other_landmarks() -> None:
    labels = np.arange(1000) % 10
    first, second = (landmark_rows(labels, 200, seed=seed) for seed in (0, 1))
    assert 20 < len(np.intersect1d(first, second)) < 60


@pytest.mark.slow
def test_landmarks_lie_as_if_alone_and_others_near_their_own() -> None:
    points, labels = _blobs()
    rows = landmark_rows(labels, 450, seed=0)
    mapped = _map(points, labels, 450)
    alone = fit_tsne(points[rows], _SETTINGS, report=lambda *_: None)
    assert mapped.coordinates[rows].tobytes() == alone.coordinates.tobytes()
    assert mapped.kl_divergence == alone.kl_divergence
    others = np.setdiff1d(np.arange(len(points)), rows)
    everywhere = fit_tsne(points, _SETTINGS, report=lambda *_: None)
    placed, full = (
        knn_label_accuracy(exact_neighbors(coordinates, others, 10), others, labels)
        for coordinates in (mapped.coordinates, everywhere.coordinates)
    )
    assert placed > full - 0.05


@pytest.mark.parametrize("method", quick_first(1, ["bh", "fft"]))
def test_places_are_those_of_opentsne(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks: points that are placed do not see each other."""
    points, labels = _blobs(per_class=40)
    rows = landmark_rows(labels, 100, seed=0)
    others = np.setdiff1d(np.arange(len(points)), rows)
    settings = {**_SETTINGS, "negative_gradient_method": method, "neighbors": "exact", "min_num_intervals": 20}
    embedding = openTSNE.TSNE(**settings).fit(points[rows])
    middle = (np.max(embedding, axis=0) + np.min(embedding, axis=0)) / 2
    reference = embedding.transform(
        points[others],
        perplexity=landmarks._PERPLEXITY,
        k=landmarks._INITIAL_NEIGHBORS,
        n_iter=landmarks._ITERATIONS,
        learning_rate=landmarks._LEARNING_RATE,
        exaggeration=landmarks._EXAGGERATION,
    )
    for size in (7, 8192):
        monkeypatch.setattr(landmarks, "_ROWS", size)
        mapped = fit_training_tsne(points, labels, settings, landmarks=100)
        np.testing.assert_allclose(mapped.coordinates[others], np.asarray(reference + middle), atol=1e-3)


def test_repeats_are_equal_to_the_bit() -> None:
    points, labels = _blobs(per_class=60)
    brief = {"n_jobs": 2, "early_exaggeration_iter": 10, "n_iter": 15}
    first, second = (_map(points, labels, 150, **brief) for _ in range(2))
    assert first.coordinates.tobytes() == second.coordinates.tobytes()


def test_duplicate_of_a_landmark_is_placed_next_to_it() -> None:
    points, labels = _blobs(per_class=60)
    rows = landmark_rows(labels, 180, seed=0)
    others = np.setdiff1d(np.arange(len(points)), rows)
    points[others[0]] = points[rows[5]]
    mapped = _map(points, labels, 180).coordinates
    extent = np.ptp(mapped, axis=0).max()
    assert np.linalg.norm(mapped[others[0]] - mapped[rows[5]]) < 0.1 * extent


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"count": 9}, "reduce.landmarks"),
        ({"count": 500}, "reduce.landmarks"),
        ({"metric": "cosine"}, "reduce.tsne.metric"),
    ],
)
def test_landmarks_that_cannot_be(keys: dict[str, Any], named: str) -> None:
    within: dict[str, Any] = {"count": 10, "n": 500, "n_classes": 10, "metric": "euclidean"}
    check_landmarks(**within, key="reduce.tsne.metric")
    with pytest.raises(InputError) as refused:
        check_landmarks(**{**within, **keys}, key="reduce.tsne.metric")
    assert refused.value.key == named
