"""How little a network believed in an image's label while it trained.

The mean over the training (confidence in Swayamdipta et al., 2020, Dataset Cartography, section 2.1)
remembers the doubts of epochs before the network had learned a wrong label by heart.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.self_confidence import confidence


def confidence_in_training(evidence: Evidence) -> NDArray[np.float64]:
    """(N,): mean probability, 0 to 1, of the label late in training.

    An image that no pass of training met, in a run of less than an epoch, has the trained network's.
    """
    assert evidence.training_confidence is not None
    found = np.asarray(evidence.training_confidence, dtype=np.float64)
    return np.where(np.isnan(found), confidence(evidence), found)


def training_phrases(judged: Judged) -> list[str]:
    """ "while it trained, the network gave its label cat 3.1 %", for each image."""
    return [
        f"while it trained, the network gave its label {judged.names[label]} {100 * share:.2g} %"
        for label, share in zip(
            judged.evidence.labels.tolist(), confidence_in_training(judged.evidence).tolist(), strict=True
        )
    ]


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """1 - mean probability of the label in training."""
    return np.asarray(np.clip(1 - confidence_in_training(evidence), 0, 1))


SCORER = Scorer(
    values=_values,
    phrases=training_phrases,
    needs=frozenset({"classes", "probabilities", "training_confidence"}),
)
