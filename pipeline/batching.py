"""From one global batch to its parts: simulated workers, BatchNorm groups, ranks and micro-batches.

The job is one of X simulated workers. What each of them sees, and in which order, is a pure
function of seed, step and X; how many processes Y do the work, and how many images they pass
forward at a time, decides only who computes what when. Axes: a global batch is
(X, share) sample ids, simulated worker major; a worker's share is (groups, group size).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Tags keep the random streams of one seed apart.
_ORDER = 1


@dataclass(frozen=True, kw_only=True)
class BatchSlice:
    """Images that pass forward together: `rows` of the global batch, which are whole BatchNorm groups."""

    rows: slice
    group_sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """How one rank computes its share of a global batch.

    Attributes:
        leaves: the parts whose gradients are added one by one, where they are.
        passes: the same images as they pass forward together.
    """

    tree_leaves: Sequence[BatchSlice]
    micro_batches: Sequence[BatchSlice]


def worker_slices(batch_size: int, simulated_workers: int, bn_group: int | None = None) -> list[BatchSlice]:
    """The part of a global batch that each simulated worker sees, in its BatchNorm groups.

    Shares differ by one image at most, and so do the groups of a share. A batch of fewer than two
    images per worker is spread over fewer of them: BatchNorm has no statistics of a single image.

    Args:
        bn_group: images of a group, or a few more where it does not divide a share; None: the share.
    """
    workers = max(1, min(simulated_workers, batch_size // 2))
    shares = _evenly(0, batch_size, workers)
    # Of the smallest share, so that every worker has as many groups as the others.
    n_groups = max(1, batch_size // workers // bn_group) if bn_group else 1
    return [
        BatchSlice(
            rows=share,
            group_sizes=tuple(group.stop - group.start for group in _evenly(share.start, share.stop, n_groups)),
        )
        for share in shares
    ]


def rank_slices(parts: Sequence[BatchSlice], *, rank: int, ranks: int) -> list[BatchSlice]:
    """The simulated workers' parts that one of `ranks` processes runs: neighbours, none left out.

    Args:
        ranks: at most as many as there are parts.
    """
    assert len(parts) >= ranks, (len(parts), ranks)
    first, last = (len(parts) * edge // ranks for edge in (rank, rank + 1))
    return list(parts[first:last])


def merge_micro_batches(parts: Sequence[BatchSlice], max_size: int) -> list[BatchSlice]:
    """The same images in as few forward passes of at most `max_size` images as whole groups allow.

    Raises:
        ValueError: a group alone is larger.
    """
    merged: list[BatchSlice] = []
    for start, size in _groups(parts):
        if size > max_size:
            raise ValueError(f"a BatchNorm group of {size} images is larger than a micro-batch of {max_size}")
        last = merged[-1] if merged else None
        if last and last.rows.stop == start and last.size + size <= max_size:
            merged[-1] = BatchSlice(rows=slice(last.rows.start, start + size), group_sizes=(*last.group_sizes, size))
        else:
            merged.append(BatchSlice(rows=slice(start, start + size), group_sizes=(size,)))
    return merged


def split_groups(part: BatchSlice) -> list[BatchSlice]:
    """Each BatchNorm group as a part of its own."""
    return [BatchSlice(rows=slice(start, start + size), group_sizes=(size,)) for start, size in _groups([part])]


def valid_world_sizes(simulated_workers: int, *, aligned: bool) -> list[int]:
    """How many processes can share the simulated workers, ascending.

    Args:
        aligned: also every process's partial sum must be a subtree of the pairwise sum over all
            simulated workers: alone, or with a power of two of them each.
    """
    divisors = [count for count in range(1, simulated_workers + 1) if simulated_workers % count == 0]
    return [n for n in divisors if not aligned or n == 1 or (simulated_workers // n).bit_count() == 1]


def _groups(parts: Sequence[BatchSlice]) -> list[tuple[int, int]]:
    """First row and size of each group."""
    found = []
    for part in parts:
        start = part.rows.start
        for size in part.group_sizes:
            found.append((start, size))
            start += size
    return found


def _evenly(start: int, stop: int, n: int) -> list[slice]:
    edges = [start + (stop - start) * index // n for index in range(n + 1)]
    return [slice(*ends) for ends in pairwise(edges)]


class SampleStream:
    """An endless sequence of training samples: epoch after epoch, without a gap between them.

    All rows of the data set are permuted, then those outside the arm are left out. So two arms
    with the same seed meet the images they share in the same order. Batches, of whatever sizes, are
    cut from the stream regardless of epoch borders: nothing is dropped and every batch is full.

    Args:
        members: (N,) bool, the arm's rows of the data set.
        seed: of the order.
    """

    def __init__(self, members: NDArray[np.bool_], seed: int) -> None:
        assert members.any()
        self._members = members
        self._seed = seed
        self._orders: dict[int, NDArray[np.int64]] = {}
        self.n_train = int(members.sum())

    def samples(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sample ids and the epoch of each, both (count,), from sample `start` of the stream on, counted from 0."""
        epochs, places = np.divmod(np.arange(start, start + count), self.n_train)
        ids = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            ids[here] = self._order(int(epoch))[places[here]]
        return ids, epochs

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            # Only the epochs that a batch can span are kept.
            self._orders = {old: order for old, order in self._orders.items() if old >= epoch - 1}
            order = np.random.default_rng([self._seed, _ORDER, epoch]).permutation(len(self._members))
            self._orders[epoch] = order[self._members[order]]
        return self._orders[epoch]
