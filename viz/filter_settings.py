"""Preview of the filter with other settings: any scorer, any threshold, for all classes or for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from pipeline.artifacts.overrides import Override
from pipeline.scoring.base import Space
from pipeline.scoring.decision import redundant_rows
from pipeline.scoring.density import ROUNDING
from pipeline.scoring.registry import SCORERS
from pipeline.scoring.thresholds import score, threshold_for_share
from viz.data import Points, Source
from viz.values import filter_values, ordered_distances, radii, scored_values, with_defaults

AS_FILTERED = "written"
"""Key of the scorer that the filter used, with values from its output."""

# They need another package, are random, or need a seed.
_EXCLUDED_SCORERS = {"ccs", "confident_learning", "ensemble", "random"}
SCORER_CHOICES: Mapping[str, str] = {
    AS_FILTERED: "scorer of the filter",
    "dbscan": "DBSCAN (embedding)",
    "dbscan-components": "DBSCAN (components)",
} | {name: name.replace("_", " ") for name in SCORERS if name not in {"dbscan", *_EXCLUDED_SCORERS}}
"""Scorer key -> name on the page."""

MAX_MIN_SAMPLES = 100

# Beyond all values of scorers except 0 and infinity. Sliders need room below and above.
MIN_THRESHOLD, MAX_THRESHOLD = 1e-100, 1e100


def _validate_choice(key: str) -> str:
    if key not in SCORER_CHOICES:
        raise ValueError(f"{key!r} is not a scorer")
    return key


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Limit above which the filter drops images.

    Attributes:
        threshold: in the unit of the scorer; None for that of the filter.
        min_samples: of DBSCAN.
    """

    threshold: Annotated[float, Field(ge=MIN_THRESHOLD, le=MAX_THRESHOLD)] | None = None
    min_samples: Annotated[int, Field(ge=1, le=MAX_MIN_SAMPLES)] = 5


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """Settings of a preview. The page stores them as JSON under the names of the fields; links see callbacks/url.py.

    Attributes:
        scorer_choice: a key of `SCORER_CHOICES`.
        limit: for all classes except those in `per_class`.
        per_class: class -> its limit.
    """

    scorer_choice: Annotated[str, AfterValidator(_validate_choice)] = AS_FILTERED
    limit: Limit = field(default_factory=Limit)
    per_class: Mapping[int, Limit] = field(default_factory=dict)

    @property
    def space(self) -> Space | None:
        """Space in which DBSCAN clusters; None for other scorers."""
        return {"dbscan": "embedding", "dbscan-components": "components"}.get(self.scorer_choice)  # type: ignore[return-value]

    @property
    def scorer(self) -> dict[str, Any]:
        """Scorer with its options, except for `AS_FILTERED`; `min_samples` is that of `limit`."""
        if self.space is not None:
            return {"name": "dbscan", "space": self.space, "min_samples": self.limit.min_samples}
        return with_defaults(self.scorer_choice)

    def limit_for(self, label: int | None) -> Limit:
        """Return the limit of one class, or of all for None."""
        return self.limit if label is None else self.per_class.get(label, self.limit)

    def with_limit(self, label: int | None, limit: Limit) -> "FilterSettings":
        """Return settings with another limit for one class, or for None one limit for all classes."""
        if label is None:
            return replace(self, limit=limit, per_class={})
        return replace(self, per_class={**self.per_class, label: limit})


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterPreview:
    """Preview of the filter on N images.

    Attributes:
        values: (N,) suspicion in the unit of the scorer.
        thresholds: (N,) images with larger values are dropped.
        noise: (N,) whether the value exceeds the threshold.
        overrides: row -> manual override, which takes precedence.
        redundant: row -> the row that it nearly equals, of images that are dropped as near duplicates; from N on those
            of test images.
        redundant_unseen: the same if nothing was decided by hand.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    noise: NDArray[np.bool_]
    overrides: Mapping[int, Override]
    redundant: Mapping[int, int] = field(default_factory=dict)
    redundant_unseen: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def keep(self) -> NDArray[np.bool_]:
        """(N,) whether the image is kept, overrides included."""
        keep = ~self.noise
        keep[list(self.redundant)] = False
        if self.overrides:
            keep[list(self.overrides)] = [override.keeps for override in self.overrides.values()]
        return keep

    @cached_property
    def dropped_by_filter(self) -> NDArray[np.bool_]:
        """(N,) whether the filter drops the image without overrides, as noise or as a near duplicate."""
        dropped = self.noise.copy()
        dropped[list(self.redundant_unseen)] = True
        return dropped

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for noise."""
        return score(self.values, self.thresholds)


def preview_filter(source: Source, points: Points, settings: FilterSettings) -> FilterPreview:
    """Preview which images the settings drop.

    Raises:
        InputError: the scorer needs files that are missing, or cannot score these images.
    """
    values = suspicion_values(source, points, settings)
    if settings.scorer_choice == AS_FILTERED and settings.limit.threshold is None and not settings.per_class:
        thresholds, noise, scores = points.thresholds, points.is_noise, points.scores
    else:
        thresholds = class_thresholds(source, points, settings)[points.labels]
        # As in DBSCAN, a radius equal to eps up to rounding is within it.
        noise = values > (thresholds * (1 + ROUNDING) if settings.space else thresholds)
        scores = score(values, thresholds)
    overrides = source.overrides(points)
    kept = {row for row, override in overrides.items() if override.keeps}
    return FilterPreview(
        values=values,
        thresholds=thresholds,
        noise=noise,
        overrides=overrides,
        redundant=redundant_rows(points.duplicate_pairs, ~noise, scores, decided=overrides, kept_by_hand=kept),
        redundant_unseen=redundant_rows(points.duplicate_pairs, ~noise, scores),
    )


def suspicion_values(source: Source, points: Points, settings: FilterSettings) -> NDArray[np.float64]:
    """Return the suspicion (N,) in the unit of the scorer, computed once for each scorer and `min_samples`.

    Raises:
        InputError: the scorer needs files that are missing, or cannot score these images.
    """
    if settings.scorer_choice == AS_FILTERED:
        return filter_values(source, points)
    if settings.space is None:
        return scored_values(source, points, settings.scorer_choice)
    values = radii(source, points, settings.space, settings.limit.min_samples, None)
    others = {
        label: limit.min_samples
        for label, limit in settings.per_class.items()
        if limit.min_samples != settings.limit.min_samples and label in points.classes
    }
    if others:
        values = values.copy()
    for label, min_samples in others.items():
        values[points.labels == label] = radii(source, points, settings.space, min_samples, label)
    return values


def default_threshold(source: Source, points: Points, settings: FilterSettings) -> float:
    """Return the threshold of classes without a separate limit; the median where the filter has several."""
    if settings.limit.threshold is not None:
        return settings.limit.threshold
    if settings.scorer_choice == AS_FILTERED:
        return float(np.median(points.thresholds)) if points.eps is None else points.eps
    # Drop the same number of images as the filter.
    return threshold_for(suspicion_values(source, points, settings), float(points.is_noise.mean()))


def class_thresholds(source: Source, points: Points, settings: FilterSettings) -> NDArray[np.float64]:
    """Return the threshold of each class, (n_classes,).

    Raises:
        InputError: as `suspicion_values`.
    """
    thresholds = np.full(len(points.class_names), default_threshold(source, points, settings))
    if settings.scorer_choice == AS_FILTERED and settings.limit.threshold is None:
        # All images of a class have the same threshold.
        thresholds[points.labels] = points.thresholds
    for label, limit in settings.per_class.items():
        if limit.threshold is not None and label in points.classes:
            thresholds[label] = limit.threshold
    return thresholds


def threshold_for(values: NDArray[np.float64], share: float) -> float:
    """Return the threshold that a fraction of the values (n,) exceeds, as close to `share` (0 to 1) as ties allow."""
    return threshold_for_share(values, share).value


def sorted_distances(
    source: Source, points: Points, settings: FilterSettings, label: int | None
) -> NDArray[np.float64]:
    """Return the curve of a class or all, ascending: k-distances for DBSCAN, else the scorer's values."""
    dbscan = dbscan_settings(points, settings, label)
    if dbscan is None:
        values = suspicion_values(source, points, settings)
        return np.sort(values if label is None else values[points.labels == label])
    return ordered_distances(source, points, *dbscan, label)


def dbscan_settings(points: Points, settings: FilterSettings, label: int | None) -> tuple[Space, int] | None:
    """Return the space and `min_samples` of DBSCAN, for a class or all; None for other scorers."""
    if settings.scorer_choice == AS_FILTERED and points.scorer["name"] == "dbscan":
        return points.scorer["space"], points.scorer["min_samples"]
    return None if settings.space is None else (settings.space, settings.limit_for(label).min_samples)
