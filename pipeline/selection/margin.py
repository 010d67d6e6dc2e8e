"""By how much a network prefers another class to an image's label (normalized margin of Northcutt et al., 2021)."""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.self_confidence import belief_phrases, confidence, row_blocks


def strongest_other(evidence: Evidence) -> NDArray[np.float64]:
    """(N,): probability of the most probable class that is not the label."""
    assert evidence.probabilities is not None
    strongest = np.empty(len(evidence.labels))
    for rows in row_blocks(evidence.probabilities):
        others = np.array(evidence.probabilities[rows], dtype=np.float64)
        others[np.arange(len(others)), evidence.labels[rows]] = -np.inf
        strongest[rows] = others.max(axis=1)
    return strongest


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """(1 + probability of the strongest other class - probability of the label) / 2: 0 to 1."""
    return np.asarray(np.clip((1 + strongest_other(evidence) - confidence(evidence)) / 2, 0, 1))


def _phrases(judged: Judged) -> list[str]:
    return [
        f"{belief}, its strongest other class {100 * (2 * value - 1):+.2g} points more"
        for belief, value in zip(belief_phrases(judged), judged.values.tolist(), strict=True)
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"classes", "probabilities"}))
