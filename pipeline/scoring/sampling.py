"""Selections that do not look for noise: grid sampling and random draws."""

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import ScoredImages, Scorer, ScorerInputs, each_class

# Stratified sampling by the cells of a grid on the map: what Gahlot et al. (2020) name as future work.


def _grid_scores(evidence: ScorerInputs, *, cells: int, seed: int) -> NDArray[np.float64]:
    """A place in a drawn order of the images of each class and cell: (place + u) / images there, 0 to 1.

    Whatever share is dropped, each cell of each class loses that share up to a single image, whose
    fate is drawn (u). The grid has `cells` x `cells` cells over the whole map.
    """
    points = evidence.points("embedding")
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    scaled = (points - low) / np.where(extent > 0, extent, 1) * cells
    column, row = np.minimum(scaled, cells - 1).astype(np.int64).T
    drawn = np.random.default_rng(seed).random(len(points))
    return each_class(_normalized_ranks, evidence.labels, row * cells + column, drawn, each=evidence.each)


def _normalized_ranks(cell: NDArray[np.int64], drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): the place of each row in the drawn order of its cell, spread evenly over 0 to 1."""
    order = np.lexsort((drawn, cell))
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    counts = np.diff(starts, append=len(cell))
    places = np.empty(len(cell))
    places[order] = np.arange(len(cell)) - np.repeat(starts, counts)
    per_cell = np.empty(len(cell))
    per_cell[order] = np.repeat(counts, counts)
    return np.asarray((places + drawn) / per_cell)


def _grid_reasons(judged: ScoredImages) -> list[str]:
    cells, seed = judged.options["cells"], judged.options["seed"]
    return [
        f"{'not drawn' if value > threshold else 'drawn'} in its cell of {cells} x {cells} on the map (seed {seed})"
        for value, threshold in judged.pairs
    ]


GRID_SCORER = Scorer(values=_grid_scores, phrases=_grid_reasons, needs=frozenset({"embedding"}))


# Chance, as a control.


def _random_draw_scores(evidence: ScorerInputs, *, seed: int) -> NDArray[np.float64]:
    """Uniform between 0 and 1."""
    return np.random.default_rng(seed).random(len(evidence.labels))


def _random_draw_reasons(judged: ScoredImages) -> list[str]:
    seed = judged.options["seed"]
    return [
        f"{'dropped' if value > threshold else 'kept'} by chance (seed {seed})" for value, threshold in judged.pairs
    ]


RANDOM_SCORER = Scorer(values=_random_draw_scores, phrases=_random_draw_reasons)
