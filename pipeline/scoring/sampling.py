"""Controls that drop images without looking for noise: grid sampling and random choice."""

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import SPACE_NAMES, ScoredImages, Scorer, ScorerInputs, each_class


def _grid_scores(inputs: ScorerInputs, *, cells: int, seed: int) -> NDArray[np.float64]:
    """Return (rank + u) / count, 0 to 1, of each image in a random order of its class and grid cell (N,).

    Stratified sampling by the cells of a grid on the embedding, which Gahlot et al. (2020) name as future work.
    Each cell of each class loses the dropped share of its images in expectation, and never differs from it by more
    than one image, for which the random number u decides. The grid covers the embedding with `cells` x `cells` cells.
    """
    points = inputs.points("embedding")
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    scaled = (points - low) / np.where(extent > 0, extent, 1) * cells
    column, row = np.minimum(scaled, cells - 1).astype(np.int64).T
    # Separate numbers: the last of ten in the order of `u` has a large u, so its cell would lose it nearly always.
    shuffle, uniform = np.random.default_rng(seed).random((2, len(points)))
    return each_class(_normalized_ranks, inputs.labels, row * cells + column, shuffle, uniform, map_fn=inputs.map_fn)


def _normalized_ranks(
    cell: NDArray[np.int64], shuffle: NDArray[np.float64], uniform: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (rank + uniform) / count (n,) of each row in its cell, ranked by `shuffle`; each is uniform on 0 to 1."""
    order = np.lexsort((shuffle, cell))
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    counts = np.diff(starts, append=len(cell))
    ranks = np.empty(len(cell))
    ranks[order] = np.arange(len(cell)) - np.repeat(starts, counts)
    per_cell = np.empty(len(cell))
    per_cell[order] = np.repeat(counts, counts)
    return np.asarray((ranks + uniform) / per_cell)


def _grid_reasons(scored: ScoredImages) -> list[str]:
    cells, seed = scored.options["cells"], scored.options["seed"]
    where = f"in its cell of {cells} x {cells} {SPACE_NAMES['embedding']} (seed {seed})"
    return [f"{'not sampled' if value > threshold else 'sampled'} {where}" for value, threshold in scored.pairs]


GRID_SCORER = Scorer(values=_grid_scores, reasons=_grid_reasons, needs=frozenset({"embedding"}))


def _random_scores(inputs: ScorerInputs, *, seed: int) -> NDArray[np.float64]:
    """Return uniform random numbers (N,) between 0 and 1."""
    return np.random.default_rng(seed).random(len(inputs.labels))


def _random_reasons(scored: ScoredImages) -> list[str]:
    seed = scored.options["seed"]
    return [
        f"{'dropped' if value > threshold else 'kept'} by chance (seed {seed})" for value, threshold in scored.pairs
    ]


RANDOM_SCORER = Scorer(values=_random_scores, reasons=_random_reasons)
