"""Votes of an image's nearest neighbors for its label, and how reasons name them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 2**26
# More votes are counted row by row, since a comparison of all pairs takes longer.
_MAX_COMPARED = 64


def neighbor_vote(neighbors: NDArray[np.integer], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most frequent label (N,) of each image's neighbors (N, k).

    In a tie, the label of the image wins if it is among the most frequent, else that of the nearest such neighbor.
    """
    k = neighbors.shape[1]
    if k > _MAX_COMPARED:
        rows = zip(neighbors, labels, strict=True)
        return np.array([_most_frequent(labels[row], int(own)) for row, own in rows], dtype=np.int64)
    winners, block = np.empty(len(neighbors), dtype=np.int64), _BLOCK_BYTES // max(1, k * k)
    for start in range(0, len(neighbors), block):
        part = slice(start, start + block)
        votes, own = labels[neighbors[part]], labels[part]
        # Pairwise comparison: k is small, and there may be a thousand classes.
        counts = (votes[:, :, None] == votes[:, None, :]).sum(axis=2)
        most = np.take_along_axis(votes, counts.argmax(axis=1)[:, None], axis=1)[:, 0]
        n_same = (votes == own[:, None]).sum(axis=1)
        winners[part] = np.where(n_same >= counts.max(axis=1, initial=0), own, most)
    return winners


def _most_frequent(votes: NDArray[np.int64], own: int) -> int:
    """Return the label with the most votes (k,), nearest first; in a tie as `neighbor_vote`."""
    counts = np.bincount(votes, minlength=own + 1)
    most = counts.max()
    return own if counts[own] == most else int(votes[(counts[votes] == most).argmax()])


def neighbor_phrases(
    neighbors: NDArray[np.integer], labels: NDArray[np.int64], class_names: Sequence[str]
) -> list[str]:
    """Say which class most of each image's neighbors have: "7 of 10 nearest neighbors are truck".

    In a tie the class is that of `neighbor_vote`.

    Args:
        neighbors: (N, k) rows of the nearest other images.
        labels: (N,) indices into `class_names`.
    """
    k = neighbors.shape[1]
    winners = neighbor_vote(neighbors, labels)
    votes = (labels[neighbors] == winners[:, None]).sum(axis=1)
    return [
        f"{count} of {k} nearest neighbors {'share its label' if winner == label else f'are {class_names[winner]}'}"
        for count, winner, label in zip(votes.tolist(), winners.tolist(), labels.tolist(), strict=True)
    ]
