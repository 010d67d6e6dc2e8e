"""How little a network believes in an image's label, over the image and its nearest neighbours.

One image may fool the network; its neighbours by features seldom do so in the same way. Unlike a
vote of neighbours it counts what the network sees in them, not the labels they bear, which may be
wrong as well, and it has no ties.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.self_confidence import belief_phrases, confidence

_ROWS = 8192


def neighbour_confidence(evidence: Evidence, k: int) -> NDArray[np.float64]:
    """(N,): mean probability, 0 to 1, of the image's label over its `k` nearest others."""
    assert evidence.probabilities is not None
    assert evidence.neighbours is not None
    nearest = evidence.neighbours[:, :k]
    assert nearest.shape[1] == k, (nearest.shape, k)
    means = np.empty(len(nearest))
    # Block by block, since probabilities of large data are mapped from their file.
    for start in range(0, len(nearest), _ROWS):
        rows = slice(start, start + _ROWS)
        means[rows] = evidence.probabilities[nearest[rows], evidence.labels[rows, None]].mean(axis=1, dtype=np.float64)
    return means


def _values(evidence: Evidence, *, k: int) -> NDArray[np.float64]:
    """1 - the mean of the probability of the label and of its mean over the `k` nearest others."""
    return np.asarray(np.clip(1 - (confidence(evidence) + neighbour_confidence(evidence, k)) / 2, 0, 1))


def _phrases(judged: Judged) -> list[str]:
    k = judged.options["k"]
    around = neighbour_confidence(judged.evidence, k).tolist()
    return [
        f"{belief}, on average over its {k} nearest {100 * share:.2g} %"
        for belief, share in zip(belief_phrases(judged), around, strict=True)
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"classes", "neighbours", "probabilities"}))
