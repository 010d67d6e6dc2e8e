"""Thresholds against an exhaustive search, and scores at their boundaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.scoring.thresholds import (
    curve_thresholds,
    score,
    shares_above,
    threshold_for_share,
    thresholds_for_share,
    values_from_scores,
)

_VALUES = st.lists(
    st.one_of(st.floats(0, 1e3, allow_subnormal=False), st.integers(0, 4).map(float), st.just(np.inf)),
    min_size=1,
    max_size=40,
).map(np.array)
_SHARES = st.floats(0, 1)


def _reachable(values: np.ndarray) -> np.ndarray:
    """All counts that a positive, finite threshold at a distance from every value can reach, by trying."""
    levels = np.unique(values[np.isfinite(values) & (values > 0)])
    tried = np.concatenate([levels * (1 - 1e-8), levels * (1 + 1e-8), [1e-320 + levels.min(initial=1) / 2]])
    clear = [t for t in tried if t > 0 and not (np.abs(levels - t) < 5e-10 * levels).any()]
    return np.unique([(values > t).sum() for t in clear])


@given(values=_VALUES.map(lambda values: np.where(values < 1e-3, 0, values)), share=_SHARES)
def test_no_other_threshold_comes_nearer(values: np.ndarray, share: float) -> None:
    threshold = threshold_for_share(values, share)
    assert (values > threshold.value).sum() == threshold.n_above
    errors = np.abs(_reachable(values) - share * len(values))
    assert abs(threshold.n_above - share * len(values)) <= errors.min() + 1e-6


@given(values=_VALUES, share=_SHARES)
def test_the_threshold_is_usable_and_clear_of_all_values(values: np.ndarray, share: float) -> None:
    threshold = threshold_for_share(values, share)
    assert 0 < threshold.value < np.inf
    finite = values[np.isfinite(values)]
    assert (np.abs(finite - threshold.value) >= 4e-10 * threshold.value).all()
    assert (values > threshold.value).sum() == threshold.n_above


@given(n=st.integers(1, 2000), share=_SHARES, seed=st.integers(0, 2**32 - 1))
def test_without_ties_every_share_is_met_to_half_an_image(n: int, share: float, seed: int) -> None:
    values = np.random.default_rng(seed).permutation(n).astype(np.float64) + 1
    threshold = threshold_for_share(values, share)
    assert abs(threshold.n_above - share * n) <= 0.5 + 1e-6


def test_ties_are_not_split_and_the_other_side_is_named() -> None:
    values = np.array([1, 2, 2, 2, 2, 3, 4, 4 * (1 + 1e-12), 0, 0.5])
    nearest = threshold_for_share(values, 0.5)
    assert (nearest.n_above, nearest.alternative) == (3, 7)  # 5 are as far from 3 as from 7
    assert nearest.value == 2.5
    exact = threshold_for_share(values, 0.2)
    assert (exact.n_above, exact.alternative) == (2, None)
    assert exact.value == 3.5
    rounded_apart = threshold_for_share(values, 0.1)
    assert (rounded_apart.n_above, rounded_apart.alternative) == (0, 2)
    beyond = threshold_for_share(values, 1.0)
    assert (beyond.n_above, beyond.alternative) == (9, None)  # 0 exceeds nothing


def test_nothing_and_everything() -> None:
    values = np.array([1.0, 2.0, np.inf])
    assert threshold_for_share(values, 0).n_above == 1  # no threshold lets infinity in
    assert threshold_for_share(values, 0).value == pytest.approx(2.0, rel=1e-5)
    assert threshold_for_share(values, 1).value == 0.5
    for alike in (np.zeros(3), np.full(3, np.inf)):
        assert threshold_for_share(alike, 0.5).value > 0


def test_a_share_that_is_a_whole_number_of_images_up_to_rounding() -> None:
    assert threshold_for_share(np.arange(1.0, 31.0), 0.1).n_above == 3  # 0.1 x 30 > 3


def test_the_curve_falls_from_nearly_all_to_none() -> None:
    values = np.random.default_rng(0).lognormal(size=1000)
    thresholds = curve_thresholds(values)
    shares = shares_above(values, thresholds)
    assert len(thresholds) == 200
    assert (np.diff(thresholds) > 0).all()
    assert (np.diff(shares) <= 0).all()
    assert shares[0] > 0.98
    assert shares[-1] == 0
    np.testing.assert_array_equal(shares, [(values > t).mean() for t in thresholds])


def test_a_value_at_the_threshold_does_not_exceed_it() -> None:
    np.testing.assert_array_equal(shares_above(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3])), [0.75, 0.25, 0])


def test_no_curve_without_spread() -> None:
    assert len(curve_thresholds(np.zeros(5))) == 0
    assert len(curve_thresholds(np.full(5, np.inf))) == 0


@given(values=_VALUES, threshold=st.floats(1e-3, 1e3))
def test_scores_are_bounded_and_rise_with_the_value(values: np.ndarray, threshold: float) -> None:
    scores = score(values, threshold)
    assert ((scores >= 0) & (scores <= 1)).all()
    order = np.argsort(values)
    assert (np.diff(scores[order]) >= 0).all()
    clear = np.abs(values - threshold) > 1e-12 * threshold
    np.testing.assert_array_equal((scores > 0.5)[clear], (values > threshold)[clear])


def test_scores_at_the_boundaries() -> None:
    np.testing.assert_array_equal(score(np.array([0, 2, np.inf]), 2.0), [0, 0.5, 1])


_CLASSES = st.lists(st.integers(0, 3), min_size=1, max_size=60).map(np.array)


@given(labels=_CLASSES, share=st.floats(0, 0.99), seed=st.integers(0, 2**32 - 1))
def test_balanced_quotas_leave_no_class_above_one_that_has_images(labels: np.ndarray, share: float, seed: int) -> None:
    values = 1 + np.random.default_rng(seed).permutation(len(labels)).astype(np.float64)
    actual = thresholds_for_share(values, labels, share, "balanced")
    totals = np.bincount(labels)[list(actual)]
    kept = totals - [threshold.n_above for threshold in actual.values()]
    assert kept.sum() == len(labels) - round(share * len(labels))
    # Only classes that lost nothing may be smaller, by more than the remainder, than the largest.
    assert (kept[kept < totals] >= kept.max() - 1).all()


@given(labels=_CLASSES, share=st.floats(0, 0.99), seed=st.integers(0, 2**32 - 1))
def test_each_class_loses_its_share(labels: np.ndarray, share: float, seed: int) -> None:
    values = 1 + np.random.default_rng(seed).permutation(len(labels)).astype(np.float64)
    actual = thresholds_for_share(values, labels, share, "per_class")
    for label, threshold in actual.items():
        rows = labels == label
        assert (values[rows] > threshold.value).sum() == threshold.n_above
        assert abs(threshold.n_above - share * rows.sum()) < 1.5
    # Many small classes together lose the share, too.
    assert sum(threshold.n_above for threshold in actual.values()) == round(share * len(labels))


def test_a_thousand_small_classes_lose_the_share_together() -> None:
    labels = np.arange(8000) % 1000
    values = 1 + np.random.default_rng(0).permutation(8000).astype(np.float64)
    actual = thresholds_for_share(values, labels, 0.0621, "per_class")
    assert sum(threshold.n_above for threshold in actual.values()) == 497


def test_right_above_the_threshold_the_score_is_above_one_half() -> None:
    thresholds = np.random.default_rng(0).uniform(0.1, 9, size=1000)
    assert (score(np.nextafter(thresholds, np.inf), thresholds) > 0.5).all()
    assert (score(thresholds, thresholds) <= 0.5).all()


@given(values=_VALUES, threshold=st.floats(1e-3, 1e3))
def test_a_value_comes_back_from_its_score(values: np.ndarray, threshold: float) -> None:
    moderate = np.where((values < 1e-6) & (values > 0), 0, values)
    back = values_from_scores(score(moderate, threshold), threshold)
    np.testing.assert_allclose(back, moderate, rtol=1e-5)
    np.testing.assert_array_equal(back > threshold, moderate > threshold)
