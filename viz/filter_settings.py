"""What would go by other settings than the filter's: any scorer, any threshold, for all classes or for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from pipeline.artifacts.overrides import Override
from pipeline.scoring.base import SPACE_NAMES, Space
from pipeline.scoring.density import ROUNDING
from pipeline.scoring.registry import SCORERS
from pipeline.scoring.thresholds import score, threshold_for_share
from viz.data import Points, Source
from viz.values import filter_values, ordered_distances, radii, scored_values, with_defaults

AS_FILTERED = "written"
"""The scorer that the filter has used, its values taken from what it has written."""

# Needs another package, is chance, or has a seed that no reader chooses.
_EXCLUDED_SCORERS = {"confident_learning", "ensemble", "random"}
SCORER_CHOICES: Mapping[str, str] = {
    AS_FILTERED: "as the filter did",
    "dbscan": f"DBSCAN {SPACE_NAMES['map']}",
    "dbscan-components": f"DBSCAN {SPACE_NAMES['components']}",
} | {name: name.replace("_", " ") for name in SCORERS if name not in {"dbscan", *_EXCLUDED_SCORERS}}
"""Who says how suspect an image is: key -> in words."""

MAX_MIN_SAMPLES = 100

# Beyond what any judge gives but 0 and infinity; sliders need room below and above.
_MIN_THRESHOLD, _MAX_THRESHOLD = 1e-100, 1e100


def _validate_choice(judge: str) -> str:
    if judge not in SCORER_CHOICES:
        raise ValueError(f"{judge!r} judges nothing")
    return judge


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Up to where images stay: `threshold` in the judge's unit, None for the filter's; `min_samples` is DBSCAN's."""

    threshold: Annotated[float, Field(ge=_MIN_THRESHOLD, le=_MAX_THRESHOLD)] | None = None
    min_samples: Annotated[int, Field(ge=1, le=MAX_MIN_SAMPLES)] = 5


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """Settings of a look at the data.

    Attributes:
        judge: a key of `SCORER_CHOICES`.
        limit: for all classes but those in `own`.
        own: class -> its limit.
    """

    judge: Annotated[str, AfterValidator(_validate_choice)] = AS_FILTERED
    limit: Limit = field(default_factory=Limit)
    own: Mapping[int, Limit] = field(default_factory=dict)

    @property
    def space(self) -> Space | None:
        """Where DBSCAN looks; None for other judges."""
        return {"dbscan": "map", "dbscan-components": "components"}.get(self.judge)  # type: ignore[return-value]

    @property
    def scorer(self) -> dict[str, Any]:
        """The judge as a scorer with its options, for judges other than `AS_FILTERED`; `min_samples` is that of
        `limit`.
        """
        if self.space is not None:
            return {"name": "dbscan", "space": self.space, "min_samples": self.limit.min_samples}
        return with_defaults(self.judge)

    def limit_for(self, label: int | None) -> Limit:
        """Of one class, or of all."""
        return self.limit if label is None else self.own.get(label, self.limit)

    def with_limit(self, label: int | None, limit: Limit) -> "FilterSettings":
        """The same with another limit for one class; for None, the same one for all classes."""
        if label is None:
            return replace(self, limit=limit, own={})
        return replace(self, own={**self.own, label: limit})


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterPreview:
    """What a rule says of N images.

    Attributes:
        values: (N,) suspicion in the judge's unit.
        thresholds: (N,) what they must exceed to go.
        noise: (N,) whether they go by that.
        overrides: row -> what a person decided, which counts more.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    noise: NDArray[np.bool_]
    overrides: Mapping[int, Override]

    @cached_property
    def keep(self) -> NDArray[np.bool_]:
        """(N,) what stays, human decisions included."""
        keep = ~self.noise
        if self.overrides:
            keep[list(self.overrides)] = [line.decision == "keep" for line in self.overrides.values()]
        return keep

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for noise."""
        return score(self.values, self.thresholds)


def preview_filter(source: Source, points: Points, rule: FilterSettings) -> FilterPreview:
    """What goes by the rule.

    Raises:
        InputError: the judge needs files that are missing, or cannot judge these images.
    """
    overrides = source.overrides(points)
    values = suspicion_values(source, points, rule)
    if rule.judge == AS_FILTERED and rule.limit.threshold is None and not rule.own:
        return FilterPreview(values=values, thresholds=points.thresholds, noise=points.is_noise, overrides=overrides)
    thresholds = class_thresholds(source, points, rule)[points.labels]
    # A radius that equals eps up to rounding is reached, as DBSCAN has it.
    noise = values > (thresholds * (1 + ROUNDING) if rule.space else thresholds)
    return FilterPreview(values=values, thresholds=thresholds, noise=noise, overrides=overrides)


def suspicion_values(source: Source, points: Points, rule: FilterSettings) -> NDArray[np.float64]:
    """(N,) how suspect each image is, in the judge's unit; computed once for each judge and `min_samples`.

    Raises:
        InputError: the judge needs files that are missing, or cannot judge these images.
    """
    if rule.judge == AS_FILTERED:
        return filter_values(source, points)
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


def default_threshold(source: Source, points: Points, rule: FilterSettings) -> float:
    """What is in force for the classes without a limit of their own; a median where the filter's own has several."""
    if rule.limit.threshold is not None:
        return rule.limit.threshold
    if rule.judge == AS_FILTERED:
        return float(np.median(points.thresholds)) if points.eps is None else points.eps
    # As many go as by the filter.
    return threshold_for(suspicion_values(source, points, rule), float(points.is_noise.mean()))


def class_thresholds(source: Source, points: Points, rule: FilterSettings) -> NDArray[np.float64]:
    """(n_classes,) what is in force for each class.

    Raises:
        InputError: as `suspicion_values`.
    """
    thresholds = np.full(len(points.class_names), default_threshold(source, points, rule))
    if rule.judge == AS_FILTERED and rule.limit.threshold is None:
        # One for all images of a class.
        thresholds[points.labels] = points.thresholds
    for label, limit in rule.own.items():
        if limit.threshold is not None and label in points.classes:
            thresholds[label] = limit.threshold
    return thresholds


def threshold_for(values: NDArray[np.float64], share: float) -> float:
    """The threshold above which as near to `share`, 0 to 1, of the values (n,) as ties allow lie."""
    return threshold_for_share(values, share).value


def sorted_distances(source: Source, points: Points, rule: FilterSettings, label: int | None) -> NDArray[np.float64]:
    """Ascending, of a class or all, what a threshold is read from: k-distances for DBSCAN, else the judge's values."""
    found = dbscan_settings(points, rule, label)
    if found is None:
        values = suspicion_values(source, points, rule)
        return np.sort(values if label is None else values[points.labels == label])
    return ordered_distances(source, points, *found, label)


def dbscan_settings(points: Points, rule: FilterSettings, label: int | None) -> tuple[Space, int] | None:
    """Where DBSCAN looks and its `min_samples`, for a class or all; None if another scorer judges."""
    if rule.judge == AS_FILTERED and points.scorer["name"] == "dbscan":
        return points.scorer["space"], points.scorer["min_samples"]
    return None if rule.space is None else (rule.space, rule.limit_for(label).min_samples)
