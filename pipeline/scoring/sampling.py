"""Scorers that drop images without looking for noise: grid sampling, random choice and coverage-centric selection."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import SPACE_NAMES, ScoredImages, Scorer, ScorerInputs, each_class

# Scorers whose values are ratios: their logarithms (the margin for `aum`, the log odds) are divided into strata.
_RATIOS = ("aum", "label_odds")


def _grid_values(inputs: ScorerInputs, *, cells: int, seed: int) -> NDArray[np.float64]:
    """Return (rank + u) / count, 0 to 1, of each image in a random order of its class and grid cell (N,).

    Stratified sampling by the cells of a grid on the embedding, which Gahlot et al. (2020) name as future work.
    Each cell of each class loses the dropped share of its images in expectation, and never differs from it by more
    than one image, for which the random number u decides. The grid covers the embedding with `cells` x `cells` cells.
    """
    points = inputs.points("embedding")
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    scaled = (points - low) / np.where(extent > 0, extent, 1) * cells
    column, row = np.minimum(scaled, cells - 1).astype(np.int64).T
    # Two independent numbers. If `uniform` gave the order as well, the last image of a cell would have a large value
    # and nearly always be dropped.
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


GRID_SCORER = Scorer(values=_grid_values, reasons=_grid_reasons, needs=frozenset({"embedding"}))


def _random_values(inputs: ScorerInputs, *, seed: int) -> NDArray[np.float64]:
    """Return uniform random numbers (N,) between 0 and 1."""
    return np.random.default_rng(seed).random(len(inputs.labels))


def _random_reasons(scored: ScoredImages) -> list[str]:
    seed = scored.options["seed"]
    return [
        f"{'dropped' if value > threshold else 'kept'} by chance (seed {seed})" for value, threshold in scored.pairs
    ]


RANDOM_SCORER = Scorer(values=_random_values, reasons=_random_reasons)


def make_ccs(registry: Mapping[str, Scorer]) -> Scorer:
    """Return the scorer of coverage-centric selection: images of every difficulty, without the hardest.

    Zheng, Liu, Lai and Prakash (2023), Coverage-centric Coreset Selection for High Pruning Rates, arXiv 2210.15809.
    Difficulty is the value of another scorer of `registry`.
    """

    def values(
        inputs: ScorerInputs, *, scorer: Mapping[str, Any], beta: float, bins: int, seed: int
    ) -> NDArray[np.float64]:
        """Return `dropping_order` of the scorer's values (N,)."""
        options = {key: value for key, value in scorer.items() if key != "name"}
        difficulty = registry[scorer["name"]].values(inputs, **options)
        if scorer["name"] in _RATIOS:
            with np.errstate(divide="ignore"):
                difficulty = np.log(difficulty)
        return dropping_order(difficulty, beta, bins, seed)

    def reasons(scored: ScoredImages) -> list[str]:
        beta, bins, seed = (scored.options[key] for key in ("beta", "bins", "seed"))
        name = scored.options["scorer"]["name"]
        sampled = f"in its stratum of {bins} by {name} (seed {seed})"
        return [
            f"{'among' if value > threshold else 'kept, although among'} the most suspect {100 * beta:g} % by {name}"
            if value > 1
            else f"{'not sampled' if value > threshold else 'sampled'} {sampled}"
            for value, threshold in scored.pairs
        ]

    return Scorer(values=values, reasons=reasons)


def dropping_order(difficulty: NDArray[np.float64], beta: float, bins: int, seed: int) -> NDArray[np.float64]:
    """Return values (N,), 0 to 2, by which any share of the images can be dropped, the highest first.

    The hardest share `beta` is dropped first, with values above 1. The difficulties of the others are divided into
    `bins` strata of equal width. Strata keep equal numbers of random images; one with fewer images keeps all, and the
    others share the rest. A larger budget adds images to those of a smaller one.

    Args:
        difficulty: (N,), higher is harder; infinite values are the hardest.
        beta: 0 to less than 1.
        seed: of the choice within strata, and among equal difficulties.
    """
    n = len(difficulty)
    rng = np.random.default_rng(seed)
    uniform = rng.random(n)
    order = np.lexsort((uniform, difficulty))
    n_easier = n - round(beta * n)
    values = np.empty(n)
    hardest = order[n_easier:]
    values[hardest] = 1 + (np.arange(len(hardest)) + 1) / max(1, len(hardest))
    rest = order[:n_easier]
    # Equal ranks of several strata are ordered by another random number.
    rank = _random_ranks(_strata(difficulty[rest], bins), rng)
    values[rest] = (rank + rng.random(len(rest))) / (rank.max(initial=0) + 1)
    return values


def _strata(difficulty: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """Return the stratum (n,), 0 to bins - 1, of difficulties, of equal width between the finite extremes."""
    finite = difficulty[np.isfinite(difficulty)]
    low, extent = (finite.min(), np.ptp(finite)) if len(finite) else (0.0, 0.0)
    scaled = np.clip((difficulty - low) / (extent or 1.0), 0, 1)
    return np.asarray(np.minimum(scaled * bins, bins - 1), dtype=np.int64)


def _random_ranks(strata: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rank (n,), from 0, of each image in a random order of its stratum."""
    order = np.lexsort((rng.random(len(strata)), strata))
    starts = np.searchsorted(strata[order], strata[order])
    ranks = np.empty(len(strata), dtype=np.int64)
    ranks[order] = np.arange(len(strata)) - starts
    return ranks
