"""How little a network believes in an image's label (Northcutt, Jiang and Chuang, 2021, doi:10.1613/jair.1.12125)."""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer

_BLOCK_BYTES = 2**26


def row_blocks(probabilities: NDArray[np.float32]) -> list[slice]:
    """Rows of (N, C) in blocks of which a copy in double precision is small: the whole may be larger than memory."""
    size = max(1, _BLOCK_BYTES // (8 * probabilities.shape[1]))
    return [slice(start, start + size) for start in range(0, len(probabilities), size)]


def confidence(evidence: Evidence) -> NDArray[np.float64]:
    """(N,): probability, 0 to 1, that the network gives to the label of each image."""
    assert evidence.probabilities is not None
    rows = np.arange(len(evidence.labels))
    return np.asarray(evidence.probabilities[rows, evidence.labels], dtype=np.float64)


def belief_phrases(judged: Judged) -> list[str]:
    """ "the network gives its label cat 3.1 %", for each image."""
    return [
        f"the network gives its label {judged.names[label]} {100 * share:.2g} %"
        for label, share in zip(judged.evidence.labels.tolist(), confidence(judged.evidence).tolist(), strict=True)
    ]


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """1 - probability of the label."""
    # Probabilities in single precision may exceed 1 by a rounding.
    return np.clip(1 - confidence(evidence), 0, 1)


SCORER = Scorer(values=_values, phrases=belief_phrases, needs=frozenset({"classes", "probabilities"}))
