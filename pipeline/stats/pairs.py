"""Which runs of a study are pairs: equal in setting, seed and draw of the filter, but of different arms."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.runs import Run, Setting, settings_of

TREATED = "filtered"
"""The arm that the others are compared with."""

SHARED = "full"
"""The arm that all draws of the filter have in common: one run a seed."""

_CONTROLS = ("random", "full", "random_uniform")


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The pairs of one setting of which both runs finished.

    Attributes:
        treated, control: (draws, seeds), rows of the study's runs. Seeds that some draw lacks are in neither; both
            are empty where no seed is in all draws.
        complete: whether every seed of every draw is there, of one pair at least.
    """

    setting: Setting
    treated: NDArray[np.int64]
    control: NDArray[np.int64]
    complete: bool


def controls_of(runs: Sequence[Run]) -> list[str]:
    """The arms that the filtered one can be compared with; none if it is not there itself."""
    arms = {run.arm for run in runs}
    return [arm for arm in _CONTROLS if arm in arms] if TREATED in arms else []


def draws_of(runs: Sequence[Run]) -> list[str]:
    """The networks whose filters made the treated arm, sorted."""
    return sorted({run.filter_network for run in runs if run.arm == TREATED})


def seeds_of(runs: Sequence[Run]) -> list[int]:
    """All seeds, sorted."""
    return sorted({run.seed for run in runs})


def find_pairs(runs: Sequence[Run], control: str, seeds: Sequence[int] | None = None) -> list[Pairs]:
    """Of each setting, sorted.

    Args:
        seeds: those that count, sorted; None for all.
    """
    if seeds is None:
        seeds = seeds_of(runs)
    finished = {
        (run.setting, run.arm, "" if run.arm == SHARED else run.filter_network, run.seed): row
        for row, run in enumerate(runs)
        if run.top1 is not None
    }
    draws = draws_of(runs)
    found = []
    for setting in settings_of(runs):
        both: dict[tuple[str, int], tuple[int, int]] = {}
        for draw in draws:
            for seed in seeds:
                treated = finished.get((setting, TREATED, draw, seed))
                other = finished.get((setting, control, "" if control == SHARED else draw, seed))
                if treated is not None and other is not None:
                    both[draw, seed] = treated, other
        kept = complete_seeds(both, draws)
        rows = np.array([[both[draw, seed] for seed in kept] for draw in draws], dtype=np.int64)
        rows = rows.reshape(len(draws), len(kept), 2)
        complete = bool(kept) and kept == list(seeds)
        found.append(Pairs(setting=setting, treated=rows[..., 0], control=rows[..., 1], complete=complete))
    return found


def seed_differences(top1: Mapping[tuple[Setting, str, int], float | None], control: str) -> NDArray[np.float64]:
    """(seeds, settings), both ascending: treated - control in accuracy, -1 to 1; NaN where a run did not finish.

    Args:
        top1: by setting, arm and seed, 0 to 1, None for runs without a result; of one draw of the filter.
    """
    settings, seeds = sorted({setting for setting, _, _ in top1}), sorted({seed for _, _, seed in top1})
    found = np.full((len(seeds), len(settings)), np.nan)
    for row, seed in enumerate(seeds):
        for column, setting in enumerate(settings):
            treated, other = top1.get((setting, TREATED, seed)), top1.get((setting, control, seed))
            if treated is not None and other is not None:
                found[row, column] = treated - other
    return found


def complete_seeds(found: Collection[tuple[str, int]], draws: Sequence[str]) -> list[int]:
    """The seeds that are `found` with each of the draws, sorted."""
    seeds = sorted({seed for _, seed in found})
    return [seed for seed in seeds if all((draw, seed) in found for draw in draws)]


def differences(runs: Sequence[Run], pairs: Pairs) -> NDArray[np.float64]:
    """(draws, seeds): treated - control in accuracy, -1 to 1."""
    top1 = np.array([np.nan if run.top1 is None else run.top1 for run in runs])
    found: NDArray[np.float64] = top1[pairs.treated] - top1[pairs.control]
    return found
