"""The pure plan of a batch for any (N, batch, X, Y), and the order of the samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.batching import SampleStream, rank_slices, worker_slices

_BATCHES = st.integers(1, 400)
_WORKERS = st.integers(1, 48)
# (X, Y) with Y dividing X.
_SHARED = _WORKERS.flatmap(
    lambda simulated: st.tuples(
        st.just(simulated), st.sampled_from([ranks for ranks in range(1, simulated + 1) if simulated % ranks == 0])
    )
)
_MEMBERS = st.lists(st.booleans(), min_size=1, max_size=60).filter(any).map(np.array)
_SEEDS = st.integers(0, 2**32 - 1)


@given(batch=_BATCHES, workers=_WORKERS)
def test_parts_cover_a_batch_exactly_once(batch: int, workers: int) -> None:
    parts = worker_slices(batch, workers)
    assert np.concatenate([np.arange(batch)[part] for part in parts]).tolist() == list(range(batch))


@given(batch=_BATCHES, workers=_WORKERS)
def test_parts_are_even_and_never_of_one_image(batch: int, workers: int) -> None:
    sizes = [part.stop - part.start for part in worker_slices(batch, workers)]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(batch, 2)
    assert len(sizes) == max(1, min(workers, batch // 2))


def test_parts_of_a_hand_sized_batch() -> None:
    assert worker_slices(10, 4) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    assert worker_slices(5, 4) == [slice(0, 2), slice(2, 5)]
    assert worker_slices(1, 4) == [slice(0, 1)]


@given(batch=_BATCHES, shared=_SHARED)
def test_the_parts_of_all_ranks_in_order_are_those_of_one(batch: int, shared: tuple[int, int]) -> None:
    simulated, ranks = shared
    joined = [part for rank in range(ranks) for part in rank_slices(batch, simulated, rank=rank, ranks=ranks)]
    assert joined == worker_slices(batch, simulated)


@given(share=st.integers(2, 20), shared=_SHARED)
def test_ranks_have_equally_many_parts_of_an_even_batch(share: int, shared: tuple[int, int]) -> None:
    """Averages over ranks of per-part values rely on it."""
    simulated, ranks = shared
    for rank in range(ranks):
        parts = rank_slices(share * simulated, simulated, rank=rank, ranks=ranks)
        assert [part.stop - part.start for part in parts] == [share] * (simulated // ranks)


def _first_epochs(stream: SampleStream, epochs: int, batch: int) -> NDArray[np.int64]:
    """(epochs, n_train): the ids of whole epochs, joined from batches that ignore their borders."""
    steps = -(-epochs * stream.n_train // batch)
    ids = np.concatenate([stream.batch(step, batch)[0] for step in range(steps)])
    return ids[: epochs * stream.n_train].reshape(epochs, stream.n_train)


@given(members=_MEMBERS, seed=_SEEDS, batch=st.integers(1, 150))
def test_every_epoch_is_a_permutation_of_the_members(members: NDArray[np.bool_], seed: int, batch: int) -> None:
    """Also across epoch borders inside a batch: nothing is dropped and nothing is repeated."""
    for epoch in _first_epochs(SampleStream(members, seed), 3, batch):
        assert sorted(epoch) == np.flatnonzero(members).tolist()


@given(members=_MEMBERS, seed=_SEEDS, batch=st.integers(1, 150))
def test_the_epoch_of_each_sample_is_told(members: NDArray[np.bool_], seed: int, batch: int) -> None:
    stream = SampleStream(members, seed)
    epochs = np.concatenate([stream.batch(step, batch)[1] for step in range(4)])
    assert epochs.tolist() == [position // stream.n_train for position in range(4 * batch)]


@given(members=_MEMBERS, seed=_SEEDS, batch=st.integers(1, 100), order=st.permutations(range(6)))
def test_random_access_equals_sequential(members: NDArray[np.bool_], seed: int, batch: int, order: list[int]) -> None:
    sequential, shuffled = SampleStream(members, seed), SampleStream(members, seed)
    expected = [sequential.batch(step, batch) for step in range(6)]
    for step in order:
        for got, wanted in zip(shuffled.batch(step, batch), expected[step], strict=True):
            np.testing.assert_array_equal(got, wanted)


@given(pair=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60), seed=_SEEDS)
def test_arms_meet_their_common_images_in_the_same_order(pair: list[tuple[bool, bool]], seed: int) -> None:
    one, other = np.array(pair, dtype=np.bool_).T
    if not (one.any() and other.any()):
        return
    orders = [_first_epochs(SampleStream(arm, seed), 2, 7) for arm in (one, other)]
    for first, second in zip(*orders, strict=True):
        assert first[other[first]].tolist() == second[one[second]].tolist()


def test_order_differs_between_epochs_and_seeds() -> None:
    first, second = _first_epochs(SampleStream(np.ones(50, dtype=np.bool_), 0), 2, 50)
    (other,) = _first_epochs(SampleStream(np.ones(50, dtype=np.bool_), 1), 1, 50)
    assert first.tolist() != second.tolist()
    assert first.tolist() != other.tolist()


def test_a_stream_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    SampleStream(np.ones(10, dtype=np.bool_), 0).batch(0, 5)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    np.testing.assert_equal(after, before)


def test_no_member_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        SampleStream(np.zeros(5, dtype=np.bool_), 0)
