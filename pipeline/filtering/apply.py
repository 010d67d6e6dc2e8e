"""Score the images of one network, and decide which are dropped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override
from pipeline.config.filter import DbscanScorer, FilterConfig
from pipeline.errors import InputError
from pipeline.scoring.base import ScoredImages, ScorerInputs, neighbor_phrases, network_phrases, override_reason
from pipeline.scoring.decision import FilterDecision, ShareRule, decide
from pipeline.scoring.eps_search import PLANTED_SHARE, k_distances, knee, search_planted
from pipeline.scoring.registry import SCORERS, check_scorer, split_options, uses_embedding
from pipeline.scoring.thresholds import jaccard

# Which share or threshold the `filter` section asks for.


# Below, the best radius for planted images may call nearly every image noise.
_MIN_LIFT_OVER_CHANCE = 2


def share_for(config: FilterConfig, network: str) -> float | None:
    """`drop_fraction` of a network; None where another rule is given."""
    return config.drop_fraction[network] if isinstance(config.drop_fraction, dict) else config.drop_fraction


def rule_for(config: FilterConfig, network: str, evidence: ScorerInputs) -> ShareRule | float:
    """A share of one network's images to drop, or the threshold; `knee` and `tuned` are looked for.

    Raises:
        InputError: no radius can be found, since there is one class only or images lie on one another.
    """
    share = share_for(config, network)
    if share is not None:
        return ShareRule(share=share, allocation=config.allocation)
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
    if found is None or found.average_precision < _MIN_LIFT_OVER_CHANCE * PLANTED_SHARE:
        raise InputError(
            "filter.eps: tuned finds no radius: images planted in other classes are found hardly better than by "
            f"chance, so the {config.scorer.space} places do not tell classes apart; train the extractor longer, or "
            "give drop_fraction"
        )
    return found.eps


# The filter on one set of images, from evidence to what is kept and why.


SHOWN_NEIGHBORS = 10
"""How many of the nearest neighbours are named and listed, at most."""


@dataclass(frozen=True, kw_only=True)
class FilterContext:
    """What people call things and say of them.

    Attributes:
        network: whose features these are; `drop_fraction` may differ by network.
        names: of the classes.
        overrides: row -> what a person decided.
        draw: number of the replicate, added to the seeds of scorers that draw.
    """

    network: str
    names: Sequence[str]
    overrides: Mapping[int, Override]
    draw: int = 0


@dataclass(frozen=True, kw_only=True)
class SieveResult:
    """What became of N images.

    Attributes:
        keep: (N,) after people's overrides.
        stability: Jaccard index of what goes by the first map and by each of the others, at the same share
            where a radius was given or found, since maps have scales of their own; empty where no other
            map is known or the scorer looks at none.
    """

    decision: FilterDecision
    keep: NDArray[np.bool_]
    reasons: list[str]
    stability: list[float]


def sieve(
    evidence: ScorerInputs, config: FilterConfig, known: FilterContext, *, mend: str = "keep some in data/overrides.csv"
) -> SieveResult:
    """Score, choose, and let people overrule.

    Args:
        mend: what else than another number in the parameters keeps images that all would go; for messages.

    Raises:
        InputError: the scorer cannot work on this evidence, or a class would be left empty.
    """
    scorer = _with_seed_offset(config.scorer.model_dump(), known.draw)
    check_scorer(evidence, scorer, known.names, "filter.scorer")
    rule = rule_for(config, known.network, evidence)
    decision = decide(evidence, scorer, rule)
    keep = ~decision.is_noise
    for row, override in known.overrides.items():
        keep[row] = override.decision == "keep"
    if not config.allow_empty:
        _check_no_class_is_empty(evidence, config, known.names, decision, keep, mend)
    elif not keep.any():
        raise InputError(f"filter.{_rule_key(config)}: every image goes; drop fewer, or {mend}")
    return SieveResult(
        decision=decision,
        keep=keep,
        reasons=_reasons(evidence, config, decision, known),
        stability=_stability(evidence, scorer, rule, decision),
    )


def _with_seed_offset(scorer: Mapping[str, Any], draw: int) -> dict[str, Any]:
    """The scorer and its members with every seed moved by `draw`."""
    moved = {key: value + draw if key == "seed" else value for key, value in scorer.items()}
    return (
        moved | {"scorers": [_with_seed_offset(member, draw) for member in scorer["scorers"]]}
        if "scorers" in scorer
        else moved
    )


def _stability(
    evidence: ScorerInputs, scorer: Mapping[str, Any], rule: ShareRule | float, decision: FilterDecision
) -> list[float]:
    name, options = split_options(scorer)
    # Averaged over all maps, an ensemble has none that counts alone.
    if evidence.maps is None or "scorers" in options or not uses_embedding(SCORERS[name], options):
        return []
    share = rule if isinstance(rule, ShareRule) else ShareRule(share=float(decision.is_noise.mean()))
    others = (evidence.on_map(index) for index in range(1, len(evidence.maps)))
    return [jaccard(decision.is_noise, decide(other, scorer, share).is_noise) for other in others]


def _check_no_class_is_empty(
    evidence: ScorerInputs,
    config: FilterConfig,
    names: Sequence[str],
    decision: FilterDecision,
    keep: NDArray[np.bool_],
    mend: str,
) -> None:
    key = _rule_key(config)
    other_number = {"drop_fraction": "lower it"}.get(key, "raise it")
    for label in np.unique(evidence.labels):
        rows = evidence.labels == label
        if not keep[rows].any():
            raise InputError(
                f"filter.{key}: {getattr(config, key)} leaves none of the {rows.sum()} images of class "
                f"{names[label]!r} ({decision.is_noise[rows].sum()} exceed {decision.thresholds[rows][0]:.4g}, "
                f"the rest dropped by hand); {other_number}, {mend}, or set filter.allow_empty: true"
            )


def _rule_key(config: FilterConfig) -> str:
    return next(key for key in ("drop_fraction", "eps", "threshold") if getattr(config, key) is not None)


def _reasons(evidence: ScorerInputs, config: FilterConfig, decision: FilterDecision, known: FilterContext) -> list[str]:
    names = known.names
    name, options = split_options(_with_seed_offset(config.scorer.model_dump(), known.draw))
    judged = ScoredImages(
        evidence=evidence, options=options, values=decision.values, thresholds=decision.thresholds, names=names
    )
    parts = [SCORERS[name].phrases(judged)]
    if evidence.neighbours is not None and evidence.has("classes") and name != "knn_agreement":
        parts.append(neighbor_phrases(evidence.neighbours[:, :SHOWN_NEIGHBORS], evidence.labels, names))
    if evidence.probabilities is not None:
        seen = evidence.probabilities.argmax(axis=1)
        sure = np.take_along_axis(evidence.probabilities, seen[:, None], axis=1)[:, 0]
        parts.append(network_phrases(seen, sure, evidence.labels, names))
    reasons = ["; ".join(filter(None, phrases)) for phrases in zip(*parts, strict=True)]
    for row, override in known.overrides.items():
        reasons[row] = override_reason(override.decision, override.note)
    return reasons
