"""Preview of the filter with other settings: any scorer, any threshold, for all classes or for one."""

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
"""The filter's own scorer, with values from its output."""

# They need another package, are random, or need a seed.
_EXCLUDED_SCORERS = {"confident_learning", "ensemble", "random"}
SCORER_CHOICES: Mapping[str, str] = {
    AS_FILTERED: "as the filter did",
    "dbscan": f"DBSCAN {SPACE_NAMES['embedding']}",
    "dbscan-components": f"DBSCAN {SPACE_NAMES['components']}",
} | {name: name.replace("_", " ") for name in SCORERS if name not in {"dbscan", *_EXCLUDED_SCORERS}}
"""Scorer key -> name on the page."""

MAX_MIN_SAMPLES = 100

# Beyond all values of scorers except 0 and infinity; sliders need room below and above.
_MIN_THRESHOLD, _MAX_THRESHOLD = 1e-100, 1e100


def _validate_choice(judge: str) -> str:
    if judge not in SCORER_CHOICES:
        raise ValueError(f"{judge!r} is not a scorer")
    return judge


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Limit up to which images stay: `threshold` in the scorer's unit, None for the filter's; and `min_samples`."""

    threshold: Annotated[float, Field(ge=_MIN_THRESHOLD, le=_MAX_THRESHOLD)] | None = None
    min_samples: Annotated[int, Field(ge=1, le=MAX_MIN_SAMPLES)] = 5


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """Settings of a preview. Links store the fields by name.

    Attributes:
        judge: the scorer, a key of `SCORER_CHOICES`.
        limit: for all classes except those in `own`.
        own: class -> its limit.
    """

    judge: Annotated[str, AfterValidator(_validate_choice)] = AS_FILTERED
    limit: Limit = field(default_factory=Limit)
    own: Mapping[int, Limit] = field(default_factory=dict)

    @property
    def space(self) -> Space | None:
        """Where DBSCAN looks; None for other judges."""
        return {"dbscan": "embedding", "dbscan-components": "components"}.get(self.judge)  # type: ignore[return-value]

    @property
    def scorer(self) -> dict[str, Any]:
        """Scorer with its options, except for `AS_FILTERED`; `min_samples` is that of `limit`."""
        if self.space is not None:
            return {"name": "dbscan", "space": self.space, "min_samples": self.limit.min_samples}
        return with_defaults(self.judge)

    def limit_for(self, label: int | None) -> Limit:
        """Return the limit of one class, or of all for None."""
        return self.limit if label is None else self.own.get(label, self.limit)

    def with_limit(self, label: int | None, limit: Limit) -> "FilterSettings":
        """Return settings with another limit for one class, or for None one limit for all classes."""
        if label is None:
            return replace(self, limit=limit, own={})
        return replace(self, own={**self.own, label: limit})


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterPreview:
    """Preview of the filter on N images.

    Attributes:
        values: (N,) suspicion in the scorer's unit.
        thresholds: (N,) images with larger values go.
        noise: (N,) whether the value exceeds the threshold.
        overrides: row -> manual override, which takes precedence.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    noise: NDArray[np.bool_]
    overrides: Mapping[int, Override]

    @cached_property
    def keep(self) -> NDArray[np.bool_]:
        """(N,) whether the image stays, overrides included."""
        keep = ~self.noise
        if self.overrides:
            keep[list(self.overrides)] = [override.decision == "keep" for override in self.overrides.values()]
        return keep

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for noise."""
        return score(self.values, self.thresholds)


def preview_filter(source: Source, points: Points, rule: FilterSettings) -> FilterPreview:
    """Preview which images the settings drop.

    Raises:
        InputError: the scorer needs files that are missing, or cannot score these images.
    """
    overrides = source.overrides(points)
    values = suspicion_values(source, points, rule)
    if rule.judge == AS_FILTERED and rule.limit.threshold is None and not rule.own:
        return FilterPreview(values=values, thresholds=points.thresholds, noise=points.is_noise, overrides=overrides)
    thresholds = class_thresholds(source, points, rule)[points.labels]
    # As in DBSCAN, a radius equal to eps up to rounding is within it.
    noise = values > (thresholds * (1 + ROUNDING) if rule.space else thresholds)
    return FilterPreview(values=values, thresholds=thresholds, noise=noise, overrides=overrides)


def suspicion_values(source: Source, points: Points, rule: FilterSettings) -> NDArray[np.float64]:
    """Return the suspicion (N,) in the scorer's unit, computed once for each scorer and `min_samples`.

    Raises:
        InputError: the scorer needs files that are missing, or cannot score these images.
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
    """Return the threshold of classes without a separate limit; the median where the filter has several."""
    if rule.limit.threshold is not None:
        return rule.limit.threshold
    if rule.judge == AS_FILTERED:
        return float(np.median(points.thresholds)) if points.eps is None else points.eps
    # Drop the same number of images as the filter.
    return threshold_for(suspicion_values(source, points, rule), float(points.is_noise.mean()))


def class_thresholds(source: Source, points: Points, rule: FilterSettings) -> NDArray[np.float64]:
    """Return the threshold of each class, (n_classes,).

    Raises:
        InputError: as `suspicion_values`.
    """
    thresholds = np.full(len(points.class_names), default_threshold(source, points, rule))
    if rule.judge == AS_FILTERED and rule.limit.threshold is None:
        # All images of a class have the same threshold.
        thresholds[points.labels] = points.thresholds
    for label, limit in rule.own.items():
        if limit.threshold is not None and label in points.classes:
            thresholds[label] = limit.threshold
    return thresholds


def threshold_for(values: NDArray[np.float64], share: float) -> float:
    """Return the threshold that a fraction of the values (n,) exceeds, as close to `share` (0 to 1) as ties allow."""
    return threshold_for_share(values, share).value


def sorted_distances(source: Source, points: Points, rule: FilterSettings, label: int | None) -> NDArray[np.float64]:
    """Return the curve of a class or all, ascending: k-distances for DBSCAN, else the scorer's values."""
    dbscan = dbscan_settings(points, rule, label)
    if dbscan is None:
        values = suspicion_values(source, points, rule)
        return np.sort(values if label is None else values[points.labels == label])
    return ordered_distances(source, points, *dbscan, label)


def dbscan_settings(points: Points, rule: FilterSettings, label: int | None) -> tuple[Space, int] | None:
    """Return the space and `min_samples` of DBSCAN, for a class or all; None for other scorers."""
    if rule.judge == AS_FILTERED and points.scorer["name"] == "dbscan":
        return points.scorer["space"], points.scorer["min_samples"]
    return None if rule.space is None else (rule.space, rule.limit_for(label).min_samples)
