"""Training runs of all studies together, and how those that differ in one thing alone are found."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

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
        recipe: all settings that decide a result beside these, in one text.
        top1: 0 to 1.
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
    matched: Literal["steps", "epochs"]
    recipe: str
    top1: float


def by(trials: Iterable[Trial], *names: str) -> dict[Any, list[Trial]]:
    """The trials that share the attributes `names`, by their value (of one name) or values, in order of appearance."""
    key: Callable[[Trial], Any] = attrgetter(*names)
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups


Replicate = tuple[int, int]
"""Draw of the filter, seed."""

Values = Mapping[Hashable, Mapping[Replicate, float]]
"""Setting -> replicate -> value."""


@dataclass(frozen=True, kw_only=True)
class Replicates:
    """Means over settings, of the replicates that all of them have.

    Attributes:
        table: (draws, seeds), no axis empty.
        settings: that each value is the mean over.
    """

    table: NDArray[np.float64]
    settings: int


def replicates_of(values: Values) -> Replicates | None:
    """Seeds of one setting are no replicates of another: each replicate's values are averaged over the settings.

    Draws that some setting lacks are left out, then seeds that some setting lacks with one of the others. None if
    nothing is left.
    """
    in_each = [{draw for draw, _ in found} for found in values.values()]
    draws = sorted(set.intersection(*in_each)) if in_each else []
    seeds = sorted({seed for found in values.values() for _, seed in found})
    complete = [seed for seed in seeds if all((draw, seed) in found for found in values.values() for draw in draws)]
    if not draws or not complete:
        return None
    tables = [[[found[draw, seed] for seed in complete] for draw in draws] for found in values.values()]
    return Replicates(table=np.mean(tables, axis=0), settings=len(tables))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Accuracies of one group of trials at all combinations of its axes.

    Attributes:
        levels: of each axis, ascending.
        top1: one axis for the seeds, then one for each of `levels`; 0 to 1.
        seeds: those that have every combination.
    """

    levels: tuple[list[Any], ...]
    top1: NDArray[np.float64]
    seeds: list[int]


def grid_of(trials: Sequence[Trial], *axes: str) -> Grid:
    """Accuracies by seed and `axes`; the trials differ in nothing else."""
    levels = tuple(sorted({getattr(trial, name) for trial in trials}) for name in axes)
    shape = tuple(map(len, levels))
    by_seed = {
        seed: {tuple(getattr(trial, name) for name in axes): trial.top1 for trial in found}
        for seed, found in by(trials, "seed").items()
    }
    size = int(np.prod(shape))
    seeds = sorted(seed for seed, found in by_seed.items() if len(found) == size)
    where = np.ndindex(*shape)
    keys = [tuple(level[i] for level, i in zip(levels, at, strict=True)) for at in where]
    values = [[by_seed[seed][key] for key in keys] for seed in seeds]
    return Grid(levels=levels, top1=np.reshape(np.array(values, dtype=np.float64), (len(seeds), *shape)), seeds=seeds)
