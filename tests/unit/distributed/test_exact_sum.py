"""Sums on grids: equal bits in any order and division, and as near to the true sum as float32 can tell."""

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, permutations
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.distributed.exact_sum import HEADROOM, Grids, OverlappedSum, largest_finite, pairwise_sum_over_ranks

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
LEAVES = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.lists(FLOATS, min_size=size, max_size=size), min_size=1, max_size=6)
)


def _tensors(leaves: list[list[float]]) -> list[Tensor]:
    return [torch.tensor(leaf, dtype=torch.float32) for leaf in leaves]


def _grids(leaves: list[Tensor]) -> Grids:
    largest = torch.stack([largest_finite([leaf]) for leaf in leaves]).amax(0)
    return Grids.for_largest(largest.tolist(), len(leaves))


def _sum(leaves: list[Tensor], grids: Grids) -> Tensor:
    total = torch.zeros(leaves[0].numel(), dtype=torch.float64)
    for leaf in leaves:
        grids.add_rounded_(0, total, leaf)
    return total


def _bits(values: Tensor) -> bytes:
    return values.numpy().tobytes()


def _ring(parts: Sequence[Tensor]) -> Tensor:
    """Add in the order of a ring all-reduce: each of n chunks goes once around, beginning at another rank."""
    n = len(parts)
    chunks = [part.tensor_split(n) for part in parts]
    return torch.cat(
        [reduce(torch.add, [chunks[(first + step) % n][first] for step in range(n)]) for first in range(n)]
    )


def _tree(parts: Sequence[Tensor]) -> Tensor:
    """Add in the order of a binomial tree: the ranks take the sums of those 1, 2, 4, ... above them."""
    sums, stride = list(parts), 1
    while stride < len(sums):
        for rank in range(0, len(sums) - stride, 2 * stride):
            sums[rank] = sums[rank] + sums[rank + stride]
        stride *= 2
    return sums[0]


def _halving(parts: Sequence[Tensor]) -> Tensor:
    """Add in the order of recursive halving: pairs exchange halves; ranks above a power of two add theirs before."""
    power = 1 << (len(parts).bit_length() - 1)
    above = parts[power:]
    sums = [*(one + other for one, other in zip(parts, above, strict=False)), *parts[len(above) : power]]
    if power == 1:
        return sums[0]
    pairs, middle = list(zip(sums[: power // 2], sums[power // 2 :], strict=True)), len(sums[0]) // 2
    lower = _halving([one[:middle] + other[:middle] for one, other in pairs])
    return torch.cat([lower, _halving([other[middle:] + one[middle:] for one, other in pairs])])


_COLLECTIVES = (_ring, _tree, _halving)


@given(LEAVES, st.randoms())
def test_every_order_and_division_has_the_same_bits(leaves: list[list[float]], random: object) -> None:
    tensors = _tensors(leaves)
    grids = _grids(tensors)
    expected = _bits(_sum(tensors, grids))
    for order in list(permutations(tensors))[:24]:
        assert _bits(_sum(list(order), grids)) == expected
    for cut in range(1, len(tensors)):
        parts = _sum(tensors[:cut], grids) + _sum(tensors[cut:], grids)
        assert _bits(parts) == expected
        # A collective may start from zeros, and may add in another order.
        assert _bits(torch.zeros_like(parts) + _sum(tensors[cut:], grids) + _sum(tensors[:cut], grids)) == expected


@given(LEAVES)
def test_the_orders_of_collectives_have_the_same_bits(leaves: list[list[float]]) -> None:
    """Of one leaf on each rank, and of two on each."""
    tensors = _tensors(leaves)
    grids = _grids(tensors)
    expected = _bits(_sum(tensors, grids))
    for share in (1, 2):
        parts = [_sum(tensors[first : first + share], grids) for first in range(0, len(tensors), share)]
        for collective in _COLLECTIVES:
            assert _bits(collective(parts)) == expected, collective.__name__


@given(LEAVES)
def test_the_sum_is_within_half_a_grid_step_for_each_leaf(leaves: list[list[float]]) -> None:
    tensors = _tensors(leaves)
    grids = _grids(tensors)
    step = Fraction(2) ** (grids.exponents[0] + HEADROOM + grids.sum_bits - 52)
    for index, value in enumerate(_sum(tensors, grids).tolist()):
        true = sum(Fraction(leaf[index].item()) for leaf in tensors)
        assert abs(Fraction(value) - true) <= len(tensors) * step / 2


def test_a_grid_is_left_in_both_directions() -> None:
    grids = Grids.for_largest([1.5, 0.0], 4096)
    assert grids.cover([1.5, 0.0])
    assert grids.cover([0.0, 0.0])
    assert grids.cover([2.0 ** (1 + HEADROOM), 0.0])
    assert not grids.cover([2.0 ** (1 + HEADROOM) * 1.01, 0.0])
    assert grids.cover([2.0**-HEADROOM, 0.0])
    # Smaller ones would have fewer bits than float32.
    assert not grids.cover([2.0**-HEADROOM * 0.99, 0.0])


@pytest.mark.parametrize("growth", [2.0**HEADROOM, 1.0, 2.0**-HEADROOM])
def test_summands_that_fill_the_headroom_still_add_exactly(growth: float) -> None:
    n = 64
    grids = Grids.for_largest([1.0], n)
    leaf = torch.tensor([2.0 * growth - 2.0 * growth * 2**-24], dtype=torch.float32)
    assert grids.cover(largest_finite([leaf]).tolist())
    assert _sum([leaf] * n, grids).item() == pytest.approx(n * leaf.item(), rel=2**-27)
    assert not grids.cover([2.0 ** (1 + HEADROOM) * 1.01])


def test_zeros_denormals_and_the_largest_floats_have_a_grid() -> None:
    info = np.finfo(np.float32)
    for value in (0.0, float(info.smallest_subnormal), float(info.max)):
        leaf = torch.tensor([value, -value, 0.0])
        grids = _grids([leaf, leaf])
        total = _sum([leaf, leaf], grids)
        assert total.tolist() == [2 * value, -2 * value, 0.0]
        assert total.isfinite().all()
    assert Grids.for_largest([0.0], 4, previous=Grids((7,), 2)).exponents == (7,)


def test_a_single_nan_or_infinity_stays_and_does_not_move_the_grid() -> None:
    leaf = torch.tensor([1.0, float("inf"), float("nan"), -2.0])
    assert largest_finite([leaf, torch.tensor([3.0])]).tolist() == [2.0, 3.0]
    total = _sum([leaf, torch.ones(4)], Grids.for_largest([2.0], 2))
    assert total[0] == 2.0
    assert total[1] == float("inf")
    assert total[2].isnan()
    assert total[3] == -1.0


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), most=st.integers(1, 20), data=st.data())
def test_overlapped_buckets_send_every_element_once_in_one_order(
    sizes: list[int], most: int, data: st.DataObject
) -> None:
    """From the last part to the first, and no bucket before it is complete, whatever the order of completion."""
    total, sent = torch.arange(float(sum(sizes))), list[list[float]]()

    def send(bucket: Tensor, *, async_op: bool) -> object:
        assert async_op
        sent.append(bucket.tolist())
        return SimpleNamespace(wait=lambda: None)

    edges = [0, *accumulate(sizes)]
    done: set[float] = set()
    with patch("torch.distributed.all_reduce", send):
        overlapped = OverlappedSum(total, sizes, bucket_elements=most)
        for part in data.draw(st.permutations(range(len(sizes)))):
            done |= set(total[edges[part] : edges[part + 1]].tolist())
            overlapped.complete(part)
            assert {value for bucket in sent for value in bucket} <= done
        overlapped.wait()
    assert [value for bucket in sent[::-1] for value in bucket] == total.tolist()
    assert all(len(bucket) <= most or len(bucket) in sizes for bucket in sent)


def test_rounding_to_a_grid_is_needed() -> None:
    """Float32 and float64 sums of the same summands depend on their order."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(1000, generator=generator) * 10.0 ** (3 * index - 9) for index in range(7)]
    forward, backward = (sum(leaf.double() for leaf in order) for order in (leaves, leaves[::-1]))
    assert not torch.equal(torch.as_tensor(forward), torch.as_tensor(backward))
    unrounded = [leaf.double() for leaf in leaves]
    assert len({_bits(torch.as_tensor(forward)), *(_bits(add(unrounded)) for add in _COLLECTIVES)}) == 4
    grids = _grids(leaves)
    assert torch.equal(_sum(leaves, grids), _sum(leaves[::-1], grids))
    rounded = [_sum([leaf], grids) for leaf in leaves]
    assert {_bits(add(rounded)) for add in _COLLECTIVES} == {_bits(_sum(leaves, grids))}


def test_the_ordered_sum_of_one_process_has_no_negative_zero() -> None:
    total = pairwise_sum_over_ranks(torch.tensor([[-0.0, 1.0], [-0.0, 2.0], [-0.0, 3.0]]).unbind())
    assert total.tolist() == [0.0, 6.0]
    assert not torch.signbit(total).any()
