"""Durations by hand, rounding, and batch sizes that change during a run."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.durations import BatchSizes, BatchStage, to_steps


def _sizes(final: int, *stages: tuple[int, int]) -> BatchSizes:
    """Stages as pairs of a batch size and a number of steps."""
    ends = accumulate(steps for _, steps in stages)
    return BatchSizes(
        final=final,
        stages=tuple(
            BatchStage(batch_size=size, until_step=end) for (size, _), end in zip(stages, ends, strict=True)
        ),
    )  # fmt: skip


_CHANGING = st.builds(
    lambda final, stages: _sizes(final, *stages),
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 30)), max_size=4),
)


@pytest.mark.parametrize(
    ("epochs", "n_train", "batch_size", "steps"),
    [
        (1, 100, 25, 4),
        (1, 100, 32, 4),  # the fourth batch continues into the next epoch
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
    assert to_steps(epochs=epochs, n_train=n_train, batch_sizes=_sizes(batch_size)) == steps


@given(examples=st.integers(0, 10**9), batch_size=st.integers(1, 40_000), n_train=st.integers(1, 10**6))
def test_examples_take_the_fewest_steps_that_reach_them(examples: int, batch_size: int, n_train: int) -> None:
    steps = to_steps(examples=examples, n_train=n_train, batch_sizes=_sizes(batch_size))
    assert (steps - 1) * batch_size < examples <= steps * batch_size


@given(hundredths=st.integers(0, 10_000), hundreds=st.integers(1, 1000), batch_size=st.integers(1, 40_000))
def test_epochs_in_decimal_are_exact(hundredths: int, hundreds: int, batch_size: int) -> None:
    steps = to_steps(epochs=hundredths / 100, n_train=100 * hundreds, batch_sizes=_sizes(batch_size))
    assert steps == -(-hundredths * hundreds // batch_size)


@given(steps=st.integers(0, 10**9), sizes=_CHANGING, n_train=st.integers(1, 10**6))
def test_steps_are_steps(steps: int, sizes: BatchSizes, n_train: int) -> None:
    assert to_steps(steps=steps, n_train=n_train, batch_sizes=sizes) == steps


def test_exactly_one_unit_is_given() -> None:
    with pytest.raises(AssertionError):
        to_steps(n_train=10, batch_sizes=_sizes(2))
    with pytest.raises(AssertionError):
        to_steps(epochs=1, steps=1, n_train=10, batch_sizes=_sizes(2))


# Batch sizes that change


def test_changing_sizes_by_hand() -> None:
    sizes = _sizes(40, (10, 3), (20, 2))
    assert sizes.unique == [10, 20, 40]
    assert [sizes.size_at(step) for step in range(7)] == [10, 10, 10, 20, 20, 40, 40]
    assert [sizes.examples(steps) for steps in range(8)] == [0, 10, 20, 30, 50, 70, 110, 150]
    assert list(sizes.steps_per_stage(4)) == [(10, 3), (20, 1), (40, 0)]
    assert [sizes.steps_for(examples) for examples in (0, 10, 11, 30, 31, 70, 71, 110)] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert to_steps(epochs=0.7, n_train=100, batch_sizes=sizes) == 5


@given(sizes=_CHANGING, steps=st.integers(0, 200))
def test_the_images_of_a_run_are_those_of_its_steps(sizes: BatchSizes, steps: int) -> None:
    assert sizes.examples(steps) == sum(sizes.size_at(step) for step in range(steps))
    stretches = list(sizes.steps_per_stage(steps))
    assert sum(count for _, count in stretches) == steps
    assert all(count >= 0 for _, count in stretches)
    assert {size for size, count in stretches if count} <= set(sizes.unique)


@given(sizes=_CHANGING, examples=st.integers(0, 50_000))
def test_changing_sizes_take_the_fewest_steps_too(sizes: BatchSizes, examples: int) -> None:
    steps = sizes.steps_for(examples)
    assert examples <= sizes.examples(steps)
    assert steps == 0 or sizes.examples(steps - 1) < examples


@given(sizes=_CHANGING)
def test_steps_and_images_convert_both_ways(sizes: BatchSizes) -> None:
    marks = [sizes.examples(steps) for steps in range(100)]
    assert all(earlier < later for earlier, later in pairwise(marks))
    assert [sizes.steps_for(mark) for mark in marks] == list(range(100))
