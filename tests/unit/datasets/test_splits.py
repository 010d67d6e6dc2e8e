"""Stratified draws."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.datasets.splits import assign_folds, choose_test_rows, choose_val_rows

Draw = Callable[..., NDArray[np.bool_]]


def _names(n: int) -> list[str]:
    return [f"class/{i}.png" for i in range(n)]


def test_a_tenth_of_each_class() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    flags = choose_val_rows(_names(160), labels, 0.1, seed=0)
    assert np.bincount(labels[flags]).tolist() == [10, 5, 1]


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), share=st.floats(0.01, 0.99), seed=st.integers(0, 99)
)
@pytest.mark.parametrize(("draw", "rest"), [(choose_val_rows, 1), (choose_test_rows, 2)])
def test_counts_of_each_class(draw: Draw, rest: int, labels: list[int], share: float, seed: int) -> None:
    """Never none; never so many that too few are left, where there are enough; else the rounded share."""
    flags = draw(_names(len(labels)), labels, share, seed=seed)
    for label in set(labels):
        total = labels.count(label)
        count = int(flags[np.array(labels) == label].sum())
        assert count >= 1
        assert total - count >= rest or count == 1
        assert count in (round(share * total), 1, total - rest)


@pytest.mark.parametrize("draw", [choose_test_rows, choose_val_rows])
def test_reproducible_and_different_for_another_seed(draw: Draw) -> None:
    labels, names = np.arange(400) % 4, _names(400)
    np.testing.assert_array_equal(draw(names, labels, 0.2, seed=1), draw(names, labels, 0.2, seed=1))
    assert (draw(names, labels, 0.2, seed=1) != draw(names, labels, 0.2, seed=2)).any()


def test_draws_for_testing_and_validation_are_independent() -> None:
    labels, names = np.arange(400) % 4, _names(400)
    both = choose_test_rows(names, labels, 0.5, seed=1) & choose_val_rows(names, labels, 0.5, seed=1)
    assert 60 < both.sum() < 140  # a quarter is expected; one being the other's copy would give a half


@settings(deadline=None)
@given(n=st.integers(10, 60), where=st.integers(0, 60), share=st.floats(0.1, 0.6), seed=st.integers(0, 99))
@pytest.mark.parametrize("draw", [choose_test_rows, choose_val_rows])
def test_an_added_image_moves_one_other_at_most(draw: Draw, n: int, where: int, share: float, seed: int) -> None:
    names, labels = _names(2 * n), [0] * n + [1] * n
    before = dict(zip(names, draw(names, labels, share, seed=seed), strict=True))
    place = min(where, n)
    longer, of_longer = [*names[:place], "class/new.png", *names[place:]], [0] * (n + 1) + [1] * n
    after = dict(zip(longer, draw(longer, of_longer, share, seed=seed), strict=True))
    moved = [name for name in names if before[name] != after[name]]
    assert len(moved) <= 1
    assert all(name in names[:n] for name in moved)


def test_every_row_can_be_drawn() -> None:
    chosen = np.zeros(20, dtype=bool)
    for seed in range(200):
        chosen |= choose_val_rows(_names(20), np.zeros(20, dtype=np.int64), 0.1, seed=seed)
    assert chosen.all()


# Folds

_LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80)


@settings(deadline=None)
@given(labels=_LABELS, count=st.integers(2, 7), seed=st.integers(0, 99))
def test_folds_share_out_each_class_evenly(labels: list[int], count: int, seed: int) -> None:
    folds = assign_folds(_names(len(labels)), labels, count, seed=seed, contents=_names(len(labels)))
    assert folds.dtype == np.int32
    for label in set(labels):
        sizes = np.bincount(folds[np.array(labels) == label], minlength=count)
        assert len(sizes) == count
        assert sizes.max() - sizes.min() <= 1


def test_many_small_classes_do_not_fill_one_fold() -> None:
    labels = np.repeat(np.arange(40), 3)
    assert np.bincount(assign_folds(_names(120), labels, 2, seed=0, contents=_names(120))).tolist() == [60, 60]


@settings(deadline=None)
@given(n=st.integers(5, 60), where=st.integers(0, 60), count=st.integers(2, 5), seed=st.integers(0, 99))
def test_an_added_image_moves_one_other_per_cut_at_most(n: int, where: int, count: int, seed: int) -> None:
    names, labels = _names(2 * n), [0] * n + [1] * n
    before = dict(zip(names, assign_folds(names, labels, count, seed=seed, contents=names), strict=True))
    place = min(where, n)
    longer, of_longer = [*names[:place], "class/new.png", *names[place:]], [0] * (n + 1) + [1] * n
    after = dict(zip(longer, assign_folds(longer, of_longer, count, seed=seed, contents=longer), strict=True))
    moved = [name for name in names if before[name] != after[name]]
    assert len(moved) <= count - 1
    assert all(name in names[:n] for name in moved)


def test_folds_follow_paths_and_seed_and_not_the_order() -> None:
    labels, names = np.arange(400) % 4, _names(400)
    order = np.random.default_rng(0).permutation(400)
    folds = assign_folds(names, labels, 4, seed=1, contents=names)
    np.testing.assert_array_equal(folds[order], _folds_of([names[i] for i in order], labels[order]))
    changed = folds != assign_folds(names, labels, 4, seed=2, contents=names)
    assert 0.6 < changed.mean() < 0.9  # three quarters are expected


def _folds_of(names: list[str], labels: np.ndarray) -> np.ndarray:
    return assign_folds(names, labels, 4, seed=1, contents=names)


def test_copies_of_an_image_share_a_part_under_any_name_and_label() -> None:
    names, labels = _names(60), np.arange(60) % 3
    contents = [str(row // 2) for row in range(60)]
    folds = assign_folds(names, labels, 4, seed=0, contents=contents)
    np.testing.assert_array_equal(folds[0::2], folds[1::2])
    assert len(set(folds.tolist())) == 4
