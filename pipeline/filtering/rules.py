"""Which share or threshold the `filter` section asks for."""

import numpy as np

from pipeline.config.filter import FilterConfig
from pipeline.config.scorers import DbscanScorer
from pipeline.errors import InputError
from pipeline.selection.calibration import PLANTED_SHARE, k_distances, knee, search_planted
from pipeline.selection.decision import ShareRule
from pipeline.selection.evidence import Evidence

# Below, the best radius for planted images may call nearly every image noise.
_LEAST_ABOVE_CHANCE = 2


def share_for(config: FilterConfig, network: str) -> float | None:
    """`drop_share` of a network; None where another rule is given."""
    return config.drop_share[network] if isinstance(config.drop_share, dict) else config.drop_share


def rule_for(config: FilterConfig, network: str, evidence: Evidence) -> ShareRule | float:
    """A share of one network's images to drop, or the threshold; `knee` and `tuned` are looked for.

    Raises:
        InputError: no radius can be found, since there is one class only or images lie on one another.
    """
    share = share_for(config, network)
    if share is not None:
        return ShareRule(share=share, quota=config.quota)
    if config.threshold is not None:
        return config.threshold
    if isinstance(config.eps, float):
        return config.eps
    assert isinstance(config.scorer, DbscanScorer)
    points, min_samples = evidence.points(config.scorer.space), config.scorer.min_samples
    ordered = k_distances(points, evidence.labels, min_samples, each=evidence.each)
    if not (np.isfinite(ordered) & (ordered > 0)).any():
        raise InputError(
            f"filter.eps: {config.eps} finds no radius, since among the {config.scorer.space} places each image lies "
            f"on its {min_samples} nearest, itself counted; give a number, or a larger filter.scorer.min_samples"
        )
    if config.eps == "knee":
        return knee(ordered)
    if not evidence.has("classes"):
        raise InputError("filter.eps: tuned plants images in other classes, and there is one only; use knee")
    found = search_planted(points, evidence.labels, min_samples, each=evidence.each)
    if found is None or found.average_precision < _LEAST_ABOVE_CHANCE * PLANTED_SHARE:
        raise InputError(
            "filter.eps: tuned finds no radius: images planted in other classes are found hardly better than by "
            f"chance, so the {config.scorer.space} places do not tell classes apart; train the extractor longer, or "
            "give drop_share"
        )
    return found.eps
