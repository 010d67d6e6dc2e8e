"""Scorers by training dynamics, recorded from the first step on: averaged logit margin (AUM) and forgetting events."""

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import ScoredImages, Scorer, ScorerInputs
from pipeline.scoring.predictions import MIN_PROBABILITY, confidence, max_other_probability


def averaged_margin(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return the mean over training (N,) of the label's logit minus the largest other logit.

    An image that training did not use, in a run of less than an epoch, gets the margin of the trained network: the
    difference of the log probabilities.
    """
    assert inputs.training_margin is not None
    mean = np.asarray(inputs.training_margin, dtype=np.float64)
    label, other = (np.maximum(p, MIN_PROBABILITY) for p in (confidence(inputs), max_other_probability(inputs)))
    return np.where(np.isnan(mean), np.log(label / other), mean)


def _aum_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return exp(-margin) (N,), 0 to infinity, above 1 where the margin is negative.

    This is the geometric mean over training of the probability of the strongest other class over that of the label.
    The order is that of the area under the margin (AUM; Pleiss et al., 2020, arXiv 2001.10528), reversed.
    """
    with np.errstate(over="ignore"):
        return np.exp(-averaged_margin(inputs))


def _aum_reasons(scored: ScoredImages) -> list[str]:
    margins = averaged_margin(scored.inputs).tolist()
    return [
        f"on average over training, the logit of its label {scored.class_names[label]} was "
        f"{'only ' * (dropped == (margin >= 0))}{abs(margin):.2g} {'above' if margin >= 0 else 'below'} the largest "
        "other one"
        for label, margin, dropped in zip(scored.inputs.labels.tolist(), margins, scored.dropped, strict=True)
    ]


AUM_SCORER = Scorer(
    values=_aum_values, reasons=_aum_reasons, needs=frozenset({"classes", "probabilities", "training_margin"})
)


def _forgetting_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return how many times the network forgot the label in training (N,), infinite if it never learned it.

    Forgetting events (Toneva et al., 2019, arXiv 1812.05159). With folds it is the mean over the networks that trained
    on the image. An image that training did not use counts as never learned where the trained network sees another
    class, else as never forgotten.
    """
    assert inputs.training_forgetting is not None
    events = np.asarray(inputs.training_forgetting, dtype=np.float64)
    seen_otherwise = max_other_probability(inputs) >= confidence(inputs)
    return np.where(np.isnan(events), np.where(seen_otherwise, np.inf, 0.0), events)


def _forgetting_reasons(scored: ScoredImages) -> list[str]:
    return [
        f"while it trained, the network {_forgotten(events, scored.class_names[label], dropped=dropped)}"
        for label, events, dropped in zip(
            scored.inputs.labels.tolist(), scored.values.tolist(), scored.dropped, strict=True
        )
    ]


def _forgotten(events: float, label: str, *, dropped: bool) -> str:
    """Write a number of events, which with folds is a mean."""
    if not np.isfinite(events):
        return f"never learned its label {label}{'' if dropped else ', as for other images that are kept'}"
    times = "once" if events == 1 else f"{events:.3g} times"
    return f"forgot its label {label} {'' if dropped else 'only '}{times}"


FORGETTING_SCORER = Scorer(
    values=_forgetting_values,
    reasons=_forgetting_reasons,
    needs=frozenset({"classes", "probabilities", "training_forgetting"}),
)
