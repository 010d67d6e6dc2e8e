"""Sums of float32 tensors whose bits depend on no order of addition, hence on no division among processes.

Every summand is rounded to a grid of multiples of a power of two, one grid for each tensor. Multiples of u add exactly
in float64 as long as no partial sum exceeds 2**53 u. So any order, bucket and collective gives the same bits. The
rounding is the first step of reproducible summation (Demmel & Nguyen 2013, Fast Reproducible Floating-Point Summation,
doi:10.1109/ARITH.2013.9), with one grid, which is known in advance.

Let the grid cover summands up to 2**(e + HEADROOM), and let 2**w be at least their number. With
u = 2**(e + HEADROOM + w - 52), a partial sum is at most 2**52 u. Elements of nearly 2**e keep 52 - HEADROOM - w bits:
34 for 4,096 summands, where float32 has 24. docs/decisions/exact-sums.md has the error of small elements.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.distributed.collectives import all_gather_object, all_reduce_sum_, arrive, is_distributed, pairwise_sum
from pipeline.distributed.hierarchical import NodeGroups

HEADROOM = 6
"""Binary orders of magnitude that a summand may grow above those which the grid was chosen for."""

# Of a tensor of zeros: the exponent of the smallest normal float32.
_SMALLEST_EXPONENT = -126


@dataclass(frozen=True)
class Grids:
    """A grid for each of several tensors.

    Attributes:
        exponents: e of each tensor: its summands are smaller than 2**e, or at most 2**HEADROOM times as large.
        sum_bits: w; at most 2**w summands are added, at least 1.
    """

    exponents: tuple[int, ...]
    sum_bits: int

    @classmethod
    def for_largest(cls, largest: Iterable[float], n_summands: int, previous: Self | None = None) -> Self:
        """Choose grids for summands of up to `largest`, one number for each tensor, finite and at least 0.

        A tensor of zeros keeps its previous grid.
        """
        kept = previous.exponents if previous else None
        exponents = [
            math.frexp(value)[1] if value else (kept[index] if kept else _SMALLEST_EXPONENT)
            for index, value in enumerate(largest)
        ]
        return cls(tuple(exponents), max(1, math.ceil(math.log2(n_summands))))

    def cover(self, largest: Iterable[float]) -> bool:
        """Return whether summands of up to `largest` add exactly, and are not too small for their grid."""
        return all(
            value == 0 or 2.0 ** (e - 1 - HEADROOM) <= value <= 2.0 ** (e + HEADROOM)
            for e, value in zip(self.exponents, largest, strict=True)
        )

    def add_rounded_(self, index: int, total: Tensor, summand: Tensor) -> None:
        """Add a summand of tensor `index` to its total (float64), rounded to its grid; non-finite stays non-finite."""
        # At 1.5 * 2**52 u the spacing of float64 is u, so that adding and subtracting it rounds to multiples of u.
        anchor = 1.5 * 2.0 ** (self.exponents[index] + HEADROOM + self.sum_bits)
        total.add_(summand.double().add_(anchor).sub_(anchor))


def largest_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute value of each tensor, (n,) float64; elements that are not finite are left out."""
    if tensors[0].device.type == "cpu":
        # On CPUs the norms below take several times as long.
        ends = [end for tensor in tensors for end in torch.aminmax(tensor)]
        largest = torch.stack([end.double() for end in ends]).abs().view(-1, 2).amax(1)
        if bool(largest.isfinite().all()):
            return largest
    # A GPU computes this at once: to read whether all are finite, the process would wait for it.
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).nan_to_num_(0.0, posinf=0.0, neginf=0.0)
    return _largest(flat.split([tensor.numel() for tensor in tensors]))


def _largest(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors), math.inf)).double()


def all_reduce_buckets_(total: Tensor, *, bucket_elements: int | None = None, nodes: NodeGroups | None = None) -> None:
    """Add the totals of all ranks in place; all ranks call it.

    Args:
        total: (n,) float64, multiples of a grid.
        bucket_elements: elements that travel in one message; None sends all in one.
        nodes: sum inside each node, then between nodes; None sums over all ranks at once.
    """
    if not is_distributed():
        return
    arrive()
    pending = []
    for bucket in total.split(bucket_elements or len(total)):
        if nodes is None:
            pending.append(dist.all_reduce(bucket, async_op=True))
            continue
        dist.reduce(bucket, dst=nodes.leader, group=nodes.local)
        if nodes.leaders is not None:
            dist.all_reduce(bucket, group=nodes.leaders)
        dist.broadcast(bucket, src=nodes.leader, group=nodes.local)
    for work in pending:
        work.wait()


class OverlappedSum:
    """Adds totals over all ranks while a backward pass completes their parts, from the last to the first.

    Buckets of neighboring parts are sent in one order on all ranks, each once it and those before it are complete.

    Args:
        total: (n,) float64, multiples of a grid.
        sizes: elements of its parts, in order.
        bucket_elements: elements that travel in one message, at most, where parts are not larger.
    """

    def __init__(self, total: Tensor, sizes: Sequence[int], *, bucket_elements: int) -> None:
        self._total = total
        self._buckets = _buckets_from_the_end(sizes, bucket_elements)
        self._bucket_of = {part: n for n, (parts, _) in enumerate(self._buckets) for part in parts}
        self._missing = [len(parts) for parts, _ in self._buckets]
        self._pending: list[Any] = []

    def complete(self, part: int) -> None:
        """Note that this rank adds nothing more to a part; the same parts become complete on all ranks."""
        self._missing[self._bucket_of[part]] -= 1
        while len(self._pending) < len(self._buckets) and self._missing[len(self._pending)] == 0:
            _, elements = self._buckets[len(self._pending)]
            self._pending.append(dist.all_reduce(self._total[elements], async_op=True))

    def wait(self) -> None:
        """Wait until all parts are summed; all of them are complete."""
        assert len(self._pending) == len(self._buckets), "a part was not completed"
        arrive()  # sending has waited for no other rank
        for work in self._pending:
            work.wait()


def _buckets_from_the_end(sizes: Sequence[int], most: int) -> list[tuple[range, slice]]:
    """Divide parts of a vector into runs of at most `most` elements; return each run's parts and elements."""
    buckets: list[tuple[range, slice]] = []
    end = stop = len(sizes)
    upper = lower = sum(sizes)
    for part in reversed(range(len(sizes))):
        if end < stop and upper - (lower - sizes[part]) > most:
            buckets.append((range(end, stop), slice(lower, upper)))
            stop, upper = end, lower
        end, lower = part, lower - sizes[part]
    return [*buckets, (range(end, stop), slice(lower, upper))]


def pairwise_sum_over_ranks(parts: Iterable[Tensor]) -> Tensor:
    """Return the pairwise sum of the parts of all ranks, in rank order; all ranks call it.

    It has equal bits for every division of the parts among ranks. All parts are in memory together.

    Args:
        parts: this rank's parts, at least one; all of one shape.
    """
    # Adding 0 replaces negative zeros, as the sum over ranks does.
    own = torch.stack([part + 0.0 for part in parts])
    counts = all_gather_object(len(own))
    first = sum(counts[: dist.get_rank()]) if is_distributed() else 0
    everything = own.new_zeros(sum(counts), *own.shape[1:])
    everything[first : first + len(own)] = own
    all_reduce_sum_(everything)
    return pairwise_sum(everything.unbind())
