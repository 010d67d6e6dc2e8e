"""Confident learning (Northcutt, Jiang and Chuang, 2021, doi:10.1613/jair.1.12125), by cleanlab."""

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.selection.evidence import Evidence, Judged, Scorer
from pipeline.selection.self_confidence import belief_phrases, confidence

_EDGE = 1e-9


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """1/2 to 1 for images that `find_label_issues` names, 0 to 1/2 for others, by 1 - probability of the label.

    A threshold of 1/2 is cleanlab's own decision (`prune_by_noise_rate`).
    """
    try:
        # An optional extra: the other scorers work without it.
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise InputError(
            "filter.scorer: confident_learning needs cleanlab; pip install -e '.[cleanlab]', or take self_confidence"
        ) from None
    probabilities = np.asarray(evidence.probabilities, dtype=np.float64)
    # Classes of a single image may be named too; whether a class may be emptied is decided later.
    named = find_label_issues(evidence.labels, probabilities, n_jobs=1, min_examples_per_class=0)
    # Inside the two halves, so that none meets the boundary.
    doubt = np.clip(1 - confidence(evidence), _EDGE, 1 - _EDGE)
    return np.asarray((named + doubt) / 2, dtype=np.float64)


def _phrases(judged: Judged) -> list[str]:
    return [
        f"{belief}; confident learning {'names' if value > 0.5 else 'does not name'} it"
        for belief, value in zip(belief_phrases(judged), judged.values.tolist(), strict=True)
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"classes", "probabilities"}))
