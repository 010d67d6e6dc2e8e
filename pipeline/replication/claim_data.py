"""Runs as records, their replicates and grids, and the t test that decides a claim."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.estimates import rounding_sd
from pipeline.stats.replicates import replicate_mean, shared_rounding


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One finished run, with all that distinguishes it from other runs.

    Attributes:
        extractor: the architecture whose filter the arm comes from.
        draw: number of the replicate of that filter, 0 for the first.
        bn_group: number of images that BatchNorm normalizes together.
        augmented: whether training images were cropped at random or flipped.
        matched: whether the arms of its study take equal steps or equal epochs.
        epochs: epochs of its arm's images; whole steps make it differ slightly from the requested number.
        recipe: all other settings that decide a result, as one text.
        n_images: number of test images; `top1` is a multiple of 1 / n_images.
        top1: 0 to 1.
        setting_diverged: whether a run of its arm and setting diverged, with another seed or replicate of the filter.
        fingerprint: equal if studies share a run.
    """

    study: str
    arm: str
    extractor: str
    draw: int
    model: str
    batch_size: int
    learning_rate: float
    weight_decay: float
    bn_group: int
    augmented: bool
    seed: int
    steps: int
    epochs: float
    matched: Literal["steps", "epochs"]
    recipe: str
    n_images: int
    top1: float
    setting_diverged: bool
    fingerprint: str


def group_by(records: Iterable[RunRecord], *names: str) -> dict[Any, list[RunRecord]]:
    """Group records by their value (of one name) or values of the attributes `names`, in order of appearance."""
    key: Callable[[RunRecord], Any] = attrgetter(*names)
    groups: dict[Any, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


K = TypeVar("K", bound=Hashable)


def drop_subsets(groups: Mapping[K, Sequence[RunRecord]]) -> dict[K, Sequence[RunRecord]]:
    """Drop groups whose runs are all in another group; of equal groups keep the first.

    Studies share runs of equal settings. The same runs must count once.
    """
    runs = {key: frozenset(record.fingerprint for record in group) for key, group in groups.items()}
    kept: dict[K, Sequence[RunRecord]] = {}
    # Sorting is stable for equal sizes.
    for key in sorted(runs, key=lambda key: -len(runs[key])):
        if not any(runs[key] <= runs[other] for other in kept):
            kept[key] = groups[key]
    return {key: group for key, group in groups.items() if key in kept}


def distinct_groups(records: Iterable[RunRecord], *names: str) -> dict[Any, Sequence[RunRecord]]:
    """Group records as `group_by` does, and drop groups as `drop_subsets` does."""
    return drop_subsets(group_by(records, *names))


Replicate = tuple[int, int]
"""Draw of the filter, seed."""

Values = Mapping[Hashable, Mapping[Replicate, float]]
"""Setting -> replicate -> value."""


def values_by_replicate(
    values: NDArray[np.float64], seeds: Sequence[int], draws: Sequence[int] = (0,)
) -> dict[Replicate, float]:
    """Map each replicate to its value; values (seeds, draws), or (seeds,) for one draw."""
    table = np.asarray(values).reshape(len(seeds), len(draws))
    return {
        (draw, seed): float(table[row, column]) for row, seed in enumerate(seeds) for column, draw in enumerate(draws)
    }


@dataclass(frozen=True, kw_only=True)
class Replicates:
    """Means over settings that have the same replicates.

    Attributes:
        table: (draws, seeds), no axis empty.
        settings: number of settings that each value is the mean over.
        left_out: number of settings that lack some of these replicates.
    """

    table: NDArray[np.float64]
    settings: int
    left_out: int


def average_replicates(values: Values) -> Replicates | None:
    """Average each replicate's values over the settings; settings of one seed are not independent replicates.

    The replicates are those of the setting that has most: its draws, and the seeds that all of these have. Ties go to
    the replicates that most settings have, then to the first by number. Settings that lack some replicates are left
    out and counted. Leaving out their seeds instead would keep the runs that went well.

    Returns:
        None if no setting has any replicate.
    """
    complete = [_complete_replicates(table) for table in values.values()]
    candidates = {
        (draws, seeds): [key for key, table in values.items() if all((d, s) in table for d in draws for s in seeds)]
        for draws, seeds in complete
        if draws and seeds
    }
    if not candidates:
        return None
    draws, seeds = min(candidates, key=lambda pair: (-len(pair[0]) * len(pair[1]), -len(candidates[pair]), pair))
    chosen = candidates[draws, seeds]
    tables = [[[values[key][draw, seed] for seed in seeds] for draw in draws] for key in chosen]
    return Replicates(table=np.mean(tables, axis=0), settings=len(chosen), left_out=len(values) - len(chosen))


def _complete_replicates(table: Mapping[Replicate, float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the draws of a setting, and the seeds that all of them have."""
    draws = sorted({draw for draw, _ in table})
    seeds = sorted({seed for _, seed in table})
    return tuple(draws), tuple(seed for seed in seeds if all((draw, seed) in table for draw in draws))


@dataclass(frozen=True, kw_only=True)
class AccuracyGrid:
    """Accuracies of one group of records at all combinations of its axes.

    Attributes:
        levels: the values of each axis, ascending.
        top1: (seeds, *levels), one axis for the seeds, then one for each of `levels`; 0 to 1.
        seeds: ascending.
    """

    levels: tuple[list[Any], ...]
    top1: NDArray[np.float64]
    seeds: list[int]


def accuracy_grid(records: Sequence[RunRecord], *axes: str) -> AccuracyGrid:
    """Return accuracies by seed and `axes`; the records differ in nothing else.

    A level at which some run diverged is removed. Leaving out its seed instead would keep the runs that went well. If
    runs are missing, the level or seed that lacks the largest share of its runs is removed, of equal shares a level.
    This repeats until no run is missing. The grid is empty if every level had a run that diverged.
    """
    names = ("seed", *axes)
    by_key = {
        tuple(getattr(record, name) for name in names): record.top1 for record in records if not record.setting_diverged
    }
    levels = [sorted({key[axis] for key in by_key}) for axis in range(len(names))]
    top1 = np.array([by_key.get(key, np.nan) for key in itertools.product(*levels)])
    top1 = top1.reshape([len(values) for values in levels])
    while (missing := np.isnan(top1)).any():
        other_axes = [tuple(other for other in range(len(names)) if other != axis) for axis in range(len(names))]
        shares = [missing.mean(axis=others) for others in other_axes]
        # Of equal shares the last axis: the seeds are the first one. The only level of an axis stays.
        removable = [axis for axis in range(len(names)) if top1.shape[axis] > 1]
        axis = max(removable, key=lambda axis: (shares[axis].max(), axis))
        worst = int(shares[axis].argmax())
        top1 = np.delete(top1, worst, axis=axis)
        del levels[axis][worst]
    return AccuracyGrid(levels=tuple(levels[1:]), top1=top1, seeds=levels[0])


@dataclass(frozen=True, kw_only=True)
class ClaimEvidence:
    """The evidence for and against one claim: an estimate with its interval, and one-sided p-values.

    Attributes:
        p_for: p of the hypothesis that the claim is false; one-sided, 0 to 1.
        p_against: p of the hypothesis that the claim is true; one-sided, 0 to 1.
        quantity: the estimated quantity in words, with its unit.
        mean, low, high: estimate and ends of its interval.
        threshold: the claim is true if the true value is above it; in the unit of `mean`.
        n: number of replicates.
        unit: what a replicate is: `seed`, `replicate of the filter` or `batch size`.
        settings: number of settings that each replicate is the mean over.
        left_out: number of settings that lack some of the replicates.
        sign_flip: two-sided p of the sign-flip test over the replicates. The report shows it with the t test; it
            decides nothing. None if it was not computed.
        batch_sizes: those that a slope covers, ascending; empty for other quantities.
    """

    p_for: float
    p_against: float
    quantity: str
    mean: float
    low: float
    high: float
    threshold: float
    n: int
    unit: str
    settings: int
    left_out: int = 0
    sign_flip: float | None = None
    batch_sizes: tuple[int, ...] = ()

    @property
    def p(self) -> float:
        """Two-sided p: twice the smaller."""
        return min(1.0, 2 * min(self.p_for, self.p_against))


@dataclass(frozen=True, kw_only=True)
class ClaimCriteria:
    """The criteria that decide a claim.

    Attributes:
        margin: differences of accuracy below this do not matter; 0 to 1.
        alpha: chance that any of all claims is wrongly called supported or contradicted, in (0, 1/2).
    """

    margin: float
    alpha: float


def t_test_evidence(
    replicates: Replicates | None,
    criteria: ClaimCriteria,
    quantity: str,
    *,
    threshold: float = 0.0,
    scale: float = 1.0,
    rounding: float = 0.0,
    shared_control: bool = False,
) -> ClaimEvidence | None:
    """Test the replicates' mean against a threshold by Student's t.

    Args:
        replicates: values that are above the threshold if the claim is true.
        threshold: in the unit of the values.
        scale: factor of the estimate for display; 100 for percentage points.
        rounding: standard deviation of a value's rounding error at one setting, in the unit of the values.
        shared_control: whether the values are differences from runs that all draws of the filter share.

    Returns:
        None with fewer than two seeds.
    """
    if replicates is None or not has_replicates(replicates):
        return None
    draws, seeds = replicates.table.shape
    if shared_control:
        rounding *= shared_rounding(draws)
    # Settings are rounded independently, and averaged.
    mean = replicate_mean(replicates.table - threshold, rounding=rounding / replicates.settings**0.5)
    low, high = mean.interval(1 - criteria.alpha)
    half = float(mean.p_difference()) / 2
    above = float(mean.mean) > 0
    return ClaimEvidence(
        p_for=half if above else 1 - half,
        p_against=1 - half if above else half,
        quantity=quantity,
        mean=scale * (float(mean.mean) + threshold),
        low=scale * (float(low) + threshold),
        high=scale * (float(high) + threshold),
        threshold=scale * threshold,
        n=draws if draws > 1 else seeds,
        unit="replicate of the filter" if draws > 1 else "seed",
        settings=replicates.settings,
        left_out=replicates.left_out,
    )


def accuracy_rounding(records: Sequence[RunRecord]) -> float:
    """Return the largest standard deviation of the error of accuracies (0 to 1) that are counts of test images."""
    return max((rounding_sd(1 / record.n_images) for record in records), default=0.0)


def has_replicates(replicates: Replicates) -> bool:
    """Return whether there are two seeds. Every test needs them, since all draws share the effect of a single seed."""
    return bool(replicates.table.shape[1] > 1)


def slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return least-squares slopes (...) of y (..., n) against x (n,), which is not constant."""
    centered = x - x.mean()
    slopes: np.ndarray = y @ centered / (centered @ centered)
    return slopes
