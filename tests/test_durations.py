"""Durations by hand, and the rounding at which they could go wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.durations import to_steps


@pytest.mark.parametrize(
    ("epochs", "n_train", "batch_size", "steps"),
    [
        (1, 100, 25, 4),
        (1, 100, 32, 4),  # the fourth batch goes on into the next epoch
        (50, 50_000, 6272, 399),
        (50, 50_000, 20_480, 123),
        (0.5, 100, 25, 2),
        (0, 100, 25, 0),
        (0.01, 100, 25, 1),
        (0.07, 10_000, 7, 100),  # 0.07 * 10,000 is 700.0000000000001
        (0.29, 10_000, 29, 100),  # 0.29 * 10,000 is 2899.9999999999995
    ],
)
def test_epochs(epochs: float, n_train: int, batch_size: int, steps: int) -> None:
    assert to_steps(epochs=epochs, n_train=n_train, batch_size=batch_size) == steps


@given(examples=st.integers(0, 10**9), batch_size=st.integers(1, 40_000), n_train=st.integers(1, 10**6))
def test_examples_take_the_fewest_steps_that_reach_them(examples: int, batch_size: int, n_train: int) -> None:
    steps = to_steps(examples=examples, n_train=n_train, batch_size=batch_size)
    assert (steps - 1) * batch_size < examples <= steps * batch_size


@given(hundredths=st.integers(0, 10_000), hundreds=st.integers(1, 1000), batch_size=st.integers(1, 40_000))
def test_epochs_in_decimal_are_exact(hundredths: int, hundreds: int, batch_size: int) -> None:
    steps = to_steps(epochs=hundredths / 100, n_train=100 * hundreds, batch_size=batch_size)
    assert steps == -(-hundredths * hundreds // batch_size)


@given(steps=st.integers(0, 10**9), batch_size=st.integers(1, 40_000), n_train=st.integers(1, 10**6))
def test_steps_are_steps(steps: int, batch_size: int, n_train: int) -> None:
    assert to_steps(steps=steps, n_train=n_train, batch_size=batch_size) == steps


def test_exactly_one_unit_is_given() -> None:
    with pytest.raises(AssertionError):
        to_steps(n_train=10, batch_size=2)
    with pytest.raises(AssertionError):
        to_steps(epochs=1, steps=1, n_train=10, batch_size=2)
