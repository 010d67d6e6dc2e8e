"""Pair the runs of two arms, and decide what counts as a replicate: draws of the filter, or seeds.

Differences of one seed at several batch sizes share its initialization, its order and the filter's draw. They are
averaged first, so that no setting counts as a replicate. Seeds of one draw of the filter share that draw. With several
draws, each draw's mean over its seeds counts once. With one draw the seeds are the replicates, and the result holds
for that draw alone.

All draws of a study are trained with the same seeds. The effect of a seed's initialization and order on one arm is in
the difference of every draw, whatever the control is, so that the draws' means are not independent. Draws and seeds
are therefore crossed: each factor adds its own variance.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import (
    Estimate,
    StudentMean,
    crossed_estimate,
    crossed_mean,
    mean_estimate,
    student_mean,
)
from pipeline.stats.hypothesis_tests import sign_flip_test
from pipeline.stats.runs import Run, Setting, sorted_settings

TREATED = "filtered"
"""The arm that the others are compared with."""

SHARED = "full"
"""The arm that all draws of the filter share: one run per seed."""

RELABELED = "relabeled"
"""All images with labels changed by hand or by suggestion. It is also compared with `SHARED`."""

_CONTROLS = ("random", "full", "random_uniform", RELABELED)


def n_pairs(shape: tuple[int, ...]) -> int:
    """Return the number of pairs of the sign-flip test: the seeds of one draw, or the smaller of draws and seeds."""
    draws, seeds = shape[-2:]
    return seeds if draws == 1 else min(draws, seeds)


def shared_rounding(draws: int) -> float:
    """Return the factor of the rounding error of differences whose control runs are shared by a number of draws.

    `replicate_mean` divides by draws times seeds. The mean of D draws and S seeds has the rounding of D S treated and S
    control runs: its variance is r^2 / (D S) + r^2 / S instead of 2 r^2 / (D S).
    """
    return float(((1 + draws) / 2) ** 0.5)


def replicate_mean(differences: ArrayLike, *, rounding: float = 0.0) -> StudentMean:
    """Return Student's mean of differences (..., draws, seeds), over draws if there are several, else over seeds.

    Args:
        differences: treated - control of the same draw and seed, complete, two seeds or more.
        rounding: standard deviation of each difference's rounding error, in its unit; 0 for values not rounded.
    """
    values = np.asarray(differences, dtype=np.float64)
    mean = crossed_mean(values) if values.shape[-2] > 1 else student_mean(values[..., 0, :])
    return mean.with_rounding_error(rounding / (values.shape[-2] * values.shape[-1]) ** 0.5)


def replicate_estimate(differences: ArrayLike, confidence: float, *, rounding: float = 0.0) -> Estimate:
    """Return the mean of one table (draws, seeds) with its interval, which is None with a single seed.

    Args:
        rounding: as `replicate_mean`.

    Raises:
        ValueError: no values, not two-dimensional, not finite, or a confidence out of range.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"expected a table (draws, seeds) that is not empty, got shape {values.shape}")
    if len(values) == 1:
        return mean_estimate(values[0], confidence, rounding=rounding)
    return crossed_estimate(values, confidence, rounding=rounding)


def replicate_sign_flip(differences: ArrayLike) -> NDArray[np.float64]:
    """Return p-values (...) of the sign-flip test of differences (..., draws, seeds), over the seeds of a single draw.

    With several draws neither the draws' means nor the seeds' means are independent, so that no flipping is exact.
    The larger of both p-values is then an extra condition for the t test of `replicate_mean`, not a separate test.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.shape[-2] == 1:
        return sign_flip_test(values[..., 0, :])
    return np.maximum(sign_flip_test(values.mean(axis=-1)), sign_flip_test(values.mean(axis=-2)))


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The pairs of one setting whose runs both finished: equal in setting, seed and draw, but of different arms.

    Attributes:
        treated, control: (draws, seeds), rows of the study's runs. Seeds that some draw lacks are in neither; both
            are empty if no seed is in all draws.
        complete: whether there is a pair, and none is missing.
    """

    setting: Setting
    treated: NDArray[np.int64]
    control: NDArray[np.int64]
    complete: bool


def control_arms(runs: Sequence[Run]) -> list[str]:
    """Return the arms that the filtered one can be compared with; none without a filtered arm."""
    arms = {run.arm for run in runs}
    return [arm for arm in _CONTROLS if arm in arms] if TREATED in arms else []


def filter_draw_names(runs: Sequence[Run], treated: str = TREATED) -> list[str]:
    """Return the networks whose filters made the treated arm, sorted."""
    return sorted({run.filter_network for run in runs if run.arm == treated})


def sorted_seeds(runs: Sequence[Run]) -> list[int]:
    """Return all seeds, sorted."""
    return sorted({run.seed for run in runs})


def grid_settings(runs: Sequence[Run]) -> list[Setting]:
    """Return all settings of the grid, sorted: without those that `equivalent_batch` adds to the filtered arm."""
    others = {run.setting for run in runs if run.arm != TREATED}
    # A study of the filtered arm alone has no `equivalent_batch`, which needs the full arm.
    return [setting for setting in sorted_settings(runs) if not others or setting in others]


def find_pairs(
    runs: Sequence[Run],
    control: str,
    seeds: Sequence[int] | None = None,
    *,
    treated: str = TREATED,
    treated_sizes: Mapping[int, int] | None = None,
) -> list[Pairs]:
    """Return the pairs of each setting, sorted.

    Args:
        seeds: the seeds to use, sorted; None for all.
        treated: the arm that is compared with `control`.
        treated_sizes: batch size of the control -> that of the treated arm, only for the settings with these sizes;
            None if both have the same. The setting of a pair is the control's.
    """
    if seeds is None:
        seeds = sorted_seeds(runs)
    finished = {
        (run.setting, run.arm, "" if run.arm == SHARED else run.filter_network, run.seed): row
        for row, run in enumerate(runs)
        if run.top1 is not None
    }
    draws = filter_draw_names(runs, treated)
    pairs = []
    for setting in grid_settings(runs):
        of_treated = setting
        if treated_sizes is not None:
            if setting.batch_size not in treated_sizes:
                continue
            of_treated = setting._replace(batch_size=treated_sizes[setting.batch_size])
        both: dict[tuple[str, int], tuple[int, int]] = {}
        for draw in draws:
            for seed in seeds:
                one = finished.get((of_treated, treated, draw, seed))
                other = finished.get((setting, control, "" if control == SHARED else draw, seed))
                if one is not None and other is not None:
                    both[draw, seed] = one, other
        paired_seeds = complete_seeds(both, draws)
        rows = np.array([[both[draw, seed] for seed in paired_seeds] for draw in draws], dtype=np.int64)
        rows = rows.reshape(len(draws), len(paired_seeds), 2)
        complete = bool(paired_seeds) and paired_seeds == list(seeds)
        pairs.append(Pairs(setting=setting, treated=rows[..., 0], control=rows[..., 1], complete=complete))
    return pairs


def seed_differences(top1: Mapping[tuple[Setting, str, int], float | None], control: str) -> NDArray[np.float64]:
    """Return treated - control in accuracy (seeds, settings), both ascending, -1 to 1; NaN if a run did not finish.

    Settings of the treated arm alone are left out.

    Args:
        top1: by setting, arm and seed, 0 to 1, None for runs without a result; of one draw of the filter.
    """
    # The filtered arm alone has further settings with `equivalent_batch`.
    settings, seeds = sorted({key[0] for key in top1 if key[1] != TREATED}), sorted({seed for _, _, seed in top1})
    table = np.full((len(seeds), len(settings)), np.nan)
    for row, seed in enumerate(seeds):
        for column, setting in enumerate(settings):
            treated, other = top1.get((setting, TREATED, seed)), top1.get((setting, control, seed))
            if treated is not None and other is not None:
                table[row, column] = treated - other
    return table


def complete_seeds(available: Collection[tuple[str, int]], draws: Sequence[str]) -> list[int]:
    """Return the seeds that are available, as (draw, seed), with each of the draws, sorted."""
    seeds = sorted({seed for _, seed in available})
    return [seed for seed in seeds if all((draw, seed) in available for draw in draws)]


def differences(runs: Sequence[Run], pairs: Pairs) -> NDArray[np.float64]:
    """Return treated - control in accuracy (draws, seeds), -1 to 1."""
    top1 = np.array([np.nan if run.top1 is None else run.top1 for run in runs])
    table: NDArray[np.float64] = top1[pairs.treated] - top1[pairs.control]
    return table
