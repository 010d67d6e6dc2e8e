"""Choose which near duplicates to drop."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray


def redundant_rows(
    pairs: NDArray[np.int64],
    keep: NDArray[np.bool_],
    scores: NDArray[np.float64],
    *,
    decided: Collection[int] = (),
    kept_by_hand: Collection[int] = (),
) -> dict[int, int]:
    """Return the training images to drop as near duplicates: row -> the row that it nearly equals.

    An image is dropped if it nearly equals a test image. The others are taken in the order of their scores, the least
    suspect first, and dropped if they nearly equal a training image that is kept. So of two near duplicates without a
    decision by hand, at most one is kept. Images that the filter drops are not considered.

    Args:
        pairs: (P, 2) rows of near duplicates, the most similar first; rows from N on are test images.
        keep: (N,) the filter's decision.
        scores: (N,) of the filter; of a pair the less suspect image stays.
        decided: rows with a decision by hand.
        kept_by_hand: those of them that are kept.
    """
    partners: dict[int, list[int]] = {}
    for first, second in pairs.tolist():
        partners.setdefault(first, []).append(second)
        partners.setdefault(second, []).append(first)
    n = len(keep)
    undecided = [row for row in partners if row < n and keep[row] and row not in decided]
    kept = set(kept_by_hand)
    redundant: dict[int, int] = {}
    for row in sorted(undecided, key=lambda row: (scores[row], row)):
        # The partners are in the order of the pairs, the most similar first.
        duplicate_of = next((other for other in partners[row] if other >= n), None)
        if duplicate_of is None:
            duplicate_of = next((other for other in partners[row] if other in kept), None)
        if duplicate_of is None:
            kept.add(row)
        else:
            redundant[row] = duplicate_of
    return redundant
