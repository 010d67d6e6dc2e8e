"""Scorers by name, their requirements, and ensembles of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from pipeline.errors import InputError
from pipeline.scoring import density, distances, predictions, sampling
from pipeline.scoring.base import Need, ScoredImages, Scorer, ScorerInputs

# Several scorers as one: the mean of their ranks.


def relative_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) ranks brought to 0 (least) to 1 (most); equal values share the mean of theirs, one value alone has 1/2."""
    n = len(values)
    return np.asarray((rankdata(values) - 1) / (n - 1)) if n > 1 else np.full(n, 0.5)


def make_ensemble(registry: Mapping[str, Scorer]) -> Scorer:
    """The scorer that combines those of a registry."""

    def values(evidence: ScorerInputs, *, scorers: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Mean over the members of their relative ranks, 0 to 1; a member that looks at the map, over all maps."""
        return np.asarray(np.mean([_member_ranks(evidence, member) for member in scorers], axis=0))

    def _member_ranks(evidence: ScorerInputs, member: Mapping[str, Any]) -> NDArray[np.float64]:
        name, options = split_options(member)
        seen = [evidence]
        if uses_embedding(registry[name], options) and evidence.maps is not None:
            seen = [evidence.on_map(index) for index in range(len(evidence.maps))]
        ranks = [relative_ranks(registry[name].values(one, **options)) for one in seen]
        return np.asarray(np.mean(ranks, axis=0))

    def phrases(judged: ScoredImages) -> list[str]:
        who = ", ".join(split_options(member)[0] for member in judged.options["scorers"])
        ranks = (100 * judged.values).tolist()
        return [f"more suspect than {rank:.3g} % of all images in the mean of {who}" for rank in ranks]

    return Scorer(values=values, phrases=phrases)


def split_options(scorer: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A scorer's name, and the rest."""
    return scorer["name"], {key: value for key, value in scorer.items() if key != "name"}


def uses_embedding(scorer: Scorer, options: Mapping[str, Any]) -> bool:
    """Whether the map decides what it says."""
    return "embedding" in scorer.needs or options.get("space") == "embedding"


# The registry of scorers: one file and one line each.
#
# Not in the package's `__init__`, so that training, which needs `arms` alone, does not depend on them.


_SINGLE: dict[str, Scorer] = {
    "centroid": distances.CENTROID_SCORER,
    "confident_learning": predictions.CONFIDENT_LEARNING_SCORER,
    "dbscan": density.DBSCAN_SCORER,
    "el2n": predictions.EL2N_SCORER,
    "grid": sampling.GRID_SCORER,
    "hdbscan": density.HDBSCAN_SCORER,
    "knn_agreement": distances.KNN_AGREEMENT_SCORER,
    "knn_distance": distances.KNN_DISTANCE_SCORER,
    "label_odds": predictions.LABEL_ODDS_SCORER,
    "margin": predictions.MARGIN_SCORER,
    "mean_confidence": predictions.MEAN_CONFIDENCE_SCORER,
    "random": sampling.RANDOM_SCORER,
    "self_confidence": predictions.SELF_CONFIDENCE_SCORER,
    "smoothed_confidence": predictions.SMOOTHED_CONFIDENCE_SCORER,
}

SCORERS: dict[str, Scorer] = {**_SINGLE, "ensemble": make_ensemble(_SINGLE)}
"""By the name that `filter.scorer` gives."""


# What a scorer needs of the evidence, checked before anything is computed.


_FIX_HINTS: Mapping[Need, str] = {
    "classes": "there is one class only; take dbscan, hdbscan, knn_distance or centroid",
    "components": "there are no principal components; set reduce.pca.n_components",
    "embedding": "there is no embedding; take a scorer of components or probabilities",
    "neighbours": "there are no neighbours; run `dvc repro`",
    "probabilities": "there are no class probabilities of a network; give them, or take knn_agreement",
    "training_confidence": (
        "no training of a network on these labels is known, which a fitted head and features made elsewhere lack; "
        "take smoothed_confidence"
    ),
}


def check_scorer(evidence: ScorerInputs, scorer: Mapping[str, Any], names: Sequence[str], key: str) -> None:
    """Refuse a scorer that cannot work.

    Args:
        scorer: its `name` and options.
        names: of the classes.
        key: where it stands in the parameters, `filter.scorer`.

    Raises:
        InputError: naming the key, the value and the mend.
    """
    name, options = split_options(scorer)
    for place, member in enumerate(options.get("scorers", ())):
        check_scorer(evidence, member, names, f"{key}.scorers[{place}]")
    needs = sorted(SCORERS[name].needs | ({options["space"]} if "space" in options else set()))
    for need in needs:
        if not evidence.has(need):
            raise InputError(f"{key}: {name} needs {need}, but {_FIX_HINTS[need]}")
    if "neighbours" in needs and evidence.neighbours is not None and options["k"] > evidence.neighbours.shape[1]:
        k = evidence.neighbours.shape[1]
        raise InputError(
            f"{key}.k: {options['k']} neighbours, but {k} are known; give at most {k}, or raise reduce.n_neighbors"
        )
    _check_class_sizes(evidence, name, options, names, key)


def _check_class_sizes(
    evidence: ScorerInputs, name: str, options: Mapping[str, Any], names: Sequence[str], key: str
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
