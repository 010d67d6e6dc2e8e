"""The length of a network's error on an image (EL2N; Paul, Ganguli and Dziugaite, 2021, arXiv:2107.07075).

The paper takes the mean over several networks early in training. Here it is of the probabilities
that the extractor wrote at the end of fine-tuning, out-of-fold with `finetune.folds`.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.self_confidence import belief_phrases, row_blocks


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """|p - y| / sqrt(2), 0 to 1, of the probabilities p and the label as a unit vector y."""
    assert evidence.probabilities is not None
    squares = np.empty(len(evidence.labels))
    for rows in row_blocks(evidence.probabilities):
        errors = np.array(evidence.probabilities[rows], dtype=np.float64)
        errors[np.arange(len(errors)), evidence.labels[rows]] -= 1
        squares[rows] = (errors**2).sum(axis=1)
    return np.sqrt(squares / 2)


def _phrases(judged: Judged) -> list[str]:
    return [
        f"{belief}, an error of length {value:.2f} of 1"
        for belief, value in zip(belief_phrases(judged), judged.values.tolist(), strict=True)
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"classes", "probabilities"}))
