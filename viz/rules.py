"""What would go by other settings than the filter's: any scorer, any threshold, for all classes or for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from pipeline.artifacts.overrides import Override
from pipeline.selection.budgets import score, threshold_for_share
from pipeline.selection.dbscan import ROUNDING
from pipeline.selection.evidence import PLACES, Space
from pipeline.selection.scorers import SCORERS
from viz.data import Points, Source
from viz.values import ordered_distances, radii, scored_values, with_defaults, written_values

WRITTEN = "written"
"""The scorer that the filter has used, its values taken from what it has written."""

# Needs another package, is chance, or has a seed that no reader chooses.
_LEFT_OUT = {"confident_learning", "ensemble", "random"}
JUDGES: Mapping[str, str] = {
    WRITTEN: "as the filter did",
    "dbscan": f"DBSCAN {PLACES['map']}",
    "dbscan-components": f"DBSCAN {PLACES['components']}",
} | {name: name.replace("_", " ") for name in SCORERS if name not in {"dbscan", *_LEFT_OUT}}
"""Who says how suspect an image is: key -> in words."""

MOST_MIN_SAMPLES = 100

# Beyond what any judge gives but 0 and infinity; sliders need room below and above.
_LEAST, _GREATEST = 1e-100, 1e100


def _known(judge: str) -> str:
    if judge not in JUDGES:
        raise ValueError(f"{judge!r} judges nothing")
    return judge


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Up to where images stay: `threshold` in the judge's unit, None for the filter's; `min_samples` is DBSCAN's."""

    threshold: Annotated[float, Field(ge=_LEAST, le=_GREATEST)] | None = None
    min_samples: Annotated[int, Field(ge=1, le=MOST_MIN_SAMPLES)] = 5


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Settings of a look at the data.

    Attributes:
        judge: a key of `JUDGES`.
        limit: for all classes but those in `own`.
        own: class -> its limit.
    """

    judge: Annotated[str, AfterValidator(_known)] = WRITTEN
    limit: Limit = field(default_factory=Limit)
    own: Mapping[int, Limit] = field(default_factory=dict)

    @property
    def space(self) -> Space | None:
        """Where DBSCAN looks; None for other judges."""
        return {"dbscan": "map", "dbscan-components": "components"}.get(self.judge)  # type: ignore[return-value]

    @property
    def scorer(self) -> dict[str, Any]:
        """The judge as a scorer with its options, for judges other than `WRITTEN`; `min_samples` is that of `limit`."""
        if self.space is not None:
            return {"name": "dbscan", "space": self.space, "min_samples": self.limit.min_samples}
        return with_defaults(self.judge)

    def limit_of(self, label: int | None) -> Limit:
        """Of one class, or of all."""
        return self.limit if label is None else self.own.get(label, self.limit)

    def with_limit(self, label: int | None, limit: Limit) -> "Rule":
        """The same with another limit for one class; for None, the same one for all classes."""
        if label is None:
            return replace(self, limit=limit, own={})
        return replace(self, own={**self.own, label: limit})


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """What a rule says of N images.

    Attributes:
        values: (N,) suspicion in the judge's unit.
        thresholds: (N,) what they must exceed to go.
        noise: (N,) whether they go by that.
        by_hand: row -> what a person decided, which counts more.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    noise: NDArray[np.bool_]
    by_hand: Mapping[int, Override]

    @cached_property
    def keep(self) -> NDArray[np.bool_]:
        """(N,) what stays, human decisions included."""
        keep = ~self.noise
        if self.by_hand:
            keep[list(self.by_hand)] = [line.decision == "keep" for line in self.by_hand.values()]
        return keep

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for noise."""
        return score(self.values, self.thresholds)


def judge(source: Source, points: Points, rule: Rule) -> Verdict:
    """What goes by the rule.

    Raises:
        InputError: the judge needs files that are missing, or cannot judge these images.
    """
    by_hand = source.by_hand(points)
    values = values_of(source, points, rule)
    if rule.judge == WRITTEN and rule.limit.threshold is None and not rule.own:
        return Verdict(values=values, thresholds=points.thresholds, noise=points.is_noise, by_hand=by_hand)
    thresholds = thresholds_of(source, points, rule)[points.labels]
    # A radius that equals eps up to rounding is reached, as DBSCAN has it.
    noise = values > (thresholds * (1 + ROUNDING) if rule.space else thresholds)
    return Verdict(values=values, thresholds=thresholds, noise=noise, by_hand=by_hand)


def values_of(source: Source, points: Points, rule: Rule) -> NDArray[np.float64]:
    """(N,) how suspect each image is, in the judge's unit; computed once for each judge and `min_samples`.

    Raises:
        InputError: the judge needs files that are missing, or cannot judge these images.
    """
    if rule.judge == WRITTEN:
        return written_values(source, points)
    if rule.space is None:
        return scored_values(source, points, rule.judge)
    values = radii(source, points, rule.space, rule.limit.min_samples, None)
    others = {
        label: limit.min_samples
        for label, limit in rule.own.items()
        if limit.min_samples != rule.limit.min_samples and label in points.classes
    }
    if others:
        values = values.copy()
    for label, min_samples in others.items():
        values[points.labels == label] = radii(source, points, rule.space, min_samples, label)
    return values


def threshold_of(source: Source, points: Points, rule: Rule) -> float:
    """What is in force for the classes without a limit of their own; a median where the filter's own has several."""
    if rule.limit.threshold is not None:
        return rule.limit.threshold
    if rule.judge == WRITTEN:
        return float(np.median(points.thresholds)) if points.eps is None else points.eps
    # As many go as by the filter.
    return threshold_for(values_of(source, points, rule), float(points.is_noise.mean()))


def thresholds_of(source: Source, points: Points, rule: Rule) -> NDArray[np.float64]:
    """(n_classes,) what is in force for each class.

    Raises:
        InputError: as `values_of`.
    """
    thresholds = np.full(len(points.class_names), threshold_of(source, points, rule))
    if rule.judge == WRITTEN and rule.limit.threshold is None:
        # One for all images of a class.
        thresholds[points.labels] = points.thresholds
    for label, limit in rule.own.items():
        if limit.threshold is not None and label in points.classes:
            thresholds[label] = limit.threshold
    return thresholds


def threshold_for(values: NDArray[np.float64], share: float) -> float:
    """The threshold above which as near to `share`, 0 to 1, of the values (n,) as ties allow lie."""
    return threshold_for_share(values, share).value


def distances_of(source: Source, points: Points, rule: Rule, label: int | None) -> NDArray[np.float64]:
    """Ascending, of a class or all, what a threshold is read from: k-distances for DBSCAN, else the judge's values."""
    found = clustering_of(points, rule, label)
    if found is None:
        values = values_of(source, points, rule)
        return np.sort(values if label is None else values[points.labels == label])
    return ordered_distances(source, points, *found, label)


def clustering_of(points: Points, rule: Rule, label: int | None) -> tuple[Space, int] | None:
    """Where DBSCAN looks and its `min_samples`, for a class or all; None if another scorer judges."""
    if rule.judge == WRITTEN and points.scorer["name"] == "dbscan":
        return points.scorer["space"], points.scorer["min_samples"]
    return None if rule.space is None else (rule.space, rule.limit_of(label).min_samples)
