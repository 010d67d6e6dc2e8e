"""Training runs of all studies together, and how those that differ in one thing alone are found."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Trial:
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


def by(trials: Iterable[Trial], *names: str) -> dict[Any, list[Trial]]:
    """The trials that share the attributes `names`, by their value (of one name) or values, in order of appearance."""
    key: Callable[[Trial], Any] = attrgetter(*names)
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups


K = TypeVar("K", bound=Hashable)


def distinct(groups: Mapping[K, Sequence[Trial]]) -> dict[K, Sequence[Trial]]:
    """The groups whose runs are not all among those of another one; of equal ones the first.

    Studies share the cells that both ask for. What is said of the same runs twice is said once.
    """
    runs = {key: frozenset(trial.fingerprint for trial in found) for key, found in groups.items()}
    kept: dict[K, Sequence[Trial]] = {}
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


def replicates_of(values: Values) -> Replicates | None:
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
class Grid:
    """Accuracies of one group of trials at all combinations of its axes.

    Attributes:
        levels: of each axis, ascending.
        top1: one axis for the seeds, then one for each of `levels`; 0 to 1.
        seeds: ascending.
    """

    levels: tuple[list[Any], ...]
    top1: NDArray[np.float64]
    seeds: list[int]


def grid_of(trials: Sequence[Trial], *axes: str) -> Grid:
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
    return Grid(levels=tuple(levels[1:]), top1=top1, seeds=levels[0])
