"""From one global batch to its parts: simulated workers, ranks and BatchNorm groups.

The job is one of X simulated workers. What each of them sees, and in which order, is a pure
function of seed, step and X; how many processes Y do the work decides only which of them runs a
part. Axes: a global batch is (X * share,) sample ids, simulated worker major.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Tags keep the random streams of one seed apart.
_ORDER = 1


def worker_slices(batch_size: int, simulated_workers: int) -> list[slice]:
    """The part of a global batch that each simulated worker sees.

    Sizes differ by one image at most. A batch of fewer than two images per worker is spread over
    fewer of them: BatchNorm has no statistics of a single image.
    """
    parts = max(1, min(simulated_workers, batch_size // 2))
    edges = [batch_size * index // parts for index in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def rank_slices(batch_size: int, simulated_workers: int, *, rank: int, ranks: int) -> list[slice]:
    """The simulated workers' parts that one of `ranks` processes runs, one after another.

    Args:
        ranks: must divide `simulated_workers`; each process runs neighbouring ones.
    """
    assert simulated_workers % ranks == 0, (simulated_workers, ranks)
    parts = worker_slices(batch_size, simulated_workers)
    first, last = (len(parts) * edge // ranks for edge in (rank, rank + 1))
    return parts[first:last]


class SampleStream:
    """An endless sequence of training samples: epoch after epoch, without a gap between them.

    All rows of the data set are permuted, then those outside the arm are left out. So two arms
    with the same seed meet the images they share in the same order. Batches are cut from the
    stream regardless of epoch borders: nothing is dropped and every batch is full.

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

    def batch(self, step: int, batch_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sample ids and the epoch of each, both (batch_size,), of optimizer step `step` from 0."""
        positions = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, places = np.divmod(positions, self.n_train)
        ids = np.empty(batch_size, dtype=np.int64)
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
