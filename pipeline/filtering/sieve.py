"""The filter on one set of images, from evidence to what is kept and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override
from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.rules import rule_for
from pipeline.selection.decision import Decision, ShareRule, decide
from pipeline.selection.ensemble import looks_at_map, split_options
from pipeline.selection.evidence import Evidence, Judged
from pipeline.selection.reasons import by_hand, neighbour_phrases, network_phrases
from pipeline.selection.requirements import check_scorer
from pipeline.selection.scorers import SCORERS
from pipeline.selection.stability import jaccard

SHOWN_NEIGHBOURS = 10
"""How many of the nearest neighbours are named and listed, at most."""


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """What people call things and say of them.

    Attributes:
        network: whose features these are; `drop_share` may differ by network.
        names: of the classes.
        overrides: row -> what a person decided.
        draw: number of the replicate, added to the seeds of scorers that draw.
    """

    network: str
    names: Sequence[str]
    overrides: Mapping[int, Override]
    draw: int = 0


@dataclass(frozen=True, kw_only=True)
class Sieved:
    """What became of N images.

    Attributes:
        keep: (N,) after people's overrides.
        stability: Jaccard index of what goes by the first map and by each of the others, at the same share
            where a radius was given or found, since maps have scales of their own; empty where no other
            map is known or the scorer looks at none.
    """

    decision: Decision
    keep: NDArray[np.bool_]
    reasons: list[str]
    stability: list[float]


def sieve(
    evidence: Evidence, config: FilterConfig, known: Labelling, *, mend: str = "keep some in data/overrides.csv"
) -> Sieved:
    """Score, choose, and let people overrule.

    Args:
        mend: what else than another number in the parameters keeps images that all would go; for messages.

    Raises:
        InputError: the scorer cannot work on this evidence, or a class would be left empty.
    """
    scorer = _drawn(config.scorer.model_dump(), known.draw)
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
    return Sieved(
        decision=decision,
        keep=keep,
        reasons=_reasons(evidence, config, decision, known),
        stability=_stability(evidence, scorer, rule, decision),
    )


def _drawn(scorer: Mapping[str, Any], draw: int) -> dict[str, Any]:
    """The scorer and its members with every seed moved by `draw`."""
    moved = {key: value + draw if key == "seed" else value for key, value in scorer.items()}
    return moved | {"of": [_drawn(member, draw) for member in scorer["of"]]} if "of" in scorer else moved


def _stability(
    evidence: Evidence, scorer: Mapping[str, Any], rule: ShareRule | float, decision: Decision
) -> list[float]:
    name, options = split_options(scorer)
    # Averaged over all maps, an ensemble has none that counts alone.
    if evidence.maps is None or "of" in options or not looks_at_map(SCORERS[name], options):
        return []
    share = rule if isinstance(rule, ShareRule) else ShareRule(share=float(decision.is_noise.mean()))
    others = (evidence.on_map(index) for index in range(1, len(evidence.maps)))
    return [jaccard(decision.is_noise, decide(other, scorer, share).is_noise) for other in others]


def _check_no_class_is_empty(
    evidence: Evidence,
    config: FilterConfig,
    names: Sequence[str],
    decision: Decision,
    keep: NDArray[np.bool_],
    mend: str,
) -> None:
    key = _rule_key(config)
    other_number = {"drop_share": "lower it"}.get(key, "raise it")
    for label in np.unique(evidence.labels):
        rows = evidence.labels == label
        if not keep[rows].any():
            raise InputError(
                f"filter.{key}: {getattr(config, key)} leaves none of the {rows.sum()} images of class "
                f"{names[label]!r} ({decision.is_noise[rows].sum()} exceed {decision.thresholds[rows][0]:.4g}, "
                f"the rest dropped by hand); {other_number}, {mend}, or set filter.allow_empty: true"
            )


def _rule_key(config: FilterConfig) -> str:
    return next(key for key in ("drop_share", "eps", "threshold") if getattr(config, key) is not None)


def _reasons(evidence: Evidence, config: FilterConfig, decision: Decision, known: Labelling) -> list[str]:
    names = known.names
    name, options = split_options(_drawn(config.scorer.model_dump(), known.draw))
    judged = Judged(
        evidence=evidence, options=options, values=decision.values, thresholds=decision.thresholds, names=names
    )
    parts = [SCORERS[name].phrases(judged)]
    if evidence.neighbours is not None and evidence.has("classes") and name != "knn_agreement":
        parts.append(neighbour_phrases(evidence.neighbours[:, :SHOWN_NEIGHBOURS], evidence.labels, names))
    if evidence.probabilities is not None:
        seen = evidence.probabilities.argmax(axis=1)
        sure = np.take_along_axis(evidence.probabilities, seen[:, None], axis=1)[:, 0]
        parts.append(network_phrases(seen, sure, evidence.labels, names))
    reasons = ["; ".join(filter(None, phrases)) for phrases in zip(*parts, strict=True)]
    for row, override in known.overrides.items():
        reasons[row] = by_hand(override.decision, override.note)
    return reasons
