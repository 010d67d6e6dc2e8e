"""The runs and tests that a claim rests on."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.estimates import rounding_sd
from pipeline.stats.replicates import level_mean

# Training runs of all studies together, and how those that differ in one thing alone are found.


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One finished run, with what may tell it from others.

    Attributes:
        extractor: the architecture whose filter the arm comes from.
        draw: number of the replicate of that filter, 0 for the first.
        bn_group: images that BatchNorm normalises together.
        augmented: whether training images were cropped at random or flipped.
        matched: what the arms of its study have the same number of.
        epochs: that it trained for, of its own arm's images; whole steps leave it near those asked for.
        recipe: all settings that decide a result beside these, in one text.
        n_images: test images, of which `top1` is a multiple of one part.
        top1: 0 to 1.
        fingerprint: equal where studies share a cell, which is then one run.
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
    fingerprint: str


def group_by(trials: Iterable[RunRecord], *names: str) -> dict[Any, list[RunRecord]]:
    """The trials that share the attributes `names`, by their value (of one name) or values, in order of appearance."""
    key: Callable[[RunRecord], Any] = attrgetter(*names)
    groups: dict[Any, list[RunRecord]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups


K = TypeVar("K", bound=Hashable)


def drop_subsets(groups: Mapping[K, Sequence[RunRecord]]) -> dict[K, Sequence[RunRecord]]:
    """The groups whose runs are not all among those of another one; of equal ones the first.

    Studies share the cells that both ask for. What is said of the same runs twice is said once.
    """
    runs = {key: frozenset(trial.fingerprint for trial in found) for key, found in groups.items()}
    kept: dict[K, Sequence[RunRecord]] = {}
    # Of equal size the order stays.
    for key in sorted(runs, key=lambda key: -len(runs[key])):
        if not any(runs[key] <= runs[other] for other in kept):
            kept[key] = groups[key]
    return {key: found for key, found in groups.items() if key in kept}


Replicate = tuple[int, int]
"""Draw of the filter, seed."""

Values = Mapping[Hashable, Mapping[Replicate, float]]
"""Setting -> replicate -> value."""


@dataclass(frozen=True, kw_only=True)
class Replicates:
    """Means over settings that have the same replicates.

    Attributes:
        table: (draws, seeds), no axis empty.
        settings: that each value is the mean over.
        left_out: settings that lack some of these replicates.
    """

    table: NDArray[np.float64]
    settings: int
    left_out: int


def average_replicates(values: Values) -> Replicates | None:
    """Seeds of one setting are no replicates of another: each replicate's values are averaged over the settings.

    The replicates are those of the setting that has most (its draws, and the seeds that all of these have); where
    several have as many, those that most settings have, and of these the first by number. Settings that lack some are
    left out and counted: to leave out their seeds would keep the runs that went well. None if no setting has any.
    """
    complete = [_complete(found) for found in values.values()]
    holding = {
        (draws, seeds): [key for key, found in values.items() if all((d, s) in found for d in draws for s in seeds)]
        for draws, seeds in complete
        if draws and seeds
    }
    if not holding:
        return None
    draws, seeds = min(holding, key=lambda at: (-len(at[0]) * len(at[1]), -len(holding[at]), at))
    chosen = holding[draws, seeds]
    tables = [[[values[key][draw, seed] for seed in seeds] for draw in draws] for key in chosen]
    return Replicates(table=np.mean(tables, axis=0), settings=len(chosen), left_out=len(values) - len(chosen))


def _complete(found: Mapping[Replicate, float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The draws of a setting, and the seeds that all of them have."""
    draws = sorted({draw for draw, _ in found})
    seeds = sorted({seed for _, seed in found})
    return tuple(draws), tuple(seed for seed in seeds if all((draw, seed) in found for draw in draws))


@dataclass(frozen=True, kw_only=True)
class AccuracyGrid:
    """Accuracies of one group of trials at all combinations of its axes.

    Attributes:
        levels: of each axis, ascending.
        top1: one axis for the seeds, then one for each of `levels`; 0 to 1.
        seeds: ascending.
    """

    levels: tuple[list[Any], ...]
    top1: NDArray[np.float64]
    seeds: list[int]


def accuracy_grid(trials: Sequence[RunRecord], *axes: str) -> AccuracyGrid:
    """Accuracies by seed and `axes`; the trials differ in nothing else, and there is one at least.

    Where runs are missing, the level or seed that lacks the largest share of its runs is left out, of equal ones a
    level rather than a seed, until none is missing: a batch size at which runs diverged goes before all else does.
    """
    names = ("seed", *axes)
    found = {tuple(getattr(trial, name) for name in names): trial.top1 for trial in trials}
    levels = [sorted({key[axis] for key in found}) for axis in range(len(names))]
    top1 = np.array([found.get(key, np.nan) for key in itertools.product(*levels)]).reshape([len(of) for of in levels])
    while (missing := np.isnan(top1)).any():
        others = [tuple(other for other in range(len(names)) if other != axis) for axis in range(len(names))]
        shares = [missing.mean(axis=rest) for rest in others]
        # The last of equal ones: the seeds come first. The only level of an axis stays.
        axis = max((at for at in range(len(names)) if top1.shape[at] > 1), key=lambda at: (shares[at].max(), at))
        worst = int(shares[axis].argmax())
        top1 = np.delete(top1, worst, axis=axis)
        del levels[axis][worst]
    return AccuracyGrid(levels=tuple(levels[1:]), top1=top1, seeds=levels[0])


# What runs say of one sentence: an estimate with its interval, and the chances of errors either way.


@dataclass(frozen=True, kw_only=True)
class ClaimEvidence:
    """Of one sentence.

    Attributes:
        p_for: chance of runs that speak for it as much as these if it is false; one-sided, 0 to 1.
        p_against: the same of runs that speak against it if it is true.
        quantity: what was estimated, in words, with its unit.
        mean, low, high: estimate and ends of its interval.
        threshold: above it the sentence is true.
        n: replicates.
        unit: of them: seeds of one draw of the filter, draws, or batch sizes.
        settings: that each replicate is the mean over.
        left_out: settings that lack some of the replicates.
        sign_flip: two-sided p of the sign-flip test over the replicates, shown beside the t test and deciding nothing;
            None where it was not made.
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

    @property
    def p(self) -> float:
        """Of the test for either side: twice the smaller."""
        return min(1.0, 2 * min(self.p_for, self.p_against))


@dataclass(frozen=True, kw_only=True)
class ClaimCriteria:
    """What decides.

    Attributes:
        margin: differences of accuracy (0 to 1) nearer to 0 than this do not matter.
        alpha: chance that any of all sentences is called supported or contradicted wrongly, in (0, 1/2).
    """

    margin: float
    alpha: float


def t_test_evidence(
    found: Replicates | None,
    rule: ClaimCriteria,
    quantity: str,
    *,
    threshold: float = 0.0,
    scale: float = 1.0,
    rounding: float = 0.0,
) -> ClaimEvidence | None:
    """Student's t test of the replicates' mean against a threshold; None with fewer than two seeds.

    Args:
        found: values of which the sentence says that they are above the threshold.
        threshold: in their unit.
        scale: of the estimate as it is shown, 100 for percentage points.
        rounding: standard deviation that rounding gives a value of one setting, in its unit.
    """
    if found is None or not has_replicates(found):
        return None
    draws, seeds = found.table.shape
    # Settings are rounded independently, and averaged.
    blur = rounding / found.settings**0.5
    mean = level_mean(found.table - threshold, rounding=blur)
    low, high = mean.interval(1 - rule.alpha)
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
        unit="draw of the filter" if draws > 1 else "seed",
        settings=found.settings,
        left_out=found.left_out,
    )


def accuracy_rounding(trials: Sequence[RunRecord]) -> float:
    """Standard deviation that counting test images gives an accuracy (0 to 1): the largest of the trials'."""
    return max((rounding_sd(1 / trial.n_images) for trial in trials), default=0.0)


def has_replicates(found: Replicates) -> bool:
    """Whether there are two seeds, without which there is no test: all draws share the luck of a single one."""
    return bool(found.table.shape[1] > 1)


def slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least-squares slopes (...) of y (..., n) against x (n,), which is not constant."""
    centred = x - x.mean()
    found: np.ndarray = y @ centred / (centred @ centred)
    return found
