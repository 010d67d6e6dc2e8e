"""The registry of scorers, ensembles of them, and checks of what a scorer needs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from pipeline.errors import InputError
from pipeline.scoring import density, distances, dynamics, predictions, sampling
from pipeline.scoring.base import Need, ScoredImages, Scorer, ScorerInputs

_NO_DYNAMICS = (
    "none was recorded: run `dvc repro --force finetune`, whose log says what to remove if it keeps a network of an "
    "earlier version; a fitted head and features made elsewhere have none, use self_confidence"
)
_FIX_HINTS: Mapping[Need, str] = {
    "classes": "there is one class only; use dbscan, hdbscan, knn_distance or centroid",
    "components": "there are no principal components; set reduce.pca.n_components",
    "embedding": "there is no embedding; use a scorer of components or probabilities",
    "neighbors": "there are no neighbors; run `dvc repro`",
    "probabilities": "there are no class probabilities of a network; give them, or use knn_agreement",
    "training_confidence": (
        "there is none: a fitted head and features made elsewhere have no training on these labels; "
        "use smoothed_confidence"
    ),
    "training_forgetting": _NO_DYNAMICS,
    "training_margin": _NO_DYNAMICS,
}


def relative_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks (N,) scaled to 0 (lowest) to 1 (highest).

    Equal values share their mean rank; a single value has 1/2.
    """
    n = len(values)
    return np.asarray((rankdata(values) - 1) / (n - 1)) if n > 1 else np.full(n, 0.5)


def make_ensemble(registry: Mapping[str, Scorer]) -> Scorer:
    """Return the scorer that averages the ranks of several scorers of a registry."""

    def values(inputs: ScorerInputs, *, scorers: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Return the mean relative rank (N,) over the members, 0 to 1.

        A member that uses the embedding is averaged over all embeddings.
        """
        return np.asarray(np.mean([_member_ranks(inputs, member) for member in scorers], axis=0))

    def _member_ranks(inputs: ScorerInputs, member: Mapping[str, Any]) -> NDArray[np.float64]:
        name, options = split_options(member)
        variants = [inputs]
        if uses_embedding(registry[name], options) and inputs.embeddings is not None:
            variants = [inputs.with_embedding(index) for index in range(len(inputs.embeddings))]
        ranks = [relative_ranks(registry[name].values(variant, **options)) for variant in variants]
        return np.asarray(np.mean(ranks, axis=0))

    def reasons(scored: ScoredImages) -> list[str]:
        members = ", ".join(split_options(member)[0] for member in scored.options["scorers"])
        return [
            f"{'more' if dropped else 'less'} suspect than {100 * (rank if dropped else 1 - rank):.3g} % of all images "
            f"in the mean of {members}"
            for rank, dropped in zip(scored.values.tolist(), scored.dropped, strict=True)
        ]

    return Scorer(values=values, reasons=reasons)


def split_options(scorer: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a scorer's parameters into its name and its options."""
    return scorer["name"], {key: value for key, value in scorer.items() if key != "name"}


def member_scorers(options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the scorers that a scorer combines or selects by, by their key within its options; empty for most."""
    members = {f"scorers[{index}]": member for index, member in enumerate(options.get("scorers", ()))}
    return {**members, "scorer": options["scorer"]} if "scorer" in options else members


def uses_embedding(scorer: Scorer, options: Mapping[str, Any]) -> bool:
    """Return whether the scorer's values depend on the embedding."""
    return "embedding" in scorer.needs or options.get("space") == "embedding"


def needs_with_members(scorer: Mapping[str, Any]) -> set[str]:
    """Return the inputs that a scorer and its members need, and the spaces that they use.

    Args:
        scorer: its `name` and options.
    """
    needs: set[str] = set()
    for each in (scorer, *member_scorers(scorer).values()):
        needs |= SCORERS[each["name"]].needs | ({each["space"]} if "space" in each else set())
    return needs


_SINGLE: dict[str, Scorer] = {
    "aum": dynamics.AUM_SCORER,
    "centroid": distances.CENTROID_SCORER,
    "confident_learning": predictions.CONFIDENT_LEARNING_SCORER,
    "dbscan": density.DBSCAN_SCORER,
    "el2n": predictions.EL2N_SCORER,
    "forgetting": dynamics.FORGETTING_SCORER,
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

SCORERS: dict[str, Scorer] = {**_SINGLE, "ccs": sampling.make_ccs(_SINGLE), "ensemble": make_ensemble(_SINGLE)}
"""Scorers by the name that `filter.scorer` gives."""


def check_scorer(inputs: ScorerInputs, scorer: Mapping[str, Any], class_names: Sequence[str], key: str) -> None:
    """Check that a scorer has what it needs, before anything is computed.

    Args:
        scorer: its `name` and options.
        class_names: one per class.
        key: its key in the parameters, `filter.scorer`.

    Raises:
        InputError: naming the key, the value and a fix.
    """
    name, options = split_options(scorer)
    for member_key, member in member_scorers(options).items():
        check_scorer(inputs, member, class_names, f"{key}.{member_key}")
    needs = sorted(SCORERS[name].needs_of(inputs) | ({options["space"]} if "space" in options else set()))
    for need in needs:
        if not inputs.has(need):
            raise InputError(f"{key}: {name} needs {need}, but {_FIX_HINTS[need]}")
    if "neighbors" in needs and inputs.neighbors is not None and options["k"] > inputs.neighbors.shape[1]:
        k = inputs.neighbors.shape[1]
        raise InputError(
            f"{key}.k: {options['k']} is more than the {k} neighbors; give at most {k}, or raise reduce.n_neighbors"
        )
    _check_class_sizes(inputs, name, options, class_names, key)


def _check_class_sizes(
    inputs: ScorerInputs, name: str, options: Mapping[str, Any], class_names: Sequence[str], key: str
) -> None:
    for option in SCORERS[name].min_per_class:
        for label, count in zip(*np.unique(inputs.labels, return_counts=True), strict=True):
            if count < options[option]:
                raise InputError(
                    f"{key}.{option}: {options[option]}, but class {class_names[label]!r} has {count} images; "
                    f"give at most {count}, or add images to the class"
                )


def agreement(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the share of rows, 0 to 1, whose most probable class of probabilities (N, C) is the label (N,)."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def column_order_problem(probabilities: NDArray[np.float32], labels: NDArray[np.int64], order: str) -> str:
    """Return why the columns of probabilities (N, C) are probably in another order than the classes, and the fix.

    They agree with the labels (N,) in no more than twice as many rows as by chance, or in half of them with few
    classes. The text is empty if they agree in more.

    Args:
        order: names of the classes in their order, for the text.
    """
    share, minimum = agreement(probabilities, labels), min(2 / probabilities.shape[1], 1 / 2)
    if share > minimum:
        return ""
    return (
        f"the most probable class is the label in {share:.2%} of the rows; the columns are probably not in the order "
        f"of the classes, {order}; give them in that order, or probabilities that are right in more than {minimum:.0%}"
    )


def check_probabilities(values: NDArray[np.float32], source: str) -> None:
    """Check that rows of class probabilities (N, C) sum to 1 within 0.001 and hold no negative value.

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
