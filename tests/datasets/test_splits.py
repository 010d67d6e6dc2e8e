"""Stratified draws."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.datasets.splits import draw_test, draw_val

Draw = Callable[..., NDArray[np.bool_]]


def test_a_tenth_of_each_class() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    flags = draw_val(labels, 0.1, seed=0)
    assert np.bincount(labels[flags]).tolist() == [10, 5, 1]


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), share=st.floats(0.01, 0.99), seed=st.integers(0, 99)
)
@pytest.mark.parametrize(("draw", "rest"), [(draw_val, 1), (draw_test, 2)])
def test_counts_of_each_class(draw: Draw, rest: int, labels: list[int], share: float, seed: int) -> None:
    """Never none; never so many that too few are left, where there are enough; else the rounded share."""
    flags = draw(labels, share, seed=seed)
    for label in set(labels):
        total = labels.count(label)
        count = int(flags[np.array(labels) == label].sum())
        assert count >= 1
        assert total - count >= rest or count == 1
        assert count in (round(share * total), 1, total - rest)


@pytest.mark.parametrize("draw", [draw_test, draw_val])
def test_reproducible_and_different_for_another_seed(draw: Draw) -> None:
    labels = np.arange(400) % 4
    np.testing.assert_array_equal(draw(labels, 0.2, seed=1), draw(labels, 0.2, seed=1))
    assert (draw(labels, 0.2, seed=1) != draw(labels, 0.2, seed=2)).any()


def test_draws_for_testing_and_validation_are_independent() -> None:
    labels = np.arange(400) % 4
    assert (draw_test(labels, 0.5, seed=1) != draw_val(labels, 0.5, seed=1)).any()


def test_one_more_image_moves_no_other_class() -> None:
    labels = np.repeat([0, 1], [40, 40])
    before = draw_val(labels, 0.1, seed=3)
    after = draw_val(np.append(labels, 1), 0.1, seed=3)
    np.testing.assert_array_equal(after[:40], before[:40])


def test_every_row_can_be_drawn() -> None:
    drawn = np.zeros(20, dtype=bool)
    for seed in range(200):
        drawn |= draw_val(np.zeros(20, dtype=np.int64), 0.1, seed=seed)
    assert drawn.all()


def test_classes_are_drawn_independently() -> None:
    flags = draw_val(np.repeat([0, 1], [40, 40]), 0.5, seed=0)
    assert (flags[:40] != flags[40:]).any()
