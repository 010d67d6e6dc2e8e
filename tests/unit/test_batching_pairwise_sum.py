"""Sums in pairs: every summand counts, in one fixed order."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.distributed import pairwise_sum


def _leaves(n: int, seed: int = 0) -> list[Tensor]:
    """Return numbers of many magnitudes, so that the order of additions changes the bits."""
    rng = np.random.default_rng([n, seed])
    return [torch.from_numpy(rng.normal(size=20) * 10.0 ** rng.integers(-6, 6, 20)).float() for _ in range(n)]


@given(n=st.integers(1, 64))
def test_every_number_is_added(n: int) -> None:
    leaves = [leaf.double() for leaf in _leaves(n)]
    torch.testing.assert_close(pairwise_sum(leaf.clone() for leaf in leaves), torch.stack(leaves).sum(0))


def test_the_pairs_of_five_by_hand() -> None:
    a, b, c, d, e = _leaves(5)
    assert torch.equal(pairwise_sum(_leaves(5)), ((a + b) + (c + d)) + e)


def test_other_orders_give_other_bits() -> None:
    """Without this the test above would prove nothing."""
    total = torch.zeros(20)
    for leaf in _leaves(16):
        total = total + leaf
    assert not torch.equal(pairwise_sum(_leaves(16)), total)
