"""What a scorer needs of the evidence, checked before anything is computed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.selection.ensemble import split_options
from pipeline.selection.evidence import Evidence, Need
from pipeline.selection.scorers import SCORERS

_MENDS: Mapping[Need, str] = {
    "classes": "there is one class only; take dbscan, hdbscan, knn_distance or centroid",
    "components": "there are no principal components; set reduce.pca.n_components",
    "map": "there is no map; take a scorer of components or probabilities",
    "neighbours": "there are no neighbours; run `dvc repro`",
    "probabilities": "there are no class probabilities of a network; give them, or take knn_agreement",
    "training_confidence": (
        "no training of a network on these labels is known, which a fitted head and features made elsewhere lack; "
        "take smoothed_confidence"
    ),
}


def check_scorer(evidence: Evidence, scorer: Mapping[str, Any], names: Sequence[str], key: str) -> None:
    """Refuse a scorer that cannot work.

    Args:
        scorer: its `name` and options.
        names: of the classes.
        key: where it stands in the parameters, `filter.scorer`.

    Raises:
        InputError: naming the key, the value and the mend.
    """
    name, options = split_options(scorer)
    for place, member in enumerate(options.get("of", ())):
        check_scorer(evidence, member, names, f"{key}.of[{place}]")
    needs = sorted(SCORERS[name].needs | ({options["space"]} if "space" in options else set()))
    for need in needs:
        if not evidence.has(need):
            raise InputError(f"{key}: {name} needs {need}, but {_MENDS[need]}")
    if "neighbours" in needs and evidence.neighbours is not None and options["k"] > evidence.neighbours.shape[1]:
        k = evidence.neighbours.shape[1]
        raise InputError(
            f"{key}.k: {options['k']} neighbours, but {k} are known; give at most {k}, or raise reduce.neighbors"
        )
    _check_class_sizes(evidence, name, options, names, key)


def _check_class_sizes(
    evidence: Evidence, name: str, options: Mapping[str, Any], names: Sequence[str], key: str
) -> None:
    for option in SCORERS[name].least_per_class:
        for label, count in zip(*np.unique(evidence.labels, return_counts=True), strict=True):
            if count < options[option]:
                raise InputError(
                    f"{key}.{option}: {options[option]}, but class {names[label]!r} has {count} images; give at most "
                    f"{count}, or add images to the class"
                )


def check_probabilities(values: NDArray[np.float32], source: str) -> None:
    """Refuse class probabilities (N, C) with a row that does not sum to 1 within .001, or with a negative value.

    Args:
        source: the file or argument to name.

    Raises:
        InputError: naming the source, the row and its value.
    """
    with np.errstate(invalid="ignore"):  # opposite infinities give NaN, which is refused
        sums = values.sum(axis=1, dtype=np.float64)
    wrong = ~(abs(sums - 1) <= 1e-3)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{source}: row {row} sums to {sums[row]:.4g}; give probabilities, which sum to 1")
    negative = (values < 0).any(axis=1)
    if negative.any():
        row = int(negative.argmax())
        raise InputError(f"{source}: row {row} holds {values[row].min():.4g}; give probabilities, from 0 to 1")
