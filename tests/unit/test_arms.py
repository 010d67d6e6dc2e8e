"""The rows of each arm: exact counts, and independent samples for every seed."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.arms import arm_mask

_ROWS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=80)
_SEEDS = st.integers(0, 2**32 - 1)


def _arrays(rows: list[tuple[int, bool]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    labels, keep = zip(*rows, strict=True)
    return np.array(labels), np.array(keep)


def _example(n: int = 200) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return four classes, of which the filter drops 0, 1, 2 and 3 in ten."""
    labels = np.arange(n) % 4
    return labels, (np.arange(n) // 4) % 10 >= labels


@given(rows=_ROWS, seed=_SEEDS)
def test_full_and_filtered_do_not_depend_on_the_seed(rows: list[tuple[int, bool]], seed: int) -> None:
    labels, keep = _arrays(rows)
    assert arm_mask("full", labels, keep, seed=seed).all()
    assert arm_mask("relabeled", labels, keep, seed=seed).all()
    assert arm_mask("filtered", labels, keep, seed=seed).tolist() == keep.tolist()


def test_filtered_is_a_copy() -> None:
    labels, keep = _example()
    arm_mask("filtered", labels, keep, seed=0)[:] = False
    assert keep.any()


@given(rows=_ROWS, seed=_SEEDS)
def test_random_has_the_exact_class_counts_of_the_filter(rows: list[tuple[int, bool]], seed: int) -> None:
    labels, keep = _arrays(rows)
    members = arm_mask("random", labels, keep, seed=seed)
    assert np.bincount(labels[members], minlength=5).tolist() == np.bincount(labels[keep], minlength=5).tolist()


@given(rows=_ROWS, seed=_SEEDS)
def test_random_uniform_has_the_count_of_the_filter(rows: list[tuple[int, bool]], seed: int) -> None:
    labels, keep = _arrays(rows)
    assert arm_mask("random_uniform", labels, keep, seed=seed).sum() == keep.sum()


@pytest.mark.parametrize("arm", ["random", "random_uniform"])
@given(first=_SEEDS, second=_SEEDS)
def test_samples_depend_on_the_seed_alone(arm: str, first: int, second: int) -> None:
    assume(first != second)
    labels, keep = _example()
    one, again, other = (arm_mask(arm, labels, keep, seed=seed) for seed in (first, first, second))
    assert one.tolist() == again.tolist()
    assert one.tolist() != other.tolist()
    assert one.tolist() != keep.tolist()


def test_random_uniform_does_not_match_the_classes() -> None:
    labels, keep = _example()
    wanted = np.bincount(labels[keep]).tolist()
    draws = [arm_mask("random_uniform", labels, keep, seed=seed) for seed in range(20)]
    assert any(np.bincount(labels[members]).tolist() != wanted for members in draws)


@pytest.mark.parametrize("arm", ["random", "random_uniform"])
def test_every_row_is_sampled_equally_often(arm: str) -> None:
    """Within its class, or among all rows: within five standard deviations over many seeds."""
    labels, keep = _example(80)
    seeds = 2000
    share = np.mean([arm_mask(arm, labels, keep, seed=seed) for seed in range(seeds)], axis=0)
    if arm == "random":
        expected = np.array([keep[labels == label].mean() for label in labels])
    else:
        expected = np.full(len(labels), keep.mean())
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / seeds) + 1e-12).all()


def test_an_unknown_arm_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        arm_mask("none", *_example(), seed=0)
