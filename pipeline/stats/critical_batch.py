"""The critical batch sizes that a study's runs measured, by setting and arm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.runs import Run, Setting, settings_of


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """Of one arm at one setting, in images.

    Attributes:
        median: over the runs; None where it has no upper bound. A run whose gradient does not stand
            out from its noise has a lower bound alone and counts as larger than any other.
        low, high: from the lowest to the highest end of the runs' 95 % intervals; `high` is None
            where one has no upper end.
        n: finished runs with an interval.
        planned: cells, whether they finished or not.
    """

    setting: Setting
    arm: str
    median: float | None
    low: float
    high: float | None
    n: int
    planned: int


def critical_batches(runs: Sequence[Run]) -> list[CriticalBatch]:
    """One entry for each setting and arm of which a run measured it, in the order of the settings and arms."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups = {
        (setting, arm): [run for run in runs if (run.setting, run.arm) == (setting, arm)]
        for setting in settings_of(runs)
        for arm in arms
    }
    found = []
    for (setting, arm), group in groups.items():
        measured = [run for run in group if run.finished and run.critical_batch_low is not None]
        if measured:
            found.append(
                CriticalBatch(
                    setting=setting,
                    arm=arm,
                    median=_finite(float(np.median([_or_infinite(run.critical_batch) for run in measured]))),
                    low=min(run.critical_batch_low for run in measured if run.critical_batch_low is not None),
                    high=_finite(max(_or_infinite(run.critical_batch_high) for run in measured)),
                    n=len(measured),
                    planned=len(group),
                )
            )
    return found


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
