"""Why an image is kept or dropped, in words."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def neighbour_phrases(neighbours: NDArray[np.integer], labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    """What the neighbours of each image are: "7 of 10 nearest neighbours are truck".

    Args:
        neighbours: (N, k) rows of the nearest others.
        labels: (N,) indices into `names`, one per class.
    """
    k = neighbours.shape[1]
    phrases = []
    for own, votes in zip(labels, labels[neighbours], strict=True):
        counts = np.bincount(votes, minlength=int(own) + 1)
        # The image's own class wins a draw: the phrase is to warn only if there is cause.
        most = int(own) if counts[own] == counts.max() else int(counts.argmax())
        whose = "share its label" if most == own else f"are {names[most]}"
        phrases.append(f"{counts[most]} of {k} nearest neighbours {whose}")
    return phrases


def network_phrases(
    predicted: NDArray[np.int64], confidence: NDArray[np.float32], labels: NDArray[np.int64], names: Sequence[str]
) -> list[str]:
    """What the network takes each image for, if not its label: "the network sees truck (91 %)", else ""."""
    return [
        f"the network sees {names[seen]} ({sure:.0%})".replace("%", " %") if seen != own else ""
        for seen, sure, own in zip(predicted.tolist(), confidence.tolist(), labels.tolist(), strict=True)
    ]


def by_hand(decision: str, note: str) -> str:
    """ "kept by hand: <note>" for a person's `decision`, keep or drop."""
    done = {"keep": "kept by hand", "drop": "dropped by hand"}[decision]
    return f"{done}: {note}" if note else done


def distinct(left: float, right: float) -> tuple[str, str]:
    """Both numbers with three digits, or as many as it takes to tell them apart."""
    for digits in range(3, 17):
        texts = f"{left:.{digits}g}", f"{right:.{digits}g}"
        if texts[0] != texts[1] or left == right:
            break
    return texts
