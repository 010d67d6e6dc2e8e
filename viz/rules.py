"""What would go by other settings than the filter's: any scorer, any threshold, for all classes or for one."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter

from pipeline.config.base import PositiveFloat, Section
from pipeline.config.scorers import SingleScorer
from pipeline.selection.budgets import score, threshold_for_share
from pipeline.selection.calibration import k_distances
from pipeline.selection.dbscan import ROUNDING, release_radii_by_class
from pipeline.selection.ensemble import split_options
from pipeline.selection.evidence import PLACES, Space
from pipeline.selection.requirements import check_scorer
from pipeline.selection.scorers import SCORERS
from viz.data import Points, Source

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


def _known(judge: str) -> str:
    if judge not in JUDGES:
        raise ValueError(f"{judge!r} judges nothing")
    return judge


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Up to where images stay: `threshold` in the judge's unit, None for the filter's; `min_samples` is DBSCAN's."""

    threshold: PositiveFloat | None = None
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
        return _with_defaults(self.judge)

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
        by_hand: row -> whether a person keeps it, which counts more.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    noise: NDArray[np.bool_]
    by_hand: Mapping[int, bool]

    @cached_property
    def keep(self) -> NDArray[np.bool_]:
        """(N,) what stays, human decisions included."""
        keep = ~self.noise
        if self.by_hand:
            keep[list(self.by_hand)] = list(self.by_hand.values())
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
    by_hand = {row: override.decision == "keep" for row, override in source.by_hand(points).items()}
    values = values_of(source, points, rule)
    if rule.judge == WRITTEN and rule.limit.threshold is None and not rule.own:
        return Verdict(values=values, thresholds=points.thresholds, noise=points.is_noise, by_hand=by_hand)
    thresholds = np.array([threshold_of(source, points, rule, label) for label in range(len(points.class_names))])[
        points.labels
    ]
    # A radius that equals eps up to rounding is reached, as DBSCAN has it.
    noise = values > (thresholds * (1 + ROUNDING) if rule.space else thresholds)
    return Verdict(values=values, thresholds=thresholds, noise=noise, by_hand=by_hand)


def values_of(source: Source, points: Points, rule: Rule) -> NDArray[np.float64]:
    """(N,) how suspect each image is, in the judge's unit; computed once for each judge and `min_samples`.

    Raises:
        InputError: the judge needs files that are missing, or cannot judge these images.
    """
    if rule.judge == WRITTEN:
        return _remembered(source, points, WRITTEN, lambda: _as_written(points))
    if rule.space is None:
        return _remembered(source, points, rule.judge, lambda: _scored(source, points, rule.judge))
    values = _radii(source, points, rule.space, rule.limit.min_samples, None)
    others = {label: limit for label, limit in rule.own.items() if limit.min_samples != rule.limit.min_samples}
    if others:
        values = values.copy()
    for label, limit in others.items():
        values[points.labels == label] = _radii(source, points, rule.space, limit.min_samples, label)
    return values


def threshold_of(source: Source, points: Points, rule: Rule, label: int | None) -> float:
    """What is in force for a class, or for all classes without their own."""
    limit = rule.limit_of(label)
    if limit.threshold is not None:
        return limit.threshold
    if rule.judge == WRITTEN and label is not None:
        rows = points.labels == label
        return float(points.thresholds[rows][0]) if rows.any() else 1.0
    if rule.judge == WRITTEN and points.eps is not None:
        return points.eps
    # As many go as by the filter.
    return threshold_for(values_of(source, points, rule), float(points.is_noise.mean()))


def threshold_for(values: NDArray[np.float64], share: float) -> float:
    """The threshold above which as near to `share`, 0 to 1, of the values (n,) as ties allow lie."""
    return threshold_for_share(values, share).value


def distances_of(source: Source, points: Points, rule: Rule, label: int | None) -> NDArray[np.float64]:
    """Ascending, of a class or all, what a threshold is read from: k-distances for DBSCAN, else the judge's values."""
    rows = np.ones(len(points), dtype=np.bool_) if label is None else points.labels == label
    if rule.space is None:
        return np.sort(values_of(source, points, rule)[rows])
    places, least = _places(source, points, rule.space), rule.limit_of(label).min_samples
    return _remembered(
        source, points, ("k-distances", rule.space, least, label),
        lambda: k_distances(places[rows], points.labels[rows], least),
    )  # fmt: skip


def _remembered(
    source: Source, points: Points, key: object, make: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    return source.remembered.get((points.network, key), points.stamp, make)


def _radii(source: Source, points: Points, space: Space, min_samples: int, label: int | None) -> NDArray[np.float64]:
    """Release radii of one class or, for None, of all."""
    places = _places(source, points, space)
    rows = np.ones(len(points), dtype=np.bool_) if label is None else points.labels == label

    def compute() -> NDArray[np.float64]:
        # Searching for neighbours lets other threads run.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return release_radii_by_class(places[rows], points.labels[rows], min_samples=min_samples, each=pool.map)

    return _remembered(source, points, ("radii", space, min_samples, label), compute)


def _places(source: Source, points: Points, space: Space) -> NDArray[np.float64]:
    return points.coordinates if space == "map" else source.evidence(points).points(space)


def _as_written(points: Points) -> NDArray[np.float64]:
    """Values from scores, v / (v + threshold); see `budgets.score`."""
    finite = points.scores < 1
    odds = points.scores[finite] / (1 - points.scores[finite])
    values = np.full(len(points), np.inf)
    values[finite] = odds * points.thresholds[finite]
    return values


def _scored(source: Source, points: Points, name: str) -> NDArray[np.float64]:
    scorer = _with_defaults(name)
    evidence = source.evidence(points)
    check_scorer(evidence, scorer, points.class_names, JUDGES[name])
    _, options = split_options(scorer)
    return SCORERS[name].values(evidence, **options)


def _with_defaults(name: str) -> dict[str, Any]:
    """A scorer and its options, as an empty section of params.yaml would have them."""
    return TypeAdapter[Section](SingleScorer).validate_python({"name": name}).model_dump()
