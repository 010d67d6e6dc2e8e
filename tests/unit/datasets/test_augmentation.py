"""The random choices of an epoch: their ranges, and what they depend on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets.augmentation import sample_augmentation


@given(n=st.integers(0, 200), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 500), n_offsets=st.integers(1, 9))
def test_choices_are_in_range(n: int, seed: int, epoch: int, n_offsets: int) -> None:
    draws = sample_augmentation(n, seed=seed, epoch=epoch, n_offsets=n_offsets, flip=True)
    assert draws.offsets.shape == (n, 2)
    assert draws.flips.shape == (n,)
    assert ((draws.offsets >= 0) & (draws.offsets < n_offsets)).all()


def test_equal_arguments_give_equal_draws() -> None:
    one, again = (sample_augmentation(50, seed=3, epoch=2, n_offsets=5, flip=True) for _ in range(2))
    np.testing.assert_array_equal(one.offsets, again.offsets)
    np.testing.assert_array_equal(one.flips, again.flips)


@pytest.mark.parametrize(("seed", "epoch"), [(4, 2), (3, 1), (2, 3)])
def test_seeds_and_epochs_differ(seed: int, epoch: int) -> None:
    one = sample_augmentation(50, seed=3, epoch=2, n_offsets=5, flip=True)
    other = sample_augmentation(50, seed=seed, epoch=epoch, n_offsets=5, flip=True)
    assert (one.offsets != other.offsets).any()
    assert (one.flips != other.flips).any()


def test_flips_do_not_move_the_crops() -> None:
    one, other = (sample_augmentation(50, seed=3, epoch=2, n_offsets=5, flip=flip) for flip in (True, False))
    np.testing.assert_array_equal(one.offsets, other.offsets)
    assert one.flips.any()
    assert not other.flips.any()


def test_choices_are_uniform() -> None:
    draws = sample_augmentation(20_000, seed=0, epoch=0, n_offsets=4, flip=True)
    assert draws.flips.mean() == pytest.approx(0.5, abs=0.02)
    for axis in (0, 1):
        np.testing.assert_allclose(np.bincount(draws.offsets[:, axis]) / 20_000, 0.25, atol=0.02)
    assert np.asarray(np.corrcoef(draws.offsets.T))[0, 1] == pytest.approx(0, abs=0.03)
