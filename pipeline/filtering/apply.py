"""Score the images of one network, decide which are dropped, and give the reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override, apply_labels
from pipeline.config.filter import DbscanScorer, FilterConfig
from pipeline.errors import InputError
from pipeline.scoring.base import ScoredImages, ScorerInputs, neighbor_phrases, override_reason, suggestion_phrases
from pipeline.scoring.decision import FilterDecision, ShareRule, decide
from pipeline.scoring.eps_search import PLANTED_SHARE, k_distances, knee, search_planted
from pipeline.scoring.registry import SCORERS, check_scorer, split_options, uses_embedding
from pipeline.scoring.suggestion import SuggestedLabels, suggest_labels
from pipeline.scoring.thresholds import jaccard

# With less lift over chance, the best radius for planted images may classify nearly every image as noise.
_MIN_LIFT_OVER_CHANCE = 2

SHOWN_NEIGHBORS = 10
"""Largest number of nearest neighbors in reasons and tables."""


def share_for(config: FilterConfig, network: str) -> float | None:
    """Return `drop_fraction` of a network; None if the section gives another rule."""
    return config.drop_fraction[network] if isinstance(config.drop_fraction, dict) else config.drop_fraction


def rule_for(config: FilterConfig, network: str, inputs: ScorerInputs) -> ShareRule | float:
    """Return the share of one network's images to drop, or the threshold; `knee` and `tuned` are searched here.

    Raises:
        InputError: the search finds no radius: there is one class only, or images coincide.
    """
    share = share_for(config, network)
    if share is not None:
        return ShareRule(share=share, allocation=config.allocation)
    if config.threshold is not None:
        return config.threshold
    if isinstance(config.eps, float):
        return config.eps
    assert isinstance(config.scorer, DbscanScorer)
    points, min_samples = inputs.points(config.scorer.space), config.scorer.min_samples
    ordered = k_distances(points, inputs.labels, min_samples, map_fn=inputs.map_fn)
    if not (np.isfinite(ordered) & (ordered > 0)).any():
        raise InputError(
            f"filter.eps: {config.eps} finds no radius: in space {config.scorer.space} each image coincides with its "
            f"{min_samples} nearest, counting itself; give a number, or a larger filter.scorer.min_samples"
        )
    if config.eps == "knee":
        return knee(ordered)
    if not inputs.has("classes"):
        raise InputError("filter.eps: tuned plants images in other classes, and there is only one; use knee")
    best = search_planted(points, inputs.labels, min_samples, map_fn=inputs.map_fn)
    if best is None or best.average_precision < _MIN_LIFT_OVER_CHANCE * PLANTED_SHARE:
        raise InputError(
            "filter.eps: tuned finds no radius: images planted in other classes are detected hardly better than by "
            f"chance, so space {config.scorer.space} does not separate classes; train the extractor longer, or "
            "give drop_fraction"
        )
    return best.eps


@dataclass(frozen=True, kw_only=True)
class FilterContext:
    """Names, manual overrides and the replicate.

    Attributes:
        network: the network that gave the features; `drop_fraction` may differ by network.
        class_names: one per class.
        overrides: row -> a person's decision.
        replicate: its number, added to the seeds of random scorers.
    """

    network: str
    class_names: Sequence[str]
    overrides: Mapping[int, Override]
    replicate: int = 0


@dataclass(frozen=True, kw_only=True)
class SieveResult:
    """The filter's result for N images.

    Attributes:
        decision: before overrides.
        keep: (N,) after overrides.
        labels: (N,) after overrides. Scores, suggestions and votes are of the labels as given, so that a relabel
            changes nothing about other images.
        reasons: N texts.
        stability: Jaccard index of the images dropped by the first embedding and by each other one. With a
            radius the others drop the same share, since embeddings differ in scale. Empty if there is no
            other embedding or the scorer uses none.
        suggestion: a label for each image; None without class probabilities and neighbors.
    """

    decision: FilterDecision
    keep: NDArray[np.bool_]
    labels: NDArray[np.int64]
    reasons: list[str]
    stability: list[float]
    suggestion: SuggestedLabels | None


def sieve(
    inputs: ScorerInputs, config: FilterConfig, context: FilterContext, *, fix: str = "keep some in data/overrides.csv"
) -> SieveResult:
    """Score the images, choose those to drop, and apply manual overrides.

    Args:
        fix: how to keep images of a class that would lose all, other than by another parameter; for messages.

    Raises:
        InputError: the scorer lacks an input, or a class would be left empty.
    """
    scorer = _with_seed_offset(config.scorer.model_dump(), context.replicate)
    check_scorer(inputs, scorer, context.class_names, "filter.scorer")
    rule = rule_for(config, context.network, inputs)
    decision = decide(inputs, scorer, rule)
    keep = ~decision.is_noise
    for row, override in context.overrides.items():
        keep[row] = override.keeps
    labels = apply_labels(inputs.labels, context.overrides, context.class_names)
    if not config.allow_empty:
        _check_no_class_is_empty(inputs, config, context.class_names, decision, labels[keep], fix)
    elif not keep.any():
        raise InputError(f"filter.{_rule_key(config)}: drops every image; drop fewer, or {fix}")
    suggestion = suggest_labels(inputs)
    return SieveResult(
        decision=decision,
        keep=keep,
        labels=labels,
        reasons=_reasons(inputs, config, decision, suggestion, context),
        stability=_stability(inputs, scorer, rule, decision),
        suggestion=suggestion,
    )


def _with_seed_offset(scorer: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """Return the scorer, and its members, with `offset` added to every seed."""
    moved = {key: value + offset if key == "seed" else value for key, value in scorer.items()}
    if "scorers" in scorer:
        moved["scorers"] = [_with_seed_offset(member, offset) for member in scorer["scorers"]]
    return moved


def _stability(
    inputs: ScorerInputs, scorer: Mapping[str, Any], rule: ShareRule | float, decision: FilterDecision
) -> list[float]:
    name, options = split_options(scorer)
    # An ensemble averages over all embeddings, so no single one has a result.
    if inputs.embeddings is None or "scorers" in options or not uses_embedding(SCORERS[name], options):
        return []
    share = rule if isinstance(rule, ShareRule) else ShareRule(share=float(decision.is_noise.mean()))
    others = (inputs.with_embedding(index) for index in range(1, len(inputs.embeddings)))
    return [jaccard(decision.is_noise, decide(other, scorer, share).is_noise) for other in others]


def _check_no_class_is_empty(
    inputs: ScorerInputs,
    config: FilterConfig,
    class_names: Sequence[str],
    decision: FilterDecision,
    kept_labels: NDArray[np.int64],
    fix: str,
) -> None:
    key = _rule_key(config)
    direction = {"drop_fraction": "lower it"}.get(key, "raise it")
    for label in np.setdiff1d(inputs.labels, kept_labels):
        rows = inputs.labels == label
        raise InputError(
            f"filter.{key}: {getattr(config, key)} leaves none of the {rows.sum()} images of class "
            f"{class_names[label]!r} ({decision.is_noise[rows].sum()} exceed {decision.thresholds[rows][0]:.4g}, "
            f"the rest decided by hand); {direction}, {fix}, or set filter.allow_empty: true"
        )


def _rule_key(config: FilterConfig) -> str:
    return next(key for key in ("drop_fraction", "eps", "threshold") if getattr(config, key) is not None)


def _reasons(
    inputs: ScorerInputs,
    config: FilterConfig,
    decision: FilterDecision,
    suggestion: SuggestedLabels | None,
    context: FilterContext,
) -> list[str]:
    class_names = context.class_names
    name, options = split_options(_with_seed_offset(config.scorer.model_dump(), context.replicate))
    scored = ScoredImages(
        inputs=inputs,
        options=options,
        values=decision.values,
        thresholds=decision.thresholds,
        class_names=class_names,
    )
    parts = [SCORERS[name].reasons(scored)]
    if inputs.neighbors is not None and inputs.has("classes") and name != "knn_agreement":
        parts.append(neighbor_phrases(inputs.neighbors[:, :SHOWN_NEIGHBORS], inputs.labels, class_names))
    # A vote of neighbors is in their phrase already.
    if suggestion is not None and inputs.probabilities is not None:
        parts.append(suggestion_phrases(suggestion.labels, suggestion.probabilities, inputs.labels, class_names))
    reasons = ["; ".join(filter(None, phrases)) for phrases in zip(*parts, strict=True)]
    for row, override in context.overrides.items():
        reasons[row] = override_reason(override.decision, override.note, override.label)
    return reasons
