"""How many times more probable than an image's label its strongest other class is.

A wrong label of a clear image leaves another class far ahead, and so does the wrong label of an image
between two classes, which self-confidence takes for merely hard. The label's probability is the mean
of the trained network's and of its mean in training, which has not learned wrong labels by heart.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.margin import strongest_other
from pipeline.selection.mean_confidence import confidence_in_training
from pipeline.selection.self_confidence import confidence

# Of probabilities in single precision nothing smaller is known; a quotient of it is still finite.
_LEAST = 1e-7


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """Probability of the strongest other class over that of the label: 0 to 1e7."""
    label = (confidence(evidence) + confidence_in_training(evidence)) / 2
    return np.asarray(strongest_other(evidence) / np.maximum(label, _LEAST))


def _phrases(judged: Judged) -> list[str]:
    return [
        f"another class is {value:.2g} times as probable as its label {judged.names[label]}"
        for label, value in zip(judged.evidence.labels.tolist(), judged.values.tolist(), strict=True)
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"classes", "probabilities", "training_confidence"}))
