"""Split a global batch over simulated workers, BatchNorm groups, ranks and micro-batches.

A job has X simulated workers. The samples of each worker and their order are a pure function of seed, step and X. The
number of processes and the size of their micro-batches decide only which process computes what, and when. Axes: a
global batch is (X, share) sample ids, simulated worker major; a worker's share is (groups, group size).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

# Tags keep the random streams of one seed apart.
_ORDER = 1


@dataclass(frozen=True, kw_only=True)
class BatchSlice:
    """Samples that pass forward together: `rows` of the global batch, in whole BatchNorm groups."""

    rows: slice
    group_sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """How one rank computes its share of a global batch.

    Attributes:
        slices: those whose gradients are computed one by one, where that is needed.
        micro_batches: the same samples in the slices that pass forward together.
    """

    slices: Sequence[BatchSlice]
    micro_batches: Sequence[BatchSlice]


def worker_slices(batch_size: int, simulated_workers: int, bn_group: int | None = None) -> list[BatchSlice]:
    """Split a global batch into one slice per simulated worker, in BatchNorm groups.

    Shares differ by one sample at most, and so do the groups of a share. A batch of fewer than two samples per worker
    is spread over fewer workers: BatchNorm has no statistics of a single sample.

    Args:
        bn_group: samples of a group, or a few more if it does not divide a share; None: the share.
    """
    workers = max(1, min(simulated_workers, batch_size // 2))
    shares = _evenly(0, batch_size, workers)
    # From the smallest share, so that all workers have equally many groups.
    n_groups = max(1, batch_size // workers // bn_group) if bn_group else 1
    return [
        BatchSlice(
            rows=share,
            group_sizes=tuple(group.stop - group.start for group in _evenly(share.start, share.stop, n_groups)),
        )
        for share in shares
    ]


def rank_slices(slices: Sequence[BatchSlice], *, rank: int, world_size: int) -> list[BatchSlice]:
    """Return the consecutive slices of simulated workers that one of `world_size` processes runs.

    Args:
        slices: one per simulated worker.
        world_size: at most the number of slices.
    """
    assert len(slices) >= world_size, (len(slices), world_size)
    first, last = (len(slices) * edge // world_size for edge in (rank, rank + 1))
    return list(slices[first:last])


def merge_micro_batches(slices: Sequence[BatchSlice], max_size: int) -> list[BatchSlice]:
    """Merge slices into as few micro-batches of at most `max_size` samples as whole BatchNorm groups allow.

    Raises:
        ValueError: a single group is larger.
    """
    merged: list[BatchSlice] = []
    for start, size in _groups(slices):
        if size > max_size:
            raise ValueError(f"a BatchNorm group of {size} images is larger than a micro-batch of {max_size}")
        last = merged[-1] if merged else None
        if last and last.rows.stop == start and last.size + size <= max_size:
            merged[-1] = BatchSlice(rows=slice(last.rows.start, start + size), group_sizes=(*last.group_sizes, size))
        else:
            merged.append(BatchSlice(rows=slice(start, start + size), group_sizes=(size,)))
    return merged


def split_groups(batch_slice: BatchSlice) -> list[BatchSlice]:
    """Return each BatchNorm group as a separate slice."""
    return [BatchSlice(rows=slice(start, start + size), group_sizes=(size,)) for start, size in _groups([batch_slice])]


Reduction = Literal["ddp", "exact"]
"""How gradients are summed: see `Recipe.reduction`."""


def valid_world_sizes(simulated_workers: int, reduction: Reduction = "ddp") -> list[int]:
    """Return the numbers of processes that can share the simulated workers, ascending.

    By `exact` sums any number up to theirs, by `ddp` equally many each.
    """
    counts = range(1, simulated_workers + 1)
    return [count for count in counts if reduction == "exact" or simulated_workers % count == 0]


def _groups(slices: Sequence[BatchSlice]) -> list[tuple[int, int]]:
    """Return the first row and the size of each BatchNorm group."""
    groups = []
    for batch_slice in slices:
        start = batch_slice.rows.start
        for size in batch_slice.group_sizes:
            groups.append((start, size))
            start += size
    return groups


def _evenly(start: int, stop: int, n: int) -> list[slice]:
    edges = [start + (stop - start) * index // n for index in range(n + 1)]
    return [slice(*ends) for ends in pairwise(edges)]


class SampleStream:
    """An endless stream of training samples, epoch after epoch.

    Each epoch permutes all rows of the data set and leaves out those outside the arm. So two arms with the same seed
    see the samples that they share in the same order. Batches are cut from the stream regardless of epoch borders:
    nothing is dropped and every batch is full.

    Args:
        train_mask: (N,) bool, the arm's rows of the data set.
        seed: of the order.
    """

    def __init__(self, train_mask: NDArray[np.bool_], seed: int) -> None:
        assert train_mask.any()
        self._train_mask = train_mask
        self._seed = seed
        self._orders: dict[int, NDArray[np.int64]] = {}
        self.n_train = int(train_mask.sum())

    def samples(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return sample ids and epochs, both (count,) int64, from sample `start` of the stream on, counted from 0."""
        epochs, positions = np.divmod(np.arange(start, start + count), self.n_train)
        sample_ids = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            sample_ids[in_epoch] = self._order(int(epoch))[positions[in_epoch]]
        return sample_ids, epochs

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            # A batch spans at most the last epoch and this one.
            self._orders = {old: order for old, order in self._orders.items() if old >= epoch - 1}
            order = np.random.default_rng([self._seed, _ORDER, epoch]).permutation(len(self._train_mask))
            self._orders[epoch] = order[self._train_mask[order]]
        return self._orders[epoch]


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """The samples of one optimizer step, the same on all ranks.

    Attributes:
        sample_ids: (B,) int64, rows of the data set.
        epochs: (B,) int64, the epoch of each sample, from 0.
    """

    sample_ids: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @classmethod
    def from_stream(cls, stream: SampleStream, *, start: int, size: int) -> Self:
        """Take `size` samples from sample `start` of the stream on, counted from 0."""
        sample_ids, epochs = stream.samples(start, size)
        return cls(sample_ids=sample_ids, epochs=epochs)

    @property
    def size(self) -> int:
        return len(self.sample_ids)

    def first(self, n: int) -> Self:
        """Return the batch of the first `n` samples."""
        return type(self)(sample_ids=self.sample_ids[:n], epochs=self.epochs[:n])
