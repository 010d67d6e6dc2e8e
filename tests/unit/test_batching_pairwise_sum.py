"""The fixed order of additions behind bitwise equal results on any number of processes."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.batching import rank_slices, valid_world_sizes, worker_slices
from pipeline.distributed import pairwise_sum


def _leaves(n: int, seed: int = 0) -> list[Tensor]:
    """Return numbers of many magnitudes, so that the order of additions changes the bits."""
    rng = np.random.default_rng([n, seed])
    return [torch.from_numpy(rng.normal(size=20) * 10.0 ** rng.integers(-6, 6, 20)).float() for _ in range(n)]


@given(n=st.integers(1, 64), seed=st.integers(0, 99), data=st.data())
def test_partial_sums_of_ranks_give_the_bits_of_one_rank(n: int, seed: int, data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from(valid_world_sizes(n, "tree")))
    parts = worker_slices(2 * n, n)
    by_part = dict(zip([part.rows.start for part in parts], _leaves(n, seed), strict=True))

    def partial(rank: int) -> Tensor:
        return pairwise_sum(
            by_part[part.rows.start].clone() for part in rank_slices(parts, rank=rank, world_size=ranks)
        )

    assert torch.equal(pairwise_sum(partial(rank) for rank in range(ranks)), pairwise_sum(_leaves(n, seed)))


@given(n=st.integers(1, 64))
def test_every_number_is_added(n: int) -> None:
    leaves = [leaf.double() for leaf in _leaves(n)]
    torch.testing.assert_close(pairwise_sum(leaf.clone() for leaf in leaves), torch.stack(leaves).sum(0))


def test_the_tree_of_five_by_hand() -> None:
    a, b, c, d, e = _leaves(5)
    assert torch.equal(pairwise_sum(_leaves(5)), ((a + b) + (c + d)) + e)


def test_other_orders_give_other_bits() -> None:
    """Without this the first test would prove nothing."""
    total = torch.zeros(20)
    for leaf in _leaves(16):
        total = total + leaf
    assert not torch.equal(pairwise_sum(_leaves(16)), total)


def test_ranks_that_are_not_aligned_give_other_bits() -> None:
    """Two ranks of six: the tree over twelve pairs (8) + (4), not (6) + (6)."""
    leaves = _leaves(12)
    halves = [pairwise_sum(leaf.clone() for leaf in leaves[start : start + 6]) for start in (0, 6)]
    assert not torch.equal(pairwise_sum(halves), pairwise_sum(leaves))
