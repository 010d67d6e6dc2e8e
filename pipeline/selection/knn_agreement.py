"""How many of an image's nearest neighbours have another label (Wilson's editing rule, 1972, as a score)."""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.reasons import neighbour_phrases


def _values(evidence: Evidence, *, k: int) -> NDArray[np.float64]:
    """Share, 0 to 1, of the `k` nearest others by principal components that have another label."""
    assert evidence.neighbours is not None
    nearest = evidence.neighbours[:, :k]
    assert nearest.shape[1] == k, (nearest.shape, k)
    others = evidence.labels[nearest] != evidence.labels[:, None]
    return np.asarray(others.mean(axis=1), dtype=np.float64)


def _phrases(judged: Judged) -> list[str]:
    neighbours = judged.evidence.neighbours
    assert neighbours is not None
    return neighbour_phrases(neighbours[:, : judged.options["k"]], judged.evidence.labels, judged.names)


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"classes", "neighbours"}))
