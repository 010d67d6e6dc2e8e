"""Grid sampling takes its share of every cell in expectation, whatever the cell's size."""

import numpy as np
import pytest

from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.decision import DropFraction, decide

_SIDE = 60
_SIZES = np.array([1, 2, 10, 13])
"""Images of each cell, by cell number modulo 4."""


def _cells() -> np.ndarray:
    """Return the cell (N,) of each image."""
    return np.repeat(np.arange(_SIDE**2), _SIZES[np.arange(_SIDE**2) % 4])


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3])
def test_cells_of_every_size_lose_the_share_in_expectation(share: float) -> None:
    cells = _cells()
    row, column = np.divmod(cells, _SIDE)
    points = np.stack([column, row], axis=1).astype(np.float32)
    inputs = ScorerInputs(embeddings=points[None], labels=np.zeros(len(cells), dtype=np.int64))
    dropped = decide(inputs, {"name": "grid", "cells": _SIDE, "seed": 0}, DropFraction(fraction=share)).is_noise
    for index, size in enumerate(_SIZES):
        losses = np.bincount(cells, weights=dropped)[index::4]
        assert abs(losses - size * share).max() <= 1
        part = size * share % 1
        # Four standard errors of the mean of as many independent cells, and of the threshold.
        tolerance = 4 * np.sqrt(part * (1 - part) / len(losses)) + 0.01
        assert losses.mean() == pytest.approx(size * share, abs=tolerance), size
