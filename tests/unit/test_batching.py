"""The pure plan of a batch for any (N, batch, X, Y, group, micro-batch), and the order of the samples."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.batching import (
    BatchSlice,
    SampleStream,
    merge_micro_batches,
    rank_slices,
    split_groups,
    valid_world_sizes,
    worker_slices,
)
from pipeline.durations import BatchSizes, BatchStage

_BATCHES = st.integers(1, 400)
_WORKERS = st.integers(1, 48)
_GROUPS = st.none() | st.integers(2, 64)
_MEMBERS = st.lists(st.booleans(), min_size=1, max_size=60).filter(any).map(np.array)
_SEEDS = st.integers(0, 2**32 - 1)


def _rows(parts: list[BatchSlice]) -> list[int]:
    return [row for part in parts for row in range(part.rows.start, part.rows.stop)]


def _groups(parts: list[BatchSlice]) -> list[int]:
    return [size for part in parts for size in part.group_sizes]


# Simulated workers and their BatchNorm groups


@given(batch=_BATCHES, workers=_WORKERS, bn_group=_GROUPS)
def test_parts_and_their_groups_cover_a_batch_exactly_once(batch: int, workers: int, bn_group: int | None) -> None:
    parts = worker_slices(batch, workers, bn_group)
    assert _rows(parts) == list(range(batch))
    for part in parts:
        assert part.size == sum(part.group_sizes) == len(range(batch)[part.rows])


@given(batch=_BATCHES, workers=_WORKERS, bn_group=_GROUPS)
def test_shares_are_even_and_groups_never_of_one_image(batch: int, workers: int, bn_group: int | None) -> None:
    parts = worker_slices(batch, workers, bn_group)
    shares = [part.size for part in parts]
    assert max(shares) - min(shares) <= 1
    assert len(parts) == max(1, min(workers, batch // 2))
    assert min(_groups(parts)) >= min(batch, 2)
    assert len({len(part.group_sizes) for part in parts}) == 1, "workers differ in their number of groups"
    assert all(max(part.group_sizes) - min(part.group_sizes) <= 1 for part in parts)


@given(batch=_BATCHES, workers=_WORKERS, bn_group=st.integers(2, 64))
def test_groups_have_the_wanted_size_or_a_few_more(batch: int, workers: int, bn_group: int) -> None:
    parts = worker_slices(batch, workers, bn_group)
    share = min(part.size for part in parts)
    wanted = min(bn_group, share)
    assert all(wanted <= size <= 2 * wanted for size in _groups(parts))
    if share % bn_group == 0:
        assert all(part.group_sizes == (bn_group,) * (share // bn_group) for part in parts if part.size == share)


@given(batch=_BATCHES, workers=_WORKERS)
def test_without_a_wanted_size_a_group_is_a_worker(batch: int, workers: int) -> None:
    assert all(part.group_sizes == (part.size,) for part in worker_slices(batch, workers))


def test_parts_of_a_hand_sized_batch() -> None:
    assert [part.rows for part in worker_slices(10, 4)] == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    assert [part.rows for part in worker_slices(5, 4)] == [slice(0, 2), slice(2, 5)]
    assert [part.rows for part in worker_slices(1, 4)] == [slice(0, 1)]
    assert [part.group_sizes for part in worker_slices(21, 2, 3)] == [(3, 3, 4), (3, 4, 4)]
    assert [part.group_sizes for part in worker_slices(8, 2, 3)] == [(4,), (4,)]


# Ranks


@given(batch=_BATCHES, workers=_WORKERS, bn_group=_GROUPS, data=st.data())
def test_the_parts_of_all_ranks_in_order_are_those_of_one(
    batch: int, workers: int, bn_group: int | None, data: st.DataObject
) -> None:
    """Also for numbers that do not divide: what a rank runs never changes what is run."""
    parts = worker_slices(batch, workers, bn_group)
    ranks = data.draw(st.integers(1, len(parts)))
    each = [rank_slices(parts, rank=rank, world_size=ranks) for rank in range(ranks)]
    assert [part for mine in each for part in mine] == parts
    assert {len(mine) for mine in each} <= {len(parts) // ranks, -(-len(parts) // ranks)}


@given(workers=_WORKERS, share=st.integers(2, 9), data=st.data())
def test_ranks_that_fit_have_equally_much_to_do(workers: int, share: int, data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from(valid_world_sizes(workers)))
    parts = worker_slices(share * workers, workers)
    assert [len(rank_slices(parts, rank=rank, world_size=ranks)) for rank in range(ranks)] == [workers // ranks] * ranks


def test_more_ranks_than_parts_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        rank_slices(worker_slices(4, 8), rank=0, world_size=8)


@given(workers=st.integers(1, 300))
def test_fitting_ranks_are_the_divisors(workers: int) -> None:
    assert valid_world_sizes(workers) == [n for n in range(1, workers + 1) if workers % n == 0]


def test_fitting_ranks_of_twelve_workers() -> None:
    assert valid_world_sizes(12) == [1, 2, 3, 4, 6, 12]
    assert valid_world_sizes(12, "exact") == list(range(1, 13))


# Micro-batches


@given(batch=st.integers(2, 400), workers=_WORKERS, bn_group=_GROUPS, data=st.data())
def test_micro_batches_are_complete_groups_in_order(
    batch: int, workers: int, bn_group: int | None, data: st.DataObject
) -> None:
    parts = worker_slices(batch, workers, bn_group)
    max_size = data.draw(st.integers(max(_groups(parts)), batch))
    ranks = data.draw(st.integers(1, min(4, len(parts))))
    for rank in range(ranks):
        mine = rank_slices(parts, rank=rank, world_size=ranks)
        passes = merge_micro_batches(mine, max_size)
        assert _rows(passes) == _rows(mine)
        assert _groups(passes) == _groups(mine), "a group was cut, joined with another or moved"
        assert all(part.size == sum(part.group_sizes) <= max_size for part in passes)
        # As few as there can be: the next group would not have fitted.
        assert all(one.size + other.group_sizes[0] > max_size for one, other in pairwise(passes))


@given(batch=st.integers(2, 400), workers=_WORKERS, bn_group=_GROUPS, data=st.data())
def test_a_group_above_a_micro_batch_is_not_cut(
    batch: int, workers: int, bn_group: int | None, data: st.DataObject
) -> None:
    parts = worker_slices(batch, workers, bn_group)
    too_few = data.draw(st.integers(1, max(_groups(parts)) - 1))
    with pytest.raises(ValueError, match=rf"\b{too_few}\b"):
        merge_micro_batches(parts, too_few)


def test_groups_of_a_slice_are_split_in_order() -> None:
    expected = [BatchSlice(rows=slice(4, 7), group_sizes=(3,)), BatchSlice(rows=slice(7, 11), group_sizes=(4,))]
    assert split_groups(BatchSlice(rows=slice(4, 11), group_sizes=(3, 4))) == expected


def test_rows_that_are_not_neighbors_do_not_pass_together() -> None:
    first, _, last = worker_slices(6, 3)
    assert merge_micro_batches([first, last], 6) == [first, last]


# The order of the samples


def _first_epochs(stream: SampleStream, epochs: int, batch: int) -> NDArray[np.int64]:
    """(epochs, n_train): the ids of complete epochs, joined from batches that ignore their borders."""
    steps = -(-epochs * stream.n_train // batch)
    ids = np.concatenate([stream.samples(step * batch, batch)[0] for step in range(steps)])
    return ids[: epochs * stream.n_train].reshape(epochs, stream.n_train)


@given(members=_MEMBERS, seed=_SEEDS, batch=st.integers(1, 150))
def test_every_epoch_is_a_permutation_of_the_members(members: NDArray[np.bool_], seed: int, batch: int) -> None:
    """Also across epoch borders inside a batch: nothing is dropped and nothing is repeated."""
    for epoch in _first_epochs(SampleStream(members, seed), 3, batch):
        assert sorted(epoch) == np.flatnonzero(members).tolist()


@given(members=_MEMBERS, seed=_SEEDS, batch=st.integers(1, 150))
def test_the_epoch_of_each_sample_is_returned(members: NDArray[np.bool_], seed: int, batch: int) -> None:
    stream = SampleStream(members, seed)
    epochs = np.concatenate([stream.samples(step * batch, batch)[1] for step in range(4)])
    assert epochs.tolist() == [position // stream.n_train for position in range(4 * batch)]


@given(members=_MEMBERS, seed=_SEEDS, batch=st.integers(1, 100), order=st.permutations(range(6)))
def test_random_access_equals_sequential(members: NDArray[np.bool_], seed: int, batch: int, order: list[int]) -> None:
    sequential, shuffled = SampleStream(members, seed), SampleStream(members, seed)
    expected = [sequential.samples(step * batch, batch) for step in range(6)]
    for step in order:
        for got, wanted in zip(shuffled.samples(step * batch, batch), expected[step], strict=True):
            np.testing.assert_array_equal(got, wanted)


@given(
    members=_MEMBERS,
    seed=_SEEDS,
    final=st.integers(1, 150),
    stages=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 5)), max_size=4),
)
def test_batches_of_changing_sizes_are_one_stream(
    members: NDArray[np.bool_], seed: int, final: int, stages: list[tuple[int, int]]
) -> None:
    """No image twice or left out in an epoch, wherever sizes change, and the same order for all sizes."""
    ends = np.cumsum([steps for _, steps in stages], dtype=int).tolist()
    sizes = BatchSizes(
        final=final,
        stages=tuple(
            BatchStage(batch_size=size, until_step=end) for (size, _), end in zip(stages, ends, strict=True)
        ),
    )  # fmt: skip
    stream, steps = SampleStream(members, seed), sizes.steps_for(3 * members.sum())
    ids, epochs = (
        np.concatenate(each)
        for each in zip(
            *(stream.samples(sizes.examples(step), sizes.size_at(step)) for step in range(steps)), strict=True
        )
    )
    assert len(ids) == sizes.examples(steps)
    plain = SampleStream(members, seed).samples(0, len(ids))
    np.testing.assert_array_equal((ids, epochs), plain)
    for epoch in range(3):
        assert sorted(ids[epochs == epoch]) == np.flatnonzero(members).tolist()


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
    SampleStream(np.ones(10, dtype=np.bool_), 0).samples(0, 5)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    np.testing.assert_equal(after, before)


def test_an_empty_mask_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        SampleStream(np.zeros(5, dtype=np.bool_), 0)
