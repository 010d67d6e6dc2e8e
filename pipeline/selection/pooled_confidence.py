"""How little three witnesses believe in an image's label: the network in training, the trained one, its neighbours.

They err in different ways. In training the network has not yet learned wrong labels by heart; trained,
it sees more; and the nearest neighbours are judged by what the network sees in them.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.mean_confidence import confidence_in_training, training_phrases
from pipeline.selection.self_confidence import confidence
from pipeline.selection.smoothed_confidence import neighbour_confidence


def _values(evidence: Evidence, *, k: int) -> NDArray[np.float64]:
    """1 - mean of the three probabilities of the label, with `k` neighbours."""
    witnesses = [confidence_in_training(evidence), confidence(evidence), neighbour_confidence(evidence, k)]
    return np.asarray(np.clip(1 - np.mean(witnesses, axis=0), 0, 1))


def _phrases(judged: Judged) -> list[str]:
    k = judged.options["k"]
    now, around = confidence(judged.evidence).tolist(), neighbour_confidence(judged.evidence, k).tolist()
    return [
        f"{then}, trained {100 * own:.2g} %, on average over its {k} nearest {100 * other:.2g} %"
        for then, own, other in zip(training_phrases(judged), now, around, strict=True)
    ]


SCORER = Scorer(
    values=_values,
    phrases=_phrases,
    needs=frozenset({"classes", "neighbours", "probabilities", "training_confidence"}),
)
