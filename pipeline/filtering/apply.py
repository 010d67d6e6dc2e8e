"""Score the images of one network, decide which are dropped, and give the reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override, apply_labels
from pipeline.config.filter import DbscanScorer, FilterConfig, TunedEps
from pipeline.errors import InputError
from pipeline.filtering.near_duplicates import TrainingDuplicates, redundant_images
from pipeline.scoring.base import ScoredImages, ScorerInputs, override_reason, suggestion_phrases
from pipeline.scoring.decision import DropFraction, FilterDecision, decide
from pipeline.scoring.eps_search import k_distances, knee, search_planted
from pipeline.scoring.registry import SCORERS, check_scorer, member_scorers, split_options, uses_embedding
from pipeline.scoring.suggestions import SuggestedLabels, suggest_labels
from pipeline.scoring.thresholds import jaccard
from pipeline.scoring.votes import neighbor_phrases
from pipeline.scoring.wrong_share import WrongShare, estimate_wrong_share

# Smallest share of the way from chance to perfect average precision. With less, the best radius for planted images may
# classify nearly every image as noise. At a planted fraction of 5 % this requires twice the precision of chance.
_MIN_SKILL = 1 / 19

SHOWN_NEIGHBORS = 10
"""Largest number of nearest neighbors in reasons and tables."""


def check_estimate(inputs: ScorerInputs, config: FilterConfig, network: str) -> None:
    """Check that the share can be estimated if it is asked for, before anything is computed.

    Raises:
        InputError: there are no class probabilities, or there is one class only.
    """
    if not config.estimates_drop_fraction(network):
        return
    if not inputs.has("classes"):
        raise InputError("filter.drop_fraction: estimated compares classes, but there is one class only; give a number")
    if not inputs.has("probabilities"):
        raise InputError(
            "filter.drop_fraction: estimated needs class probabilities of a network, but there are none; give them, "
            "or a number"
        )


def rule_for(
    config: FilterConfig, network: str, inputs: ScorerInputs, estimate: WrongShare | None = None
) -> DropFraction | float:
    """Return the fraction of one network's images to drop, or the threshold; `knee` and `tuned` are searched here.

    Args:
        estimate: of the wrong labels, for `drop_fraction: estimated`.

    Raises:
        InputError: the search finds no radius: there is one class only, or images coincide.
    """
    drop_fraction = config.drop_fraction_for(network) if estimate is None else estimate.extrapolated.share
    if drop_fraction is not None:
        return DropFraction(fraction=drop_fraction, allocation=config.allocation)
    if config.threshold is not None:
        return config.threshold
    if isinstance(config.eps, float):
        return config.eps
    assert isinstance(config.scorer, DbscanScorer)
    points, min_samples = inputs.points(config.scorer.space), config.scorer.min_samples
    ordered = k_distances(points, inputs.labels, min_samples, map_fn=inputs.map_fn)
    searched = "knee" if config.eps == "knee" else "tuned"
    if not (np.isfinite(ordered) & (ordered > 0)).any():
        raise InputError(
            f"filter.eps: {searched} finds no radius: in space {config.scorer.space} each image coincides with its "
            f"{min_samples} nearest, counting itself; give a number, or a larger filter.scorer.min_samples"
        )
    if config.eps == "knee":
        return knee(ordered)
    if not inputs.has("classes"):
        raise InputError("filter.eps: tuned plants images in other classes, and there is only one; use knee")
    fraction = config.planted_fraction
    assert fraction is not None
    best = search_planted(points, inputs.labels, min_samples, fraction=fraction, map_fn=inputs.map_fn)
    if best is None or best.average_precision < best.chance + (1 - best.chance) * _MIN_SKILL:
        raise InputError(
            "filter.eps: tuned finds no radius: images planted in other classes are detected hardly better than by "
            f"chance, so space {config.scorer.space} does not separate classes; train the extractor longer, or "
            "give drop_fraction"
        )
    return best.eps


@dataclass(frozen=True, kw_only=True)
class FilterContext:
    """What the filter of one network knows in addition to the inputs of its scorer.

    Attributes:
        network: the network that gave the features; `drop_fraction` may differ by network.
        class_names: one per class.
        overrides: row -> a person's decision.
        replicate: its number, added to the seeds of random scorers.
        duplicates: near duplicates of the training images, of which the redundant ones are dropped; None drops none.
    """

    network: str
    class_names: Sequence[str]
    overrides: Mapping[int, Override]
    replicate: int = 0
    duplicates: TrainingDuplicates | None = None


@dataclass(frozen=True, kw_only=True)
class FilterOutcome:
    """The filter's result for N images.

    Attributes:
        decision: before near duplicates and overrides.
        keep: (N,) after overrides.
        labels: (N,) after overrides. Scores, suggestions and votes are of the labels as given, so that a relabel
            changes nothing about other images.
        reasons: N texts.
        estimate: of the share of wrong labels, with `drop_fraction: estimated`; None otherwise.
        stability: Jaccard index of the images dropped by the first embedding and by each other one. With a
            radius the others drop the same share, since embeddings differ in scale. Empty if there is no
            other embedding or the scorer uses none.
        suggestion: a label for each image; None without class probabilities and neighbors.
        redundant: (N,) bool, dropped as near duplicates; None if none are to be dropped.
    """

    decision: FilterDecision
    keep: NDArray[np.bool_]
    labels: NDArray[np.int64]
    reasons: list[str]
    stability: list[float]
    estimate: WrongShare | None
    suggestion: SuggestedLabels | None
    redundant: NDArray[np.bool_] | None = None


def apply_filter(
    inputs: ScorerInputs, config: FilterConfig, context: FilterContext, *, fix: str = "keep some in data/overrides.csv"
) -> FilterOutcome:
    """Score the images, choose those to drop, and apply manual overrides.

    Args:
        fix: how to keep images of a class that would lose all, other than by another parameter; for messages.

    Raises:
        InputError: the scorer or the estimate lacks an input, or a class would be left empty.
    """
    scorer = _with_seed_offset(config.scorer.model_dump(), context.replicate)
    check_scorer(inputs, scorer, context.class_names, "filter.scorer")
    check_estimate(inputs, config, context.network)
    estimate = None
    if config.estimates_drop_fraction(context.network):
        assert inputs.probabilities is not None
        estimate = estimate_wrong_share(inputs.labels, inputs.probabilities)
    rule = rule_for(config, context.network, inputs, estimate)
    decision = decide(inputs, scorer, rule)
    keep = ~decision.is_noise
    duplicate_of: dict[int, int] = {}
    redundant = None
    if context.duplicates is not None:
        duplicate_of = redundant_images(context.duplicates, keep, decision.scores, context.overrides)
        redundant = np.isin(np.arange(len(keep)), list(duplicate_of))
        keep &= ~redundant
    for row, override in context.overrides.items():
        keep[row] = override.keeps
    labels = apply_labels(inputs.labels, context.overrides, context.class_names)
    if not config.allow_empty:
        _check_no_class_is_empty(inputs, config, context, decision, labels[keep], fix)
    elif not keep.any():
        raise InputError(f"filter.{_rule_key(config)}: drops every image; drop fewer, or {fix}")
    suggestion = suggest_labels(inputs)
    reasons = reasons_of(inputs, config, decision, suggestion, context)
    for row, other in duplicate_of.items():
        assert context.duplicates is not None
        reasons[row] = f"{context.duplicates.describe(other)}; {reasons[row]}"
    return FilterOutcome(
        decision=decision,
        keep=keep,
        labels=labels,
        reasons=reasons,
        stability=_stability(inputs, scorer, rule, decision),
        estimate=estimate,
        suggestion=suggestion,
        redundant=redundant,
    )


def _with_seed_offset(scorer: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """Return the scorer, and those that it combines or selects by, with `offset` added to every seed."""
    moved = {key: value + offset if key == "seed" else value for key, value in scorer.items()}
    if "scorers" in scorer:
        moved["scorers"] = [_with_seed_offset(member, offset) for member in scorer["scorers"]]
    if "scorer" in scorer:
        moved["scorer"] = _with_seed_offset(scorer["scorer"], offset)
    return moved


def _stability(
    inputs: ScorerInputs, scorer: Mapping[str, Any], rule: DropFraction | float, decision: FilterDecision
) -> list[float]:
    name, options = split_options(scorer)
    # An ensemble averages over all embeddings, so no single one has a result. A selection (`ccs`) is partly random.
    if inputs.embeddings is None or member_scorers(options) or not uses_embedding(SCORERS[name], options):
        return []
    same_fraction = rule if isinstance(rule, DropFraction) else DropFraction(fraction=float(decision.is_noise.mean()))
    others = (inputs.with_embedding(index) for index in range(1, len(inputs.embeddings)))
    return [jaccard(decision.is_noise, decide(other, scorer, same_fraction).is_noise) for other in others]


def _check_no_class_is_empty(
    inputs: ScorerInputs,
    config: FilterConfig,
    context: FilterContext,
    decision: FilterDecision,
    kept_labels: NDArray[np.int64],
    fix: str,
) -> None:
    key = _rule_key(config)
    rest = "near duplicates or decided by hand" if config.near_duplicates == "drop" else "decided by hand"
    names, value, where = context.class_names, getattr(config, key), key
    if isinstance(value, dict):
        value, where = value[context.network], f"{key}.{context.network}"
    elif isinstance(value, TunedEps):
        value = value.name
    for label in np.setdiff1d(inputs.labels, kept_labels):
        rows = inputs.labels == label
        direction = "lower it" if key == "drop_fraction" else "raise it"
        if isinstance(value, str):  # a rule that chooses the number
            above = f" above {decision.thresholds[rows][0]:.4g}" if key == "eps" else ""
            direction = f"give a number{above}"
        raise InputError(
            f"filter.{where}: {value} leaves none of the {rows.sum()} images of class "
            f"{names[label]!r} ({decision.is_noise[rows].sum()} exceed {decision.thresholds[rows][0]:.4g}, "
            f"the rest {rest}); {direction}, {fix}, or set filter.allow_empty: true"
        )


def _rule_key(config: FilterConfig) -> str:
    return next(key for key in ("drop_fraction", "eps", "threshold") if getattr(config, key) is not None)


def reasons_of(
    inputs: ScorerInputs,
    config: FilterConfig,
    decision: FilterDecision,
    suggestion: SuggestedLabels | None,
    context: FilterContext,
) -> list[str]:
    """Return a reason for each image: of the scorer, of its neighbors where `inputs` has them, and the suggestion."""
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
